"""From the drafter's hidden states to trees: one call, which a CUDA graph of the drafter can end with."""

from collections.abc import Callable

import torch
from torch import Tensor

from sglang_ddtree.trees import Builder, DraftTrees, rank_tokens

Ranking = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""Log-probabilities and ids of so many most probable tokens by their logits, as `trees.rank_tokens`."""


class TreeProposer:
    """Turns a block's hidden states into trees by the target's output embedding.

    Within a graph the trees go to fixed tensors, since a replay returns nothing.
    """

    def __init__(self, head: Tensor, builder: Builder, block_size: int, rank: Ranking = rank_tokens) -> None:
        """Keep what every round needs.

        Args:
            head: the target's output embedding, or this GPU's part of it, [V, H].
            builder: makes the trees.
            block_size: slots of a block, the first of which holds the root.
            rank: finds the most probable tokens, of the whole vocabulary where the head is a part.
        """
        self.builder = builder
        self._rank = rank
        self._head = head
        self._block_size = block_size
        self._captured: DraftTrees | None = None

    def reserve(self, max_requests: int) -> None:
        """Make the tensors that graphs write, before the first is captured."""
        width, device = self.builder.budget + 1, self._head.device
        numbers = torch.zeros(max_requests, width, dtype=torch.int64, device=device)
        ancestors = torch.zeros(max_requests, width, width, dtype=torch.bool, device=device)
        self._captured = DraftTrees(numbers, numbers.clone(), numbers.clone(), ancestors)

    def propose(self, hidden_states: Tensor, roots: Tensor) -> DraftTrees:
        """One tree per request.

        Args:
            hidden_states: of every slot of every block, [B * block_size, H].
            roots: the last emitted tokens, [B] int64.
        """
        blocks = hidden_states.view(len(roots), self._block_size, -1)
        drafted = blocks[:, 1:].to(self._head.dtype)
        log_probs, token_ids = self._rank(drafted @ self._head.T, self.builder.num_ranks)
        return self.builder(log_probs, token_ids, roots)

    def __call__(self, hidden_states: Tensor, input_ids: Tensor) -> None:
        """The end of a captured forward: trees of all its requests into the fixed tensors."""
        trees = self.propose(hidden_states, input_ids.view(-1, self._block_size)[:, 0])
        for fixed, found in zip(self._fixed(len(trees.tokens)), trees, strict=True):
            fixed.copy_(found)

    def captured(self, num_requests: int) -> DraftTrees:
        """The trees that the last replay wrote; they are overwritten by the next."""
        return self._fixed(num_requests)

    def _fixed(self, num_requests: int) -> DraftTrees:
        if self._captured is None:
            raise RuntimeError(
                "draft graph: expected reserved tensors, got none; call reserve before capturing"
            )
        return DraftTrees(*(fixed[:num_requests] for fixed in self._captured))
