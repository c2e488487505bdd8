"""Tree construction against the list of all prefixes, sorted."""

from itertools import product

import numpy as np
import pytest
import torch

from draftbench.engine.proposer import marginals_of
from draftbench.engine.tree import Marginal, build_tree, make_chain, make_tree


def random_marginals(seed: int, depth: int, width: int) -> list[Marginal]:
    logits = 2 * torch.randn(depth, width, generator=torch.Generator().manual_seed(seed))
    return list(marginals_of(logits, width))


def cut(marginals: list[Marginal], width: int) -> list[Marginal]:
    return [(log_probs[:width], token_ids[:width]) for log_probs, token_ids in marginals]


def paths(tree) -> list[tuple[int, ...]]:
    """Each node's tokens from the root's child on, in node order, without the root itself."""
    return [tuple(tree.tokens[np.flatnonzero(row)][1:].tolist()) for row in tree.ancestors[1:]]


def best_prefixes(marginals: list[Marginal], budget: int) -> list[tuple[int, ...]]:
    ranked = []
    for length in range(1, len(marginals) + 1):
        for ranks in product(range(len(marginals[0][1])), repeat=length):
            score = 0.0
            for level, rank in enumerate(ranks):
                score += marginals[level][0][rank]
            ranked.append((-score, ranks))
    return [tuple(marginals[i][1][r] for i, r in enumerate(ranks)) for _, ranks in sorted(ranked)[:budget]]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("budget", [1, 3, 7, 16, 40])
def test_the_tree_holds_the_most_probable_prefixes_best_first(seed, budget):
    marginals = random_marginals(seed, depth=4, width=5)
    assert paths(build_tree(99, marginals, budget)) == best_prefixes(marginals, budget)


def test_more_ranks_than_the_budget_change_nothing():
    marginals = random_marginals(3, depth=4, width=30)
    assert paths(build_tree(99, cut(marginals, 6), budget=6)) == paths(build_tree(99, marginals, budget=6))


def test_equally_probable_prefixes_are_taken_in_the_order_of_their_ranks():
    marginals = [([-1.0, -1.0], [10, 11]), ([-1.0, -1.0], [20, 21]), ([-1.0, -1.0], [30, 31])]
    assert paths(build_tree(9, marginals, budget=4)) == [(10,), (11,), (10, 20), (10, 21)]


def test_a_prefix_comes_before_its_extension_even_when_that_is_certain():
    marginals = [([-0.5, -1.0], [10, 11]), ([0.0, -np.inf], [20, 21])]
    assert paths(build_tree(9, marginals, budget=4)) == [(10,), (10, 20), (11,), (11, 20)]


def test_a_budget_beyond_all_prefixes_takes_all():
    assert len(build_tree(9, random_marginals(0, depth=2, width=3), budget=100)) == 1 + 3 + 9


def test_one_rank_per_position_gives_the_chain():
    marginals = random_marginals(1, depth=5, width=4)
    tree = build_tree(9, cut(marginals, 1), 5)
    chain = make_chain([9, *(token_ids[0] for _, token_ids in marginals)])
    for name in ("tokens", "parents", "depths", "ancestors"):
        np.testing.assert_array_equal(getattr(tree, name), getattr(chain, name))


@pytest.mark.parametrize(("budget", "num_read"), [(1, 1), (2, 2), (3, 3), (6, 3)])
def test_a_position_is_read_only_when_a_node_that_is_taken_could_lie_there(budget, num_read):
    read = []

    def marginals():
        for level, first in enumerate((-0.1, -0.2, -9.0, -0.1)):
            read.append(level)
            yield [first, -1.0 + first], [10 * level, 10 * level + 1]

    build_tree(99, marginals(), budget)
    assert read == list(range(num_read))


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


def make_logits(kind: str, vocab_size: int) -> torch.Tensor:
    """Five slots' logits; those of `equal` and `peaked` hold long runs of one value."""
    logits = 4 * torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    if kind == "tied":
        return logits.round()
    if kind == "peaked":
        return logits.where(logits > 8.0, -torch.inf)
    return torch.zeros_like(logits) if kind == "equal" else logits


@pytest.mark.parametrize("kind", ["random", "tied", "peaked", "equal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [7, 127, 1024, 4999])
@pytest.mark.parametrize("width", [1, 16, 64])
def test_marginals_are_the_largest_log_probabilities_and_ties_go_to_the_smallest_ids(
    kind, dtype, vocab_size, width
):
    logits = make_logits(kind, vocab_size).to(dtype)
    log_probs, token_ids = (torch.tensor(part) for part in zip(*marginals_of(logits, width), strict=True))
    width = min(width, vocab_size)
    assert torch.equal(logits.gather(-1, token_ids), logits.topk(width).values)
    assert torch.equal(token_ids, logits.sort(dim=-1, descending=True, stable=True).indices[:, :width])
    expected = logits.float().log_softmax(-1).gather(-1, token_ids)
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_logits_that_are_no_numbers_still_give_a_token_per_rank():
    [(log_probs, token_ids)] = marginals_of(torch.full((1, 1024), torch.nan), 16)
    assert token_ids == list(range(16))
    assert len(log_probs) == 16
