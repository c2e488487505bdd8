"""Target and drafter together: a batch in, hidden states or a gradient out."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftbench.training.blocks import Batch, Blocks, block_mask, make_blocks, target_mask
from draftbench.training.drafter import Drafter
from draftbench.training.loss import LossSettings, block_loss
from draftbench.training.target import Target

BLOCKS_PER_CHUNK = 256  # 256 x 15 rows of a 49k vocabulary: 0.4 GB of bf16 logits at a time


@dataclass(frozen=True)
class Outcome:
    """A batch of blocks after the drafter.

    Attributes:
        loss: weighted mean, scalar.
        is_correct: [M, block - 1] bool
        is_valid: [M, block - 1] bool
    """

    loss: Tensor
    is_correct: Tensor
    is_valid: Tensor


class BlockModel:
    """Target and drafter together: batch and anchors in, hidden states or a gradient out."""

    def __init__(self, target: Target, drafter: Drafter, loss: LossSettings) -> None:
        self.target, self.drafter, self.loss = target, drafter, loss
        self.device = target.embedding.device
        self.block_loss = block_loss
        if self.device.type == "cuda":
            self._compile()

    def _compile(self) -> None:
        """Compile layer by layer: all layers share one compilation each of target and drafter."""
        for layer in [*self.target.layers, *self.drafter.layers]:
            layer.compile(dynamic=False)
        self.block_loss = torch.compile(block_loss, dynamic=False)

    def blocks(self, batch: Batch, anchors: Tensor) -> Blocks:
        """Blocks of this drafter's size at `anchors` [B, N]."""
        shape = self.drafter.shape
        return make_blocks(batch, anchors, shape.block_size, shape.mask_token_id)

    def draft_hidden(self, batch: Batch, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """Drafter's normed hidden states [B * N, block - 1, E] and the target's [B, S, E]."""
        shape = self.drafter.shape
        with torch.no_grad():
            target_hidden, features = self.target(
                batch.ids, batch.positions, target_mask(batch), shape.feature_layers
            )
            embedded = functional.embedding(blocks.ids, self.target.embedding)
            mask = block_mask(batch, blocks, shape.block_size)
        # with a gradient the first layer is like all others, and one compilation serves them
        embedded.requires_grad_(torch.is_grad_enabled())
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            hidden = self.drafter(embedded, features, blocks.positions, batch.positions, mask)
        hidden = hidden.view(-1, shape.block_size, hidden.shape[-1])[:, 1:]
        return hidden.to(self.target.head.dtype), target_hidden

    def backward(self, batch: Batch, anchors: Tensor) -> Outcome:
        """Add the loss's gradient of the blocks at `anchors` to the drafter's parameters."""
        blocks = self.blocks(batch, anchors)
        hidden, target_hidden = self.draft_hidden(batch, blocks)
        is_valid = blocks.is_valid.flatten(0, 1)
        wanted: list[Tensor | None] = [None] * len(hidden)
        chunks = range(0, len(hidden), BLOCKS_PER_CHUNK)
        if self.loss.soft_weight > 0:
            # the target's prediction of a column is made at the column before it
            before = (blocks.columns - 1).flatten(1)[..., None].expand(-1, -1, hidden.shape[-1])
            wanted = list(torch.split(target_hidden.gather(1, before).view_as(hidden), BLOCKS_PER_CHUNK))
        parts = [
            self.block_loss(
                hidden[start : start + BLOCKS_PER_CHUNK].detach(),
                self.target.head,
                blocks.labels.flatten(0, 1)[start : start + BLOCKS_PER_CHUNK],
                is_valid[start : start + BLOCKS_PER_CHUNK],
                target_hidden=wanted[number],
                settings=self.loss,
            )
            for number, start in enumerate(chunks)
        ]
        weight = torch.stack([part.weight_sum for part in parts]).sum().clamp(min=1e-6)
        gradient = torch.cat([part.gradient for part in parts]) / weight
        hidden.backward(gradient.to(hidden.dtype))  # type: ignore[no-untyped-call]
        loss = torch.stack([part.loss_sum for part in parts]).sum() / weight
        return Outcome(loss, torch.cat([part.is_correct for part in parts]), is_valid)
