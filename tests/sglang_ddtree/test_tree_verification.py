"""Mask, acceptance and moves of a batch of trees against loops over one tree."""

import numpy as np
import pytest
import torch
from sglang_ddtree.trees import (
    Acceptance,
    ChainBuilder,
    DraftTrees,
    accept,
    find_moves,
    rank_tokens,
    write_tree_mask,
)
from tests.sglang_ddtree.batched_trees import NUM_POSITIONS, engine_tree, make_logits, move_rows, random_trees
from torch._subclasses.fake_tensor import FakeTensorMode

from draftbench.engine.verify import walk_tree

WIDTHS = (2, 9, 13, 16, 17, 33, 65)
PREFIX_LENS = (7, 1, 130, 64)


def path_length(width):
    return min(NUM_POSITIONS + 1, width)


def choices(trees, seed):
    """A target that mostly says what some child says."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(6, trees.tokens.shape, generator=generator)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_mask_has_a_block_of_rows_for_each_request(width):
    trees = random_trees(len(PREFIX_LENS), width, num_tokens=6, seed=width)
    blocks = []
    for length, ancestors in zip(PREFIX_LENS, trees.ancestors, strict=True):
        prefix = np.full((width, length), 3, np.uint8)
        blocks.append(np.concatenate([prefix, ancestors.numpy().astype(np.uint8)], axis=1).ravel())
    expected = np.concatenate([*blocks, np.full(50, 3, np.uint8)])
    mask = torch.full((len(expected),), 3, dtype=torch.uint8)
    write_tree_mask(mask, trees.ancestors, torch.tensor(PREFIX_LENS))
    np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seed", range(5))
def test_the_kept_nodes_are_those_of_a_walk_through_the_tree(width, seed):
    trees = random_trees(6, width, num_tokens=6, seed=seed)
    target_tokens = choices(trees, seed)
    found = accept(trees, target_tokens, path_length(width))
    for request in range(6):
        said = target_tokens[request].tolist()
        walk = walk_tree(engine_tree(trees, request), lambda node, _depth, said=said: said[node])
        length = int(found.lengths[request])
        assert found.path[request, :length].tolist() == walk.path
        assert found.tokens[request, :length].tolist() == walk.token_ids
        assert not found.path[request, length:].any()


def test_walks_of_every_length_occur():
    lengths = set()
    for seed in range(60):
        trees = random_trees(6, 65, num_tokens=2, seed=seed)
        target_tokens = torch.randint(2, trees.tokens.shape, generator=torch.Generator().manual_seed(seed))
        lengths |= set(accept(trees, target_tokens, 16).lengths.tolist())
    assert lengths >= set(range(1, 9))


@pytest.mark.parametrize("budget", [1, 8, 15])
def test_a_chain_keeps_what_dflash_keeps(budget):
    logits = make_logits("random", num_requests=40)
    log_probs, token_ids = rank_tokens(logits, 1)
    trees = ChainBuilder(NUM_POSITIONS, budget, "cpu")(
        log_probs, token_ids, torch.zeros(40, dtype=torch.int64)
    )
    drafted = trees.tokens[:, 1:]
    target_tokens = torch.cat([drafted, drafted[:, :1]], dim=1)
    changed = torch.rand(target_tokens.shape, generator=torch.Generator().manual_seed(budget)) < 0.2
    target_tokens[changed] += 1
    num_accepted = (drafted == target_tokens[:, :-1]).cumprod(dim=1).sum(dim=1)
    found = accept(trees, target_tokens, budget + 1)
    assert torch.equal(found.lengths, num_accepted + 1)
    for request, length in enumerate(found.lengths.tolist()):
        assert found.path[request, :length].tolist() == list(range(length))
        assert torch.equal(found.tokens[request, :length], target_tokens[request, :length])


def moved_by_a_loop(cache, slots, acceptance):
    """The cache afterwards: the kept nodes' rows at the front of the tree's slots, others as they were."""
    expected = cache.clone()
    for request, length in enumerate(acceptance.lengths.tolist()):
        for column in range(length):
            node = int(acceptance.path[request, column])
            expected[slots[request, column]] = cache[slots[request, node]]
    return expected


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seed", range(3))
def test_the_kept_rows_end_up_at_the_front_whatever_overlaps(width, seed):
    trees = random_trees(5, width, num_tokens=4, seed=seed)
    found = accept(trees, choices(trees, seed) % 4, path_length(width))
    generator = torch.Generator().manual_seed(seed)
    slots = (1 + torch.randperm(400, generator=generator)[: 5 * width]).view(5, width)
    caches = [torch.randn(401, 3, 4, generator=generator), torch.randn(401, 2, generator=generator)]
    expected = [moved_by_a_loop(cache, slots, found) for cache in caches]
    move_rows(caches, find_moves(slots, found))
    for cache, wanted in zip(caches, expected, strict=True):
        assert torch.equal(cache, wanted)


def test_a_path_that_reads_what_it_writes_is_moved_whole():
    acceptance = Acceptance(
        torch.tensor([[0, 2, 3, 0]]), torch.tensor([3]), torch.zeros(1, 4, dtype=torch.int64)
    )
    slots = torch.tensor([[10, 11, 12, 13, 14]])
    moves = find_moves(slots, acceptance)
    assert moves.tolist() == [[[10, 12, 13, 13]], [[10, 11, 12, 13]]]
    cache = torch.arange(20.0)
    move_rows([cache], moves)
    assert cache[10:15].tolist() == [10, 12, 13, 13, 14]


@pytest.mark.parametrize("width", [9, 17, 65])
def test_no_value_is_looked_at_and_no_shape_depends_on_one(width):
    """Fake tensors have no values: whatever asks for one fails."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        trees = trees_without_values(width)
        mask = torch.empty(100_000, dtype=torch.uint8)
        write_tree_mask(mask, trees.ancestors, torch.empty(2, dtype=torch.int64))
        found = accept(trees, trees.tokens, path_length(width))
        moves = find_moves(trees.tokens, found)
        move_rows([torch.empty(500, 4)], moves)
    assert tuple(moves.shape) == (2, *found.path.shape) == (2, 2, path_length(width))


def trees_without_values(width):
    numbers = [torch.empty(2, width, dtype=torch.int64) for _ in range(3)]
    return DraftTrees(*numbers, torch.empty(2, width, width, dtype=torch.bool))
