"""The training loss: cross-entropy over the slots of a block, weighted by how much each slot matters.

A slot only matters when all slots before it are right. Two ways to weigh that: a fixed decay over the
slots (DFlash, A.1), or the drafter's own probability of the prefix (D-PACE). The weights carry no
gradient, so the gradient of the hidden states is written down directly, chunk by chunk: the logits of a
whole batch never exist at once.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class LossSettings:
    """Which loss.

    Attributes:
        weighting: `decay` or `prefix`.
        decay_slots: gamma of exp(-(k - 1) / gamma), for `decay`.
        smoothing: a of s = (1 - a) p + a, for `prefix`: how much of the weight a wrong slot keeps.
        soft_weight: part of the loss against the target's distribution instead of the label.
    """

    weighting: Literal["decay", "prefix"] = "decay"
    decay_slots: float = 7.0
    smoothing: float = 0.5
    soft_weight: float = 0.0


class BlockLoss(NamedTuple):
    """Loss of M blocks.

    Attributes:
        loss_sum: weighted sum over all slots, scalar float32.
        weight_sum: sum of the weights, scalar float32.
        gradient: of `loss_sum` by the hidden states, [M, block - 1, E] in their dtype.
        is_correct: [M, block - 1] bool, whether the likeliest token is the label.
    """

    loss_sum: Tensor
    weight_sum: Tensor
    gradient: Tensor
    is_correct: Tensor


def slot_weights(label_probs: Tensor, is_valid: Tensor, settings: LossSettings) -> Tensor:
    """Weight of every slot, 0 where there is no valid label.

    Args:
        label_probs: [M, block - 1] float32, the drafter's probability of each label.
        is_valid: [M, block - 1] bool
        settings: which weighting.

    Returns:
        [M, block - 1] float32
    """
    valid = is_valid.float()
    if settings.weighting == "decay":
        slot = torch.arange(is_valid.shape[1], device=is_valid.device)
        return valid * torch.exp(-slot / settings.decay_slots)
    survival = (1 - settings.smoothing) * label_probs + settings.smoothing
    prefix = torch.where(is_valid, survival, 1.0).cumprod(dim=1) * valid
    # a slot is worth all prefixes that go through it: the sum from it to the end
    return prefix.flip(1).cumsum(dim=1).flip(1)


@torch.no_grad()
def block_loss(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    is_valid: Tensor,
    *,
    target_hidden: Tensor | None,
    settings: LossSettings,
) -> BlockLoss:
    """Loss of blocks and its gradient by their hidden states.

    Args:
        hidden: [M, block - 1, E], drafter's normed hidden states.
        head: [V, E], the target's frozen head.
        labels: [M, block - 1] int64
        is_valid: [M, block - 1] bool
        target_hidden: [M, block - 1, E], the target's normed hidden states that predict the labels;
            None when only labels count.
        settings: weighting and soft part.
    """
    flat = hidden.flatten(0, 1)
    labels_flat = labels.flatten()
    logits = functional.linear(flat, head).float()
    logp = logits - logits.logsumexp(dim=1, keepdim=True)
    is_label = torch.arange(head.shape[0], device=head.device) == labels_flat[:, None]
    label_logp = torch.where(is_label, logp, 0.0).sum(dim=1).view_as(labels)
    weights = slot_weights(label_logp.exp(), is_valid, settings)
    wanted = is_label.float()
    losses = -label_logp
    if target_hidden is not None:
        soft = functional.linear(target_hidden.flatten(0, 1), head).float().softmax(dim=1)
        losses = (1 - settings.soft_weight) * losses - settings.soft_weight * (soft * logp).sum(1).view_as(
            labels
        )
        wanted = (1 - settings.soft_weight) * wanted + settings.soft_weight * soft
    grad_logits = ((logp.exp() - wanted) * weights.flatten()[:, None]).to(hidden.dtype)
    return BlockLoss(
        loss_sum=(losses * weights).sum(),
        weight_sum=weights.sum(),
        gradient=(grad_logits @ head).view_as(hidden),
        is_correct=(logits.argmax(dim=1) == labels_flat).view_as(labels),
    )


def emitted_tokens(is_correct: Tensor, is_valid: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens a round emits from each block, the bonus token included.

    Args:
        is_correct: [M, block - 1] bool
        is_valid: [M, block - 1] bool

    Returns:
        emitted [M] int64, and [M] bool: whether the block is full (all labels valid), the only ones to count.
    """
    return is_correct.long().cumprod(dim=1).sum(dim=1) + 1, is_valid.all(dim=1)
