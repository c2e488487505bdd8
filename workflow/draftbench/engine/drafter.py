"""The DFlash drafter: one pass proposes a distribution for every slot of a block.

Source: DFlash, arXiv 2602.06036. The drafter has neither embedding nor head of its own; it reads the
target's residual stream after some layers, fused once per committed token, as extra keys and values of
each of its layers ("KV injection").
"""

import numpy as np
import torch
from torch import Tensor

from draftbench.engine.cache import KVCache
from draftbench.engine.config import DrafterConfig
from draftbench.engine.layers import Heads, Linear, RMSNorm, Rotary, attend
from draftbench.engine.llama import DecoderLayer, Llama
from draftbench.engine.weights import WeightReader


class DraftLayer(DecoderLayer):
    """A decoder layer that also norms each head of queries and keys."""

    def __init__(self, reader: WeightReader, prefix: str, config: DrafterConfig) -> None:
        block = config.block
        super().__init__(reader, prefix, block)
        attention = f"{prefix}.self_attn"
        self.query_norm = RMSNorm(reader.read(f"{attention}.q_norm.weight", block.head_dim), block.norm_eps)
        self.key_norm = RMSNorm(reader.read(f"{attention}.k_norm.weight", block.head_dim), block.norm_eps)


class Drafter:
    """A DFlash drafter with its own cache of context keys and values.

    Attributes:
        config: its shape.
        cache: one row per committed token and slot; block rows are scratch and are never committed.
        block_size: slots of a block in use, the anchor included.
    """

    def __init__(
        self, config: DrafterConfig, reader: WeightReader, target: Llama, cache: KVCache, block_size: int
    ) -> None:
        block = config.block
        hidden, num_kv = block.hidden_size, block.num_kv_heads * block.head_dim
        self.config = config
        self.cache = cache
        self.block_size = block_size
        self._target = target
        self._fusion = Linear(reader.read("fc.weight", hidden, len(config.target_layer_ids) * hidden))
        self._context_norm = RMSNorm(reader.read("hidden_norm.weight", hidden), block.norm_eps)
        self._layers = [DraftLayer(reader, f"layers.{i}", config) for i in range(block.num_layers)]
        self._context_kv = Linear(
            torch.cat(
                [
                    reader.read(f"layers.{i}.self_attn.{part}_proj.weight", num_kv, hidden)
                    for i in range(block.num_layers)
                    for part in ("k", "v")
                ]
            )
        )
        self._key_norms = RMSNorm(
            torch.stack([layer.key_norm.weight for layer in self._layers]).unsqueeze(1), block.norm_eps
        )
        self._norm = RMSNorm(reader.read("norm.weight", hidden), block.norm_eps)
        self._rotary = Rotary(block, cache.capacity, target.embedding.dtype, target.embedding.device)

    def extend_context(self, features: Tensor, slots: list[int], counts: list[int]) -> None:
        """Write context keys and values of newly committed tokens, and count them as committed.

        Args:
            features: the target's residual stream after `target_layer_ids`, [S, F * E].
            slots: of the requests, in the order of the rows.
            counts: rows of each request, S in all; they follow the ones that its slot has.
        """
        block = self.config.block
        starts = [self.cache.lengths[slot] for slot in slots]
        positions = [start + np.arange(count) for start, count in zip(starts, counts, strict=True)]
        table = self._rotary.at(torch.from_numpy(np.concatenate(positions)).to(features.device))
        context = self._context_kv(self._context_norm(self._fusion(features)))
        rows = context.view(len(context), block.num_layers, 2, block.num_kv_heads, block.head_dim)
        keys = self._rotary.rotate(self._key_norms(rows[:, :, 0]).flatten(1, 2), table)
        both = torch.stack([keys.view_as(rows[:, :, 0]), rows[:, :, 1]], dim=2).permute(1, 2, 3, 0, 4)
        for slot, start, part in zip(slots, starts, both.split_with_sizes(counts, dim=3), strict=True):
            self.cache.rows[slot, :, :, :, start : start + part.shape[3]] = part
            self.cache.lengths[slot] += part.shape[3]

    def propose(self, slots: list[int], anchors: list[int]) -> Tensor:
        """Logits of the block that starts with each request's last token.

        Slot 0 of a block holds the anchor, the others the mask token. Slot k predicts the token k
        places after the anchor. Every slot sees the whole context and the whole block.

        Args:
            slots: of the requests, whose contexts are the tokens before their anchors.
            anchors: the last emitted token of each.

        Returns:
            [len(slots), block_size - 1, V], of the model's dtype.
        """
        size, device = self.block_size, self.cache.rows.device
        starts = torch.tensor([self.cache.lengths[slot] for slot in slots], device=device)
        table = self._rotary.at((starts.unsqueeze(1) + torch.arange(size, device=device)).flatten())
        tokens = torch.full((len(slots), size), self.config.mask_token_id, device=device)
        tokens[:, 0] = torch.tensor(anchors, device=device)
        windows = [self.cache.window(slot, size) for slot in slots]
        hidden = self._target.embedding[tokens.flatten()]
        for index, layer in enumerate(self._layers):
            heads = self._project(layer, layer.input_norm(hidden), table)
            hidden = layer.feed_forward(layer.out(attend(heads, windows, index)).add_(hidden))
        drafted = hidden.view(len(slots), size, -1)[:, 1:].flatten(0, 1)
        return self._target.head(self._norm(drafted)).view(len(slots), size - 1, -1)

    def _project(self, layer: DraftLayer, x: Tensor, table: tuple[Tensor, Tensor]) -> Heads:
        block = self.config.block
        heads = layer.qkv(x).view(len(x), -1, block.head_dim)
        queries, keys, values = heads.split_with_sizes(
            [block.num_heads, block.num_kv_heads, block.num_kv_heads], dim=1
        )
        return Heads(
            self._rotary.rotate(layer.query_norm(queries), table),
            self._rotary.rotate(layer.key_norm(keys), table),
            values,
        )
