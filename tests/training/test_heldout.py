"""Rounds read off stored greedy texts are those of real decoding, linear and with trees."""

import json

import numpy as np
import pytest
import tiny
import torch

from draftbench.errors import ShapeError
from draftbench.training import heldout
from draftbench.training.block_model import BlockModel
from draftbench.training.corpus import Conversation
from draftbench.training.decoding import decode_greedily, open_engine, pooled_tau
from draftbench.training.drafter import Drafter
from draftbench.training.evaluation import slot_accuracy, summarise, tree_emitted, tree_rounds
from draftbench.training.heldout import Drafts, draft_everywhere, walk_rounds
from draftbench.training.loss import LossSettings

NUM_TOKENS = 40
BUDGET = 6


@pytest.fixture(scope="module")
def drafter(target):
    """Random: it is right by chance only, which is enough to compare rounds."""
    return tiny.make_drafter(target, num_layers=2, block_size=8)


@pytest.fixture(scope="module")
def prompts():
    return tiny.random_prompts(6, seed=3)


@pytest.fixture(scope="module")
def drafts(target, drafter, prompts):
    texts = tiny.greedy_texts(target, prompts, NUM_TOKENS)
    model = BlockModel(target, drafter, LossSettings())
    return list(draft_everywhere(model, texts, 280, 64, (2, 32)))


@pytest.fixture(scope="module", params=["DFLASH", "DDTREE"])
def algorithm(request):
    return request.param


@pytest.fixture(scope="module")
def decoded(folder, drafter, prompts, algorithm, tmp_path_factory):
    """The prompts decoded by the engine from the saved checkpoint."""
    checkpoint = tmp_path_factory.mktemp("drafter")
    drafter.save(checkpoint)
    engine = open_engine(folder, checkpoint, algorithm, BUDGET)
    try:
        return decode_greedily(engine, prompts, NUM_TOKENS)
    finally:
        engine.shutdown(timeout_s=10)


def test_the_engine_takes_the_same_rounds(decoded, drafts, algorithm):
    for item, draft in zip(decoded, drafts, strict=True):
        if len(item.token_ids) < NUM_TOKENS:
            continue  # it met the stop token, which the stored text runs past
        linear = [emitted for _, emitted in walk_rounds(draft.linear_emitted())]
        rounds = linear if algorithm == "DFLASH" else tree_rounds(draft, BUDGET)
        assert item.num_rounds - len(rounds) in (0, 1)  # the last round may be cut
    assert sum(len(item.token_ids) == NUM_TOKENS for item in decoded) >= 3
    assert pooled_tau(decoded) >= 1


def _drafts(ids, guesses):
    """Drafts of 2 slots with one sure guess and one unlikely other."""
    tokens = np.array([[[guess, 99] for guess in pair] for pair in guesses])
    logp = np.tile(np.log(np.array([0.9, 0.1], dtype=np.float32)), (*tokens.shape[:2], 1))
    return Drafts(np.array([*ids, -1, -1]), tokens, logp)


def test_a_linear_round_emits_the_right_prefix_and_one_more():
    draft = _drafts([5, 6, 7, 8], [(5, 6), (6, 0), (0, 8), (8, 0)])
    assert draft.linear_emitted().tolist() == [3, 2, 1, 2]


def test_rounds_start_after_the_token_of_the_prefill_and_leave_out_a_cut_one():
    assert walk_rounds(np.array([3, 2, 1, 2, 1])) == [(1, 2), (3, 2)]
    assert walk_rounds(np.array([1, 2, 1, 3, 1])) == [(1, 2)]


def test_a_tree_finds_the_second_guess():
    draft = _drafts([5, 99, 7, 8], [(5, 6), (6, 7), (7, 8), (8, 0)])
    assert tree_emitted(draft, 1, budget=1) == 1
    assert tree_emitted(draft, 1, budget=3) >= 2


def test_accuracy_counts_full_blocks_only():
    draft = _drafts([5, 6, 7], [(5, 6), (6, 0), (7, 0)])
    assert slot_accuracy([draft]) == {"marginal": [1.0, 0.5], "reached": [1.0, 0.5]}


def test_a_tree_of_every_token_emits_no_less_than_a_line(drafts):
    report = summarise(drafts, (2, 64))
    assert report["trees"]["64"] >= report["trees"]["2"] >= 1
    assert report["trees"]["64"] >= report["linear"]


def test_a_checkpoint_that_reads_other_layers_is_refused(target, tmp_path):
    tiny.make_drafter(target).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [0, 2]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ShapeError, match=r"target_layer_ids: expected \[.*\], as trained here, got \[0, 2\]"):
        Drafter.load(tmp_path, target.shape, torch.device("cpu"))


def test_the_first_draft_is_made_at_the_last_prompt_token():
    conversation = Conversation(np.arange(10, 18), np.arange(8) >= 3, is_greedy=True)
    columns = np.arange(8).reshape(8, 1, 1).repeat(3, axis=1)  # each draft names the column it was made at
    drafts = heldout._last_response(conversation, columns, columns.astype(np.float32))
    assert drafts.tokens[:, 0, 0].tolist() == [2, 3, 4, 5, 6]
    assert drafts.ids.tolist() == [13, 14, 15, 16, 17, -1, -1, -1]
