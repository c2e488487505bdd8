"""Tree construction against the list of all prefixes, sorted."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from draftbench.engine.proposer import FLOORS, grow_tree, likely_marginals
from draftbench.engine.tree import Marginal, build_tree, make_chain, make_tree


def random_marginals(seed: int, depth: int, width: int) -> list[Marginal]:
    logits = 2 * torch.randn(depth, width, generator=torch.Generator().manual_seed(seed))
    return list(likely_marginals(logits, -math.inf))


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


@pytest.mark.parametrize("floor", [-0.4, -0.6, -1.0, -1.3])
def test_a_tree_with_a_floor_is_the_whole_tree_up_to_there(floor):
    marginals = [([-0.5, -1.0], [10, 11]), ([-0.3, -1.4], [20, 21])]
    whole = {(10,): -0.5, (10, 20): -0.8, (11,): -1.0, (11, 20): -1.3, (10, 21): -1.9, (11, 21): -2.4}
    tree = build_tree(9, marginals, budget=6, floor=floor)
    assert paths(tree) == [path for path, score in whole.items() if score >= floor]


def make_logits(kind: str, vocab_size: int) -> torch.Tensor:
    """Five slots' logits, by how they are distributed."""
    logits = 4 * torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    if kind == "tied":
        return logits.round()
    if kind == "impossible":
        return logits.where(logits > logits.amax(-1, keepdim=True) - 6.0, -torch.inf)
    return {"random": logits, "certain": 30 * logits, "equal": torch.zeros_like(logits)}[kind]


def ranked_marginals(logits: torch.Tensor, width: int) -> list[Marginal]:
    """The plain way: all log-probabilities, sorted; equal ones stay in the order of their ids."""
    ranked = torch.sort(logits.float().log_softmax(-1), dim=-1, descending=True, stable=True)
    values, token_ids = ranked.values[:, :width], ranked.indices[:, :width]
    assert torch.equal(values, logits.float().log_softmax(-1).topk(values.shape[1]).values)
    return list(zip(values.tolist(), token_ids.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["random", "certain", "tied", "impossible", "equal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [7, 4999])
@pytest.mark.parametrize("budget", [1, 16, 64, 300])
def test_a_grown_tree_is_the_tree_of_the_ranked_vocabulary(kind, dtype, vocab_size, budget):
    logits = make_logits(kind, vocab_size).to(dtype)
    grown, expected = grow_tree(3, logits, budget), build_tree(3, ranked_marginals(logits, budget), budget)
    assert grown.tokens.tolist() == expected.tokens.tolist()
    assert grown.parents.tolist() == expected.parents.tolist()


def test_every_floor_is_needed_and_none_is_given_up_too_early():
    """Trees that end above the first floor, between the floors, and below the last finite one."""
    numbers_of_looks = []
    for slope in (0.1, 1.0, 3.0):
        logits = -slope * torch.arange(40.0).expand(4, 40)
        scores = [log_probs[19] for log_probs, _ in ranked_marginals(logits, 20)]
        numbers_of_looks.append(1 + sum(max(scores) < floor for floor in FLOORS))
        assert paths(grow_tree(3, logits, 200)) == paths(build_tree(3, ranked_marginals(logits, 40), 200))
    assert numbers_of_looks == [1, 2, 3]


def test_a_token_below_the_first_floor_goes_before_a_prefix_of_likelier_tokens():
    """The third token is left out at first, yet is more probable than the second one twice."""
    logits = torch.tensor([[0.0, -5.0, -9.5, -50.0], [0.0, -5.0, -50.0, -50.0]])
    assert FLOORS[0] == -9.0
    assert paths(grow_tree(3, logits, 6))[5] == (2,)


@pytest.mark.parametrize("kind", ["random", "tied", "equal"])
def test_likely_marginals_are_the_tokens_above_the_floor_and_end_where_a_slot_has_none(kind):
    logits = make_logits(kind, 600)
    logits[3] = 0.0
    floor = ranked_marginals(logits, 1)[3][0][0] if kind == "equal" else -6.0  # what is at the floor stays
    expected = [
        ([value for value in log_probs if value >= floor], token_ids)
        for log_probs, token_ids in ranked_marginals(logits, 600)
    ]
    num_slots = 5 if kind == "equal" else 3
    for found, wanted in zip(likely_marginals(logits, floor), expected[:num_slots], strict=True):
        assert found == (wanted[0], wanted[1][: len(wanted[0])])


def test_logits_that_are_no_numbers_give_a_root():
    assert len(grow_tree(3, torch.full((4, 50), torch.nan), 16)) == 1
