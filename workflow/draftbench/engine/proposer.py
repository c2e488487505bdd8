"""What is proposed to the target: nothing, DFlash's block, or DDTree's tree."""

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
        return self.drafter.propose(
            [sequence.slot for sequence in sequences], [sequence.token_ids[-1] for sequence in sequences]
        )

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

    On a CPU a slot is looked at when it is asked for, since few trees reach the block's end, and while
    the slot's row is looked at it stays in the cache. A CUDA device is asked once for all slots.

    Args:
        logits: [block_size - 1, V], of any float dtype.
        width: tokens per slot; no more than the vocabulary come out.
    """
    if logits.is_cuda:
        top = torch.log_softmax(logits, dim=-1, dtype=torch.float32).topk(min(width, logits.shape[-1]))
        yield from zip(top.values.tolist(), top.indices.tolist(), strict=True)
    else:
        for row in logits:
            yield _top_marginal(row.float(), width)


def _top_marginal(logits: Tensor, width: int) -> Marginal:
    """The `width` largest of one slot's logits [V] float32, exactly; among equals the smallest ids.

    The vocabulary is cut into 8 `width` groups. The `width` largest logits are not below the `width`-th
    largest maximum of a group, as that many groups hold one that is not; few others are not below it.
    """
    row, num_groups = logits.numpy(), 8 * width
    size = len(row) // num_groups
    maxima = row[: size * num_groups].reshape(size, num_groups).max(axis=0) if size else row
    floor = np.partition(maxima, -min(width, len(row)))[-min(width, len(row))]
    token_ids = np.flatnonzero(~(row < floor))
    token_ids = token_ids[np.argsort(-row[token_ids], kind="stable")[:width]]
    # log_softmax takes less than half the time of logsumexp
    return torch.log_softmax(logits, dim=0).numpy()[token_ids].tolist(), token_ids.tolist()
