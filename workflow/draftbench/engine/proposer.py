"""What is proposed to the target: nothing, DFlash's block, or DDTree's tree."""

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from draftbench.engine.drafter import Drafter
from draftbench.engine.sampling import most_probable
from draftbench.engine.sequence import Sequence
from draftbench.engine.tree import DraftTree, Marginal, build_tree, make_chain

Algorithm = Literal["DFLASH", "DDTREE"]

SLOTS_PER_LOOK = 2
"""Slots whose marginals are computed at once: they stay in a core's cache, and few are computed in vain."""

FLOORS = (-9.0, -27.0, -math.inf)
"""Log-probabilities below which tokens are left out; each is tried where the one before was too high."""


class Proposer:
    """Makes the trees that the target verifies; the algorithms differ in nothing else.

    Without an algorithm a tree is its root, so a verification is an autoregressive step.

    Attributes:
        drafter: None without an algorithm.
        budget: largest number of nodes without the root.
    """

    def __init__(self, algorithm: Algorithm | None, drafter: Drafter | None, budget: int) -> None:
        self.algorithm = algorithm
        self.drafter = drafter
        self.budget = budget

    def draft(self, sequences: list[Sequence]) -> Tensor | None:
        """The drafter's logits for every sequence, [B, block_size - 1, V]; None without an algorithm."""
        if self.drafter is None or not sequences:
            return None
        anchors = [sequence.token_ids[-1] for sequence in sequences]
        return self.drafter.propose([sequence.slot for sequence in sequences], anchors)

    def build(self, sequences: list[Sequence], logits: Tensor | None) -> list[DraftTree]:
        """One tree per sequence, whose root is the sequence's last token."""
        roots = [sequence.token_ids[-1] for sequence in sequences]
        if logits is None:
            return [make_chain([root]) for root in roots]
        if self.algorithm == "DFLASH":
            blocks: list[list[int]] = most_probable(logits).tolist()
            return [make_chain([root, *block]) for root, block in zip(roots, blocks, strict=True)]
        budgets = [min(sequence.request.budget or self.budget, self.budget) for sequence in sequences]
        return [
            grow_tree(root, block, budget) for root, block, budget in zip(roots, logits, budgets, strict=True)
        ]


def grow_tree(root: int, logits: Tensor, budget: int) -> DraftTree:
    """DDTree's tree of a block, found without ranking the vocabulary.

    A prefix is at most as probable as each of its tokens, so a full tree without a prefix below the floor
    holds no token below it. At budgets up to 128 the first floor nearly always suffices.

    Args:
        root: the last emitted token.
        logits: of the block's slots, [block_size - 1, V], of any float dtype.
        budget: nodes without the root.
    """
    for floor in FLOORS:
        tree = build_tree(root, likely_marginals(logits, floor), budget, floor)
        if len(tree) > budget:
            break
    return tree


def likely_marginals(logits: Tensor, floor: float) -> Iterator[Marginal]:
    """The tokens of each slot that are not below the floor, at temperature 1; equal ones by their ids.

    Slots are computed when they are asked for, since few trees reach the block's end. One without such a
    token ends them.
    """
    for slots in torch.split(logits, SLOTS_PER_LOOK):
        # log_softmax takes less than half the time of logsumexp
        for row in torch.log_softmax(slots, dim=-1, dtype=torch.float32).cpu().numpy():
            token_ids = (row >= floor).nonzero()[0]
            if len(token_ids) == 0:
                return
            token_ids = token_ids[np.argsort(-row[token_ids], kind="stable")]
            yield row[token_ids].tolist(), token_ids.tolist()
