"""`trees.TreeBuilder` in one launch: DDTree's heap, one program a request."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sglang_ddtree.trees import DraftTrees

_IMPOSSIBLE = tl.constexpr(1e30)
"""Cost of a token of probability zero: more than any other, and 15 of them are still a number."""


class KernelTreeBuilder:
    """The same trees as `TreeBuilder`'s where no two prefixes cost the same; else ones as probable."""

    def __init__(self, num_positions: int, budget: int, device: torch.device | str) -> None:
        del device  # nothing is kept there
        self.budget = budget
        self.num_ranks = budget
        self._num_positions = num_positions

    def __call__(self, log_probs: Tensor, token_ids: Tensor, roots: Tensor) -> DraftTrees:
        """As `Builder` says; of `num_ranks` tokens, contiguous."""
        num_requests, width = len(roots), self.budget + 1
        numbers = torch.zeros(3, num_requests, width, dtype=torch.int64, device=roots.device)
        numbers[0, :, 0].copy_(roots)
        ancestors = torch.empty(num_requests, width, width, dtype=torch.uint8, device=roots.device)
        shape = (self._num_positions, width, triton.next_power_of_2(width))
        _grow_tree[(num_requests,)](log_probs, token_ids, numbers, ancestors, shape=shape, num_warps=1)
        tokens, parents, depths = numbers
        return DraftTrees(tokens, parents, depths, ancestors.view(torch.bool))


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _grow_tree(log_probs, token_ids, numbers, ancestors, shape: tl.constexpr):  # type: ignore[no-untyped-def]
    """One request's tree, node by node.

    A slot holds a prefix that could be the next node, with what is needed to take it: its cost, its parent
    and the parent's cost, its depth and its rank. A node that is taken leaves its slot to its next sibling
    and opens a slot to its first child.
    """
    num_positions: tl.constexpr = shape[0]
    width: tl.constexpr = shape[1]
    num_slots: tl.constexpr = shape[2]
    num_ranks: tl.constexpr = width - 1
    request = tl.program_id(0)
    num_requests = tl.num_programs(0)
    steps = log_probs + request * num_positions * num_ranks
    ids = token_ids + request * num_positions * num_ranks
    tokens = numbers + request * width
    parents = tokens + num_requests * width
    depths = parents + num_requests * width
    rows = ancestors + request * width * width

    slots = tl.arange(0, num_slots)
    cost = tl.where(slots == 0, _cost_with(0.0, steps, True), float("inf"))
    parent_cost = tl.zeros([num_slots], tl.float32)
    parent = tl.zeros([num_slots], tl.int32)
    depth = tl.full([num_slots], 1, tl.int32)
    rank = tl.zeros([num_slots], tl.int32)
    tl.store(rows + slots, (slots == 0).to(tl.uint8), mask=slots < width)
    for node in range(1, width):
        best = tl.argmin(cost, axis=0)
        taken = slots == best
        node_cost = tl.min(cost, axis=0)
        node_parent = tl.sum(tl.where(taken, parent, 0), axis=0)
        node_parent_cost = tl.sum(tl.where(taken, parent_cost, 0.0), axis=0)
        node_depth = tl.sum(tl.where(taken, depth, 0), axis=0)
        node_rank = tl.sum(tl.where(taken, rank, 0), axis=0)
        tl.store(tokens + node, tl.load(ids + (node_depth - 1) * num_ranks + node_rank))
        tl.store(parents + node, node_parent.to(tl.int64))
        tl.store(depths + node, node_depth.to(tl.int64))
        tl.debug_barrier()  # the parent's row was written by this program
        row = tl.load(rows + node_parent * width + slots, mask=slots < width, other=0)
        tl.store(
            rows + node * width + slots, tl.where(slots == node, 1, row).to(tl.uint8), mask=slots < width
        )

        has_sibling = node_rank + 1 < num_ranks
        place = (node_depth - 1) * num_ranks + node_rank + 1
        sibling = _cost_with(node_parent_cost, steps + place, has_sibling)
        cost = tl.where(taken, sibling, cost)
        rank = tl.where(taken, node_rank + 1, rank)
        child = _cost_with(node_cost, steps + node_depth * num_ranks, node_depth < num_positions)
        opened = slots == node
        cost = tl.where(opened, child, cost)
        parent_cost = tl.where(opened, node_cost, parent_cost)
        parent = tl.where(opened, node, parent)
        depth = tl.where(opened, node_depth + 1, depth)
        rank = tl.where(opened, 0, rank)


@triton.jit
def _cost_with(cost, step, exists):  # type: ignore[no-untyped-def]
    """Cost of a prefix and one more token, whose log-probability is read where there is one."""
    value = tl.load(step, mask=exists, other=0.0)
    return tl.where(exists, cost + tl.minimum(-value, _IMPOSSIBLE), float("inf"))
