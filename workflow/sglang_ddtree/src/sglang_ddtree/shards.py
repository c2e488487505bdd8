"""The most probable tokens where every GPU has a part of the vocabulary. Knows nothing of SGLang but a group.

Every GPU offers its part's best tokens and the log-sum-exp of its logits, in one collective; all take the
best of what all offered, by the same arithmetic on the same numbers, so they grow the same trees.

A candidate is one int64, so that one comparison orders by logit and then by token: the logit's float32 bits,
made to grow with it, above the token counted from the largest. Shapes as in `trees`; G GPUs, V' of a part.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

_TOKENS = 2**32
_NO_CANDIDATE = torch.iinfo(torch.int64).min


class Head(NamedTuple):
    """What this GPU has of the target's output embedding.

    Attributes:
        weight: [V', H] of a float dtype, without padding.
        first_token: id of its first row.
    """

    weight: Tensor
    first_token: int


class Group(Protocol):
    """The GPUs of one model, as SGLang's `GroupCoordinator`.

    Attributes:
        world_size: how many.
        rank_in_group: this one's place.
    """

    world_size: int
    rank_in_group: int

    def all_gather(self, input_: Tensor, dim: int) -> Tensor:
        """All GPUs' tensors, one after the other along a dimension."""

    def broadcast(self, input_: Tensor, src: int) -> Tensor:
        """One GPU's tensor, written into everyone's; nothing happens in a group of one."""


class ShardRanking:
    """`trees.rank_tokens` of logits of which each GPU has a part; a CUDA graph can hold it."""

    def __init__(self, head: Head, group: Group) -> None:
        self._group = group
        self._lower = lower_halves(head.first_token, len(head.weight), head.weight.device)

    def __call__(self, logits: Tensor, num_ranks: int) -> tuple[Tensor, Tensor]:
        """Rank over all parts; equal logits come in the order of their tokens.

        Args:
            logits: of this GPU's part, [B, D, V'] of any float dtype.
            num_ranks: how many, K; at most the whole vocabulary's.

        Returns:
            log-probabilities at temperature 1 and ids, descending, [B, D, K] float32 and int64, the same on
            every GPU.
        """
        offered = offer(logits, self._lower, num_ranks)
        gathered = self._group.all_gather(offered, dim=0)
        return merge(gathered.view(self._group.world_size, *offered.shape))


def offer(logits: Tensor, lower: Tensor, num_ranks: int) -> Tensor:
    """A part's best candidates and, behind them, the bits of its log-sum-exp: [..., K + 1] int64.

    Args:
        logits: of a part, [..., V'] of any float dtype.
        lower: the lower half of each candidate, [V'] int64.
        num_ranks: how many candidates, K; a smaller part fills up with what loses against any token.
    """
    exact = logits.float()
    # Adding zero makes a negative zero positive: they are equal, but their bits are not.
    candidates = _flip_negative((exact + 0.0).view(torch.int32)).to(torch.int64).mul_(_TOKENS).add_(lower)
    num_own = min(num_ranks, len(lower))
    missing = candidates.new_full((*logits.shape[:-1], num_ranks - num_own), _NO_CANDIDATE)
    total = exact.logsumexp(dim=-1, keepdim=True).view(torch.int32).to(torch.int64)
    return torch.cat([candidates.topk(num_own, dim=-1).values, missing, total], dim=-1)


def merge(offered: Tensor) -> tuple[Tensor, Tensor]:
    """The best of what all parts offer: [G, ..., K + 1] -> log-probabilities and ids, [..., K] each."""
    totals = offered[..., -1].to(torch.int32).view(torch.float32)
    candidates = offered[..., :-1].movedim(0, -2).flatten(-2)
    best = candidates.topk(offered.shape[-1] - 1, dim=-1, sorted=True).values
    values = _flip_negative((best >> 32).to(torch.int32)).view(torch.float32)
    token_ids = _TOKENS - 1 - (best & (_TOKENS - 1))
    return values - totals.logsumexp(dim=0).unsqueeze(-1), token_ids


def lower_halves(first_token: int, num_tokens: int, device: torch.device) -> Tensor:
    """Lower halves of a part's candidates: the smallest token has the largest."""
    return _TOKENS - 1 - first_token - torch.arange(num_tokens, device=device)


def _flip_negative(bits: Tensor) -> Tensor:
    """Bits of float32 that compare as the floats do, or those back: its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
