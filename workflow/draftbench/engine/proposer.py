"""What is proposed to the target: nothing, DFlash's block, or DDTree's tree."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftbench.engine.drafter import Drafter
from draftbench.engine.sampling import most_probable
from draftbench.engine.sequence import Sequence
from draftbench.engine.tree import DraftTree, Marginal, build_tree, make_chain

Algorithm = Literal["DFLASH", "DDTREE"]

SLOTS_PER_LOOK = 4
"""Slots whose marginals are computed at once on a CPU: threads share them, and few are computed in vain."""


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
            build_tree(root, marginals_of(block, budget), budget)
            for root, block, budget in zip(roots, logits, budgets, strict=True)
        ]


def marginals_of(logits: Tensor, width: int) -> Iterator[Marginal]:
    """The most probable tokens of a block's slots, at temperature 1, best first.

    A CPU looks at a few slots at a time, when the first of them is asked for: few trees reach the block's
    end. A CUDA device is asked once for all slots.

    Args:
        logits: [block_size - 1, V], of any float dtype.
        width: tokens per slot; no more than the vocabulary come out.
    """
    width = min(width, logits.shape[-1])
    if logits.is_cuda:
        top = torch.log_softmax(logits, dim=-1, dtype=torch.float32).topk(width)
        yield from zip(top.values.tolist(), top.indices.tolist(), strict=True)
        return
    for part in torch.split(logits, SLOTS_PER_LOOK):
        rows = part.float()
        log_probs = torch.log_softmax(rows, dim=-1)  # in less than half the time of logsumexp
        for row, log_row in zip(rows.numpy(), log_probs.numpy(), strict=True):
            token_ids = _largest(row, width)
            yield log_row[token_ids].tolist(), token_ids.tolist()


def _largest(row: NDArray[np.float32], width: int) -> NDArray[np.int64]:
    """Where the `width` largest of [V] values are, the largest first; among equals the first places.

    The values are cut into 8 `width` groups. The `width` largest are not below the `width`-th largest
    maximum of a group, as that many groups hold one that is not; few others are not below it.
    """
    size = len(row) // (8 * width)
    maxima = row[: size * 8 * width].reshape(size, -1).max(axis=0) if size else row
    places = np.flatnonzero(~(row < np.partition(maxima, -width)[-width]))
    order = np.argsort(-row[places], kind="stable")
    return places.take(order[:width])
