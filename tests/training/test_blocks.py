"""The faults that every port of this training had once: what a block sees and what it predicts."""

import numpy as np
import pytest
import tiny
import torch

from draftbench.training.attention import TILE, dense_mask
from draftbench.training.block_model import BlockModel
from draftbench.training.blocks import (
    Batch,
    allow_blocks,
    allow_target,
    block_tiles,
    choose_anchors,
    make_blocks,
    target_tiles,
)
from draftbench.training.corpus import Conversation
from draftbench.training.loss import LossSettings

BLOCK = 4


@pytest.fixture
def batch() -> Batch:
    """One row of two conversations: 4 + 6 and 3 + 9 tokens, prompt + response."""
    first = Conversation(np.arange(10, 20), np.arange(10) >= 4, is_greedy=True)
    second = Conversation(np.arange(30, 42), np.arange(12) >= 3, is_greedy=True)
    return tiny.make_batch([first, second], 24)


@pytest.fixture
def anchors() -> torch.Tensor:
    """Columns 5 and 8 of the longer conversation (which is packed first), 15 of the other."""
    return torch.tensor([[5, 8, 15]])


@pytest.fixture
def visible(batch, anchors) -> torch.Tensor:
    """[queries, keys] of the blocks' mask."""
    num_queries = anchors.numel() * BLOCK
    return dense_mask(allow_blocks(batch, anchors, BLOCK), 1, num_queries, 24 + num_queries)[0, 0]


def test_the_context_ends_strictly_before_the_anchor(visible):
    assert visible[0, :24].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


def test_a_later_block_sees_no_context_of_another_conversation(visible):
    assert visible[2 * BLOCK, :24].nonzero().flatten().tolist() == [12, 13, 14]


def test_every_slot_of_a_block_sees_the_whole_block_and_no_other(visible):
    own = visible[BLOCK : 2 * BLOCK, 24:].nonzero()[:, 1].unique().tolist()
    assert own == list(range(BLOCK, 2 * BLOCK))
    assert visible[BLOCK : 2 * BLOCK, 24 + BLOCK : 24 + 2 * BLOCK].all()


def test_slot_0_holds_the_real_token_and_the_others_the_mask(batch, anchors):
    blocks = make_blocks(batch, anchors, BLOCK, tiny.MASK)
    assert blocks.ids.view(3, BLOCK).tolist() == [
        [int(batch.ids[0, column]), *[tiny.MASK] * (BLOCK - 1)] for column in (5, 8, 15)
    ]


def test_labels_are_the_tokens_at_anchor_plus_slot(batch, anchors):
    blocks = make_blocks(batch, anchors, BLOCK, tiny.MASK)
    assert blocks.labels[0, 0].tolist() == batch.ids[0, 6:9].tolist()


def test_positions_count_from_the_start_of_the_conversation(batch, anchors):
    blocks = make_blocks(batch, anchors, BLOCK, tiny.MASK)
    assert blocks.positions.view(3, BLOCK)[2].tolist() == [3, 4, 5, 6]


def test_labels_beyond_the_conversation_do_not_count(batch, anchors):
    blocks = make_blocks(batch, torch.tensor([[10, 20]]), BLOCK, tiny.MASK)
    assert blocks.is_valid[0].tolist() == [[True, False, False], [True, False, False]]


def test_labels_beyond_the_row_do_not_count():
    whole = Conversation(np.arange(10, 18), np.arange(8) >= 2, is_greedy=True)
    blocks = make_blocks(tiny.make_batch([whole], 8), torch.tensor([[4, 6]]), BLOCK, tiny.MASK)
    assert blocks.is_valid[0].tolist() == [[True, True, True], [True, False, False]]


def test_labels_behind_a_token_that_is_not_the_targets_do_not_count():
    is_response = np.array([False, True, True, False, True, True, True, True])
    turns = Conversation(np.arange(10, 18), is_response, is_greedy=True)
    blocks = make_blocks(tiny.make_batch([turns], 8), torch.tensor([[1, 2, 3]]), BLOCK, tiny.MASK)
    assert blocks.is_valid[0].tolist() == [[True, False, False], [False, False, False], [True, True, True]]


def test_anchors_are_where_the_next_token_is_the_targets_own(batch):
    anchors = choose_anchors(batch, 15, torch.Generator().manual_seed(0))
    # the last prompt token is the first anchor; the last response token predicts nothing
    assert anchors[0].tolist() == [*range(2, 11), *range(15, 21)]


def test_no_gradient_reaches_the_context_from_the_anchor_on(target):
    texts = tiny.greedy_texts(target, tiny.random_prompts(1), 20)
    batch = tiny.make_batch(texts, 32)
    model = BlockModel(target, tiny.make_drafter(target), LossSettings())
    anchors = torch.tensor([[12]])
    before, _ = model.draft_hidden(batch, model.blocks(batch, anchors))
    changed = Batch(batch.ids.clone(), batch.document, batch.positions, batch.is_response)
    changed.ids[0, 13:] = 7
    after, _ = model.draft_hidden(changed, model.blocks(changed, anchors))
    assert torch.equal(before, after)


@pytest.fixture(scope="module")
def long_batch() -> Batch:
    """Two rows of several conversations, whole tiles long."""
    rng = np.random.default_rng(0)
    texts = [
        Conversation(rng.integers(4, 200, size), np.arange(size) >= 5, is_greedy=True)
        for size in (300, 180, 90, 60, 250, 100, 40)
    ]
    return tiny.make_batch(texts, 4 * TILE)


def _tiled(mask: torch.Tensor) -> torch.Tensor:
    return mask[:, 0].unflatten(1, (-1, TILE)).unflatten(3, (-1, TILE)).any(4).any(2)


def test_tiles_of_the_target_are_exactly_those_with_something_to_see(long_batch):
    num_rows, length = long_batch.ids.shape
    needed = _tiled(dense_mask(allow_target(long_batch), num_rows, length, length))
    assert torch.equal(target_tiles(long_batch) & needed, needed)
    assert target_tiles(long_batch).sum() <= needed.sum() + num_rows


def test_tiles_of_the_blocks_leave_nothing_out(long_batch):
    num_rows, length = long_batch.ids.shape
    anchors = choose_anchors(long_batch, 32, torch.Generator().manual_seed(0))
    allow = allow_blocks(long_batch, anchors, 16)
    needed = _tiled(dense_mask(allow, num_rows, 32 * 16, length + 32 * 16))
    tiles = block_tiles(long_batch, anchors, 16)
    assert torch.equal(tiles & needed, needed)
    assert tiles.sum() < 0.6 * tiles.numel()
