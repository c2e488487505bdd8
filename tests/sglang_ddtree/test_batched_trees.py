"""Trees of a batch against the engine's heap, one request at a time."""

import math

import numpy as np
import pytest
import torch
from sglang_ddtree.proposal import TreeProposer
from sglang_ddtree.trees import ChainBuilder, TreeBuilder, find_ancestors, rank_tokens
from tests.sglang_ddtree.batched_trees import (
    BUDGETS,
    KINDS,
    NUM_POSITIONS,
    VOCABULARY,
    build,
    engine_tree,
    make_logits,
    random_trees,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from draftbench.engine.tree import build_tree


def marginals(block):
    log_probs, token_ids = rank_tokens(block, block.shape[-1])
    return list(zip(log_probs.tolist(), token_ids.tolist(), strict=True))


def paths(tree):
    """Each node's tokens from the root's child on."""
    return [tuple(tree.tokens[np.flatnonzero(row)][1:].tolist()) for row in tree.ancestors[1:]]


def masses(tree, levels):
    """Each node's log-probability, ascending."""
    log_probs = [dict(zip(token_ids, values, strict=True)) for values, token_ids in levels]
    return sorted(math.fsum(log_probs[i][token] for i, token in enumerate(path)) for path in paths(tree))


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("seed", range(4))
def test_without_ties_the_nodes_are_the_heaps_in_its_order(budget, seed):
    logits = make_logits("random", seed=seed)
    trees = build(logits, budget)
    for request, block in enumerate(logits):
        expected = build_tree(1000 + request, marginals(block), budget)
        assert paths(engine_tree(trees, request)) == paths(expected)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_nodes_are_as_probable_as_the_heaps_where_ties_leave_a_choice(kind, budget):
    logits = make_logits(kind)
    trees = build(logits, budget)
    for request, block in enumerate(logits):
        levels = marginals(block)
        found, expected = engine_tree(trees, request), build_tree(1000 + request, levels, budget)
        assert masses(found, levels) == pytest.approx(masses(expected, levels), abs=1e-4)
        assert len(set(paths(found))) == budget


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("kind", KINDS)
def test_depths_and_ancestors_follow_from_parents_that_come_first(kind, budget):
    trees = build(make_logits(kind), budget)
    assert (trees.parents[:, 1:] < torch.arange(1, budget + 1)).all()
    assert (trees.parents[:, 0] == 0).all()
    for request in range(len(trees.tokens)):
        expected = engine_tree(trees, request)
        np.testing.assert_array_equal(trees.depths[request], expected.depths)
        np.testing.assert_array_equal(trees.ancestors[request], expected.ancestors)


def test_requests_do_not_see_each_other():
    logits = make_logits("random", num_requests=4)
    together = build(logits, 32)
    for request in range(4):
        alone = build(logits[request : request + 1], 32)
        for found, expected in zip(together[1:], alone[1:], strict=True):
            assert torch.equal(found[request], expected[0])


def test_no_tree_is_deeper_than_the_block():
    certain = torch.full((1, NUM_POSITIONS, VOCABULARY), -40.0)
    certain[..., 7] = 40.0
    trees = build(certain, 64)
    assert trees.depths.max() == NUM_POSITIONS
    assert (trees.tokens[0, 1 : NUM_POSITIONS + 1] == 7).all()


@pytest.mark.parametrize("budget", [1, 8, 15])
def test_a_chain_is_the_blocks_most_probable_tokens(budget):
    logits = make_logits("bfloat16")
    log_probs, token_ids = rank_tokens(logits, 1)
    trees = ChainBuilder(NUM_POSITIONS, budget, "cpu")(log_probs, token_ids, torch.tensor([5, 6, 7]))
    assert torch.equal(trees.tokens[:, 1:], logits.argmax(-1)[:, :budget])
    assert trees.tokens[:, 0].tolist() == [5, 6, 7]
    for request in range(3):
        expected = engine_tree(trees, request)
        np.testing.assert_array_equal(trees.depths[request], np.arange(budget + 1))
        np.testing.assert_array_equal(trees.depths[request], expected.depths)
        np.testing.assert_array_equal(trees.ancestors[request], expected.ancestors)


def test_the_one_most_probable_token_is_the_logits_own_also_where_probabilities_are_equal():
    logits = torch.tensor([[0.0, 1e-9], [1e-9, 0.0], [0.0, 0.0]])
    log_probs, token_ids = rank_tokens(logits, 1)
    assert torch.log_softmax(logits, dim=-1).unique().numel() == 1
    assert token_ids.flatten().tolist() == [1, 0, 0]
    assert torch.equal(log_probs, torch.log_softmax(logits, dim=-1)[:, :1])


def test_a_chain_does_not_reach_beyond_the_block():
    with pytest.raises(ValueError, match="expected at most 15 for a chain, got 16"):
        ChainBuilder(NUM_POSITIONS, 16, "cpu")


@pytest.mark.parametrize("width", [2, 9, 17, 65])
def test_ancestors_are_found_at_any_depth_up_to_the_blocks(width):
    trees = random_trees(3, width, num_tokens=6, seed=width)
    assert torch.equal(find_ancestors(trees.parents, 4), trees.ancestors)


def make_proposer(budget, block_size=16, hidden=24):
    head = torch.randn(VOCABULARY, hidden, generator=torch.Generator().manual_seed(budget))
    return TreeProposer(head, TreeBuilder(block_size - 1, budget, "cpu"), block_size)


@pytest.mark.parametrize("budget", [8, 16, 64])
def test_a_graphs_trees_are_the_eager_ones(budget):
    proposer = make_proposer(budget)
    hidden_states = torch.randn(4 * 16, 24, generator=torch.Generator().manual_seed(1))
    input_ids = torch.arange(4 * 16)
    expected = proposer.propose(hidden_states, input_ids[::16])
    proposer.reserve(8)
    proposer(hidden_states, input_ids)
    for found, wanted in zip(proposer.captured(3), expected, strict=True):
        assert torch.equal(found, wanted[:3])


def test_the_first_slot_of_a_block_drafts_nothing():
    proposer = make_proposer(16)
    hidden_states = torch.randn(2, 16, 24, generator=torch.Generator().manual_seed(1))
    roots = torch.tensor([3, 4])
    expected = proposer.propose(hidden_states.flatten(0, 1), roots)
    hidden_states[:, 0] = 100.0
    for found, wanted in zip(proposer.propose(hidden_states.flatten(0, 1), roots), expected, strict=True):
        assert torch.equal(found, wanted)


def test_a_graph_without_fixed_tensors_is_refused():
    with pytest.raises(RuntimeError, match="expected reserved tensors, got none"):
        make_proposer(8).captured(1)


@pytest.mark.parametrize("budget", BUDGETS)
def test_no_value_is_looked_at_and_no_shape_depends_on_one(budget):
    """Fake tensors have no values: whatever asks for one fails."""
    proposer = make_proposer(budget)
    with FakeTensorMode(allow_non_fake_inputs=True):
        trees = proposer.propose(torch.empty(2 * 16, 24), torch.empty(2, dtype=torch.int64))
    assert [tuple(field.shape) for field in trees] == [
        *[(2, budget + 1)] * 3,
        (2, budget + 1, budget + 1),
    ]
