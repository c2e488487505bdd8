"""Blocks of draft logits, trees of a batch, one of them as the engine has it, and moves one by one."""

from collections.abc import Iterable

import torch
from sglang_ddtree.trees import DraftTrees, TreeBuilder, rank_tokens

from draftbench.engine.tree import DraftTree, make_tree

BUDGETS = (1, 8, 12, 15, 16, 32, 64)
NUM_POSITIONS = 15
VOCABULARY = 90
KINDS = ("random", "bfloat16", "certain", "tied")


def make_logits(kind: str, num_requests: int = 3, seed: int = 0) -> torch.Tensor:
    """Draft logits, [B, 15, V]: without ties, with some, with certain tokens, or little but ties."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_requests, NUM_POSITIONS, VOCABULARY, generator=generator)
    return {
        "random": logits,
        "bfloat16": logits.bfloat16(),
        "certain": logits * torch.tensor([60.0, 1.0, 8.0]).repeat(5)[:, None],
        "tied": (logits / 4).round() * 2,
    }[kind]


def build(logits: torch.Tensor, budget: int) -> DraftTrees:
    """Trees whose roots are 1000, 1001, …"""
    log_probs, token_ids = rank_tokens(logits, budget)
    roots = 1000 + torch.arange(len(logits))
    return TreeBuilder(logits.shape[1], budget, "cpu")(log_probs, token_ids, roots)


def engine_tree(trees: DraftTrees, request: int) -> DraftTree:
    """One request's tree, its depths and ancestors found anew from its parents."""
    parents = [-1, *trees.parents[request, 1:].tolist()]
    return make_tree(trees.tokens[request].tolist(), parents)


def random_trees(num_requests: int, width: int, num_tokens: int, seed: int) -> DraftTrees:
    """Trees of any shape whose siblings differ, over few tokens, so that verifications go deep."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(num_requests):
        tokens, parents, taken, depths = [num_tokens], [-1], set(), [0]
        while len(tokens) < width:
            parent = int(torch.randint(max(0, len(tokens) - 4), len(tokens), (), generator=generator))
            token = int(torch.randint(num_tokens, (), generator=generator))
            if (parent, token) in taken or depths[parent] == NUM_POSITIONS:
                parent = int(torch.randint(len(tokens), (), generator=generator))
            if (parent, token) not in taken and depths[parent] < NUM_POSITIONS:
                taken.add((parent, token))
                tokens.append(token)
                parents.append(parent)
                depths.append(depths[parent] + 1)
        found.append(make_tree(tokens, parents))
    stacked = (torch.stack([torch.from_numpy(getattr(tree, name)) for tree in found]) for name in _FIELDS)
    tokens, parents, depths, ancestors = stacked
    return DraftTrees(tokens, parents.clamp(min=0), depths, ancestors)


_FIELDS = ("tokens", "parents", "depths", "ancestors")


def move_rows(buffers: Iterable[torch.Tensor], moves: torch.Tensor) -> None:
    """What `kernels.move_rows_at_once` must do, buffer by buffer: all rows are read before any is written.

    Args:
        buffers: [slots, ...] each, written in place.
        moves: rows to read and rows to write, each of these once except where nothing moves, [2, B, A] int64.
    """
    sources, targets = moves.flatten(1)
    for buffer in buffers:
        buffer[targets] = buffer[sources]
