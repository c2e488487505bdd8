"""Ranking over parts of a vocabulary against ranking over all of it, and through collectives of processes."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from sglang_ddtree.proposal import TreeProposer
from sglang_ddtree.shards import Head, ShardRanking
from sglang_ddtree.trees import ChainBuilder, TreeBuilder, rank_tokens
from tests.sglang_ddtree.batched_trees import (
    BUDGETS,
    KINDS,
    NUM_POSITIONS,
    VOCABULARY,
    build,
    make_logits,
)
from tests.sglang_ddtree.groups import World, part_bounds, propose, run_processes
from torch._subclasses.fake_tensor import FakeTensorMode

# 90 tokens: the last part of two is short, those of four and eight are empty.
SPLITS = {f"{n} as SGLang": part_bounds(VOCABULARY, n) for n in (2, 4, 8)} | {
    "uneven": [(0, 50), (50, 51), (51, 90)]
}


def rank_in_parts(logits, bounds, num_ranks):
    """Every rank's result."""

    def work(group):
        first, last = bounds[group.rank_in_group]
        ranking = ShardRanking(Head(torch.empty(last - first, 3), first), group)
        return ranking(logits[..., first:last], num_ranks)

    return World(len(bounds)).run(work)


def exact_ranks(logits, num_ranks):
    """Descending, equal logits by token."""
    token_ids = logits.float().sort(dim=-1, descending=True, stable=True).indices[..., :num_ranks]
    return logits.log_softmax(-1, dtype=torch.float32).gather(-1, token_ids), token_ids


@pytest.mark.parametrize("bounds", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_ranks", [1, 16, 64, VOCABULARY])
def test_parts_rank_as_the_whole_and_equal_logits_by_token(kind, num_ranks, bounds):
    logits = make_logits(kind)
    log_probs, token_ids = exact_ranks(logits, num_ranks)
    results = rank_in_parts(logits, bounds, num_ranks)
    for found_probs, found_ids in results:
        assert torch.equal(found_ids, token_ids)
        torch.testing.assert_close(found_probs, log_probs, rtol=0, atol=2e-5)
        assert torch.equal(found_probs, results[0][0])
        assert found_probs.is_contiguous()
        assert found_ids.is_contiguous()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_neighbouring_numbers_of_either_sign_are_told_apart(sign):
    bits = torch.tensor(sign).view(torch.int32) + torch.arange(VOCABULARY, dtype=torch.int32)
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))
    logits = bits.view(torch.float32)[order].expand(1, 1, -1)
    for _, token_ids in rank_in_parts(logits, SPLITS["uneven"], VOCABULARY):
        assert torch.equal(token_ids, exact_ranks(logits, VOCABULARY)[1])


@pytest.mark.parametrize("bounds", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_parts_grow_the_wholes_trees(budget, bounds):
    logits, roots = make_logits("random", seed=budget), 1000 + torch.arange(3)
    for log_probs, token_ids in rank_in_parts(logits, bounds, budget):
        trees = TreeBuilder(NUM_POSITIONS, budget, "cpu")(log_probs, token_ids, roots)
        for found, expected in zip(trees, build(logits, budget), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_draft_the_wholes_chain(kind):
    logits, roots = make_logits(kind), torch.arange(3)
    expected = ChainBuilder(NUM_POSITIONS, 15, "cpu")(*rank_tokens(logits, 1), roots)
    for ranks in rank_in_parts(logits, SPLITS["4 as SGLang"], 1):
        assert torch.equal(ChainBuilder(NUM_POSITIONS, 15, "cpu")(*ranks, roots).tokens, expected.tokens)


def test_zeros_of_both_signs_are_equal_and_impossible_tokens_come_last():
    logits = torch.tensor([[[-0.0, 0.0, -torch.inf, -2.5, 0.0, -0.0, 1e-30, -torch.inf]]])
    for log_probs, token_ids in rank_in_parts(logits, [(0, 3), (3, 8)], 8):
        assert token_ids[0, 0].tolist() == [6, 0, 1, 4, 5, 3, 2, 7]
        assert (log_probs[0, 0, -2:] == -torch.inf).all()


def test_a_certain_token_costs_nothing_and_no_probability_is_above_one():
    logits = make_logits("certain") * 10
    for log_probs, _ in rank_in_parts(logits, SPLITS["8 as SGLang"], 16):
        assert log_probs.max() == 0.0
        assert (log_probs[:, ::3, 0] == 0.0).all()


@pytest.mark.parametrize("budget", BUDGETS)
def test_no_value_of_a_part_is_looked_at_and_no_shape_depends_on_one(budget):
    class Repeated:
        world_size = 4

        def all_gather(self, input_, dim):
            return torch.cat([input_] * 4, dim)

    head = Head(torch.randn(26, 24), 64)
    builder = TreeBuilder(NUM_POSITIONS, budget, "cpu")
    proposer = TreeProposer(head.weight, builder, 16, ShardRanking(head, Repeated()))
    with FakeTensorMode(allow_non_fake_inputs=True):
        trees = proposer.propose(torch.empty(2 * 16, 24), torch.empty(2, dtype=torch.int64))
    assert trees.ancestors.shape == (2, budget + 1, budget + 1)


class GlooGroup:
    """Two processes through torch's own collectives, as SGLang's group calls them."""

    def __init__(self, rank, size):
        self.rank_in_group, self.world_size = rank, size

    def all_gather(self, input_, dim):
        assert dim == 0
        output = input_.new_empty(input_.shape[0] * self.world_size, *input_.shape[1:])
        dist.all_gather_into_tensor(output, input_)
        return output


def propose_in_process(rank, size, address, results):
    """One rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    results.put((rank, propose(GlooGroup(rank, size))))
    dist.destroy_process_group()


def test_two_processes_grow_the_trees_of_one(tmp_path):
    alone = propose(SimpleNamespace(world_size=1, rank_in_group=0))
    assert run_processes(propose_in_process, 2, tmp_path) == [alone] * 2
