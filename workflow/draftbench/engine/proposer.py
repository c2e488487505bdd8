"""What is proposed to the target: nothing, DFlash's block, or DDTree's tree."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftbench.engine.drafter import Drafter
from draftbench.engine.sampling import most_probable
from draftbench.engine.sequence import Sequence
from draftbench.engine.tree import DraftTree, build_tree, make_chain

Algorithm = Literal["DFLASH", "DDTREE"]

GROUP_SIZE = 16
"""Vocabulary entries in a group of the two-step top-k; of 16, 32, 64 and 128 the fastest."""


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
        log_probs, token_ids = top_marginals(logits, max(budgets))
        return [
            build_tree(root, log_probs[i], token_ids[i], budget)
            for i, (root, budget) in enumerate(zip(roots, budgets, strict=True))
        ]


def top_marginals(logits: Tensor, width: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The most probable tokens per position and their log-probabilities at temperature 1.

    Args:
        logits: [..., V].
        width: tokens per position; no more than the vocabulary come out.

    Returns:
        log-probabilities, descending, float32, and token ids, both [..., width]. Synchronises the device.
    """
    _, token_ids = _top_k(logits.float(), min(width, logits.shape[-1]))
    # softmax is one pass on a CPU, logsumexp takes three times as long
    probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(-1, token_ids)
    return probabilities.log().cpu().numpy(), token_ids.cpu().numpy()


def _top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`x.topk(k)` by way of the maxima of groups, in half its time on a CPU.

    The k largest values lie in the k groups with the largest maxima. Group j holds every entry whose
    index is j modulo the number of groups, so the maxima are taken over contiguous memory.
    """
    num_groups = x.shape[-1] // GROUP_SIZE
    if x.shape[-1] % GROUP_SIZE or num_groups < k:
        return x.topk(k, dim=-1)
    groups = x.view(*x.shape[:-1], GROUP_SIZE, num_groups)
    best = groups.amax(dim=-2).topk(k, dim=-1, sorted=False).indices
    values, places = groups.take_along_dim(best.unsqueeze(-2), dim=-1).flatten(-2).topk(k, dim=-1)
    row = torch.div(places, k, rounding_mode="floor")
    return values, row * num_groups + best.gather(-1, places % k)
