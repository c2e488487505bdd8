"""Tree construction against the list of all prefixes, sorted."""

from itertools import product

import numpy as np
import pytest
import torch

from draftbench.engine.proposer import top_marginals
from draftbench.engine.tree import build_tree, make_chain, make_tree


def random_marginals(seed: int, depth: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    logits = 2 * torch.randn(depth, width, generator=torch.Generator().manual_seed(seed))
    return top_marginals(logits, width)


def paths(tree) -> list[tuple[int, ...]]:
    """Each node's tokens from the root's child on, in node order, without the root itself."""
    return [tuple(tree.tokens[np.flatnonzero(row)][1:].tolist()) for row in tree.ancestors[1:]]


def best_prefixes(log_probs: np.ndarray, token_ids: np.ndarray, budget: int) -> list[tuple[int, ...]]:
    depth, width = log_probs.shape
    ranked = []
    for length in range(1, depth + 1):
        for ranks in product(range(width), repeat=length):
            score = 0.0
            for level, rank in enumerate(ranks):
                score += float(log_probs[level, rank])
            ranked.append((-score, ranks))
    return [tuple(int(token_ids[i, r]) for i, r in enumerate(ranks)) for _, ranks in sorted(ranked)[:budget]]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("budget", [1, 3, 7, 16, 40])
def test_the_tree_holds_the_most_probable_prefixes_best_first(seed, budget):
    log_probs, token_ids = random_marginals(seed, depth=4, width=5)
    tree = build_tree(99, log_probs, token_ids, budget)
    assert paths(tree) == best_prefixes(log_probs, token_ids, budget)


def test_more_ranks_than_the_budget_change_nothing():
    log_probs, token_ids = random_marginals(3, depth=4, width=30)
    tree = build_tree(99, log_probs[:, :6], token_ids[:, :6], budget=6)
    assert paths(tree) == paths(build_tree(99, log_probs, token_ids, budget=6))


def test_equally_probable_prefixes_are_taken_in_the_order_of_their_ranks():
    log_probs = np.full((3, 2), -1.0, dtype=np.float32)
    tree = build_tree(9, log_probs, np.array([[10, 11], [20, 21], [30, 31]]), budget=4)
    assert paths(tree) == [(10,), (11,), (10, 20), (10, 21)]


def test_a_prefix_comes_before_its_extension_even_when_that_is_certain():
    log_probs = np.array([[-0.5, -1.0], [0.0, -np.inf]], dtype=np.float32)
    tree = build_tree(9, log_probs, np.array([[10, 11], [20, 21]]), budget=4)
    assert paths(tree) == [(10,), (10, 20), (11,), (11, 20)]


def test_a_budget_beyond_all_prefixes_takes_all():
    log_probs, token_ids = random_marginals(0, depth=2, width=3)
    assert len(build_tree(9, log_probs, token_ids, budget=100)) == 1 + 3 + 9


def test_one_rank_per_position_gives_the_chain():
    log_probs, token_ids = random_marginals(1, depth=5, width=4)
    tree, chain = (
        build_tree(9, log_probs[:, :1], token_ids[:, :1], 5),
        make_chain([9, *token_ids[:, 0].tolist()]),
    )
    for name in ("tokens", "parents", "depths", "ancestors"):
        np.testing.assert_array_equal(getattr(tree, name), getattr(chain, name))


def test_depths_ancestors_and_children_follow_from_the_parents():
    tree = make_tree([7, 1, 2, 3], [-1, 0, 0, 2])
    assert tree.depths.tolist() == [0, 1, 1, 2]
    assert tree.ancestors.tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, False, True, False],
        [True, False, True, True],
    ]
    assert tree.children() == [{1: 1, 2: 2}, {}, {3: 3}, {}]


@pytest.mark.parametrize("vocab_size", [50, 64 * 12])
def test_marginals_are_the_largest_log_softmax_values_in_descending_order(vocab_size):
    logits = torch.randn(2, 3, vocab_size, generator=torch.Generator().manual_seed(0))
    log_probs, token_ids = top_marginals(logits, 4)
    expected = logits.log_softmax(-1).sort(-1, descending=True)
    np.testing.assert_allclose(log_probs, expected.values[..., :4].numpy(), rtol=1e-5)
    np.testing.assert_array_equal(token_ids, expected.indices[..., :4].numpy())
