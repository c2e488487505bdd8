"""The target: a Llama-family decoder over a flat batch of rows of several requests."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftbench.engine.cache import Window
from draftbench.engine.config import BlockConfig, TargetConfig
from draftbench.engine.layers import Heads, Linear, RMSNorm, Rotary, attend
from draftbench.engine.weights import WeightReader


@dataclass(frozen=True)
class Rows:
    """The M rows of one forward.

    Attributes:
        token_ids: [M] int64.
        positions: absolute, for the rotary embedding, [M] int64; siblings of a tree share one.
        windows: the rows' requests, which together cover all rows in order.
    """

    token_ids: Tensor
    positions: Tensor
    windows: list[Window]


class DecoderLayer:
    """Weights of one pre-norm layer; query, key and value are one product, gate and up another."""

    def __init__(self, reader: WeightReader, prefix: str, config: BlockConfig) -> None:
        hidden, wide = config.hidden_size, config.intermediate_size
        num_query, num_kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self.input_norm = RMSNorm(reader.read(f"{prefix}.input_layernorm.weight", hidden), config.norm_eps)
        self.post_norm = RMSNorm(
            reader.read(f"{prefix}.post_attention_layernorm.weight", hidden), config.norm_eps
        )
        heads = (("q", num_query), ("k", num_kv), ("v", num_kv))
        qkv = [reader.read(f"{attention}.{name}_proj.weight", size, hidden) for name, size in heads]
        self.qkv = Linear(torch.cat(qkv))
        self.out = Linear(reader.read(f"{attention}.o_proj.weight", hidden, num_query))
        gate_up = [reader.read(f"{mlp}.{name}_proj.weight", wide, hidden) for name in ("gate", "up")]
        self.gate_up = Linear(torch.cat(gate_up))
        self.down = Linear(reader.read(f"{mlp}.down_proj.weight", hidden, wide))

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """The residual stream [M, E] after the layer's second half."""
        gate, up = self.gate_up(self.post_norm(hidden)).chunk(2, dim=-1)
        return self.down(functional.silu(gate).mul_(up)).add_(hidden)


class Llama:
    """The target model: embedding, layers, head, and the residual stream after chosen layers.

    Attributes:
        config: its shape.
        embedding: [V, E], which a DFlash drafter shares.
        head: hidden states to logits, which a DFlash drafter shares as well.
    """

    def __init__(
        self, config: TargetConfig, reader: WeightReader, num_positions: int, feature_layers: tuple[int, ...]
    ) -> None:
        """Read the weights.

        Args:
            config: the model's shape.
            reader: of its folder.
            num_positions: of the rotary table.
            feature_layers: ascending layers after which the residual stream is captured.
        """
        self.config = config
        block = config.block
        self.embedding = reader.read("model.embed_tokens.weight", config.vocab_size, block.hidden_size)
        self._layers = [
            DecoderLayer(reader, f"model.layers.{layer}", block) for layer in range(block.num_layers)
        ]
        self._norm = RMSNorm(reader.read("model.norm.weight", block.hidden_size), block.norm_eps)
        self.head = Linear(
            self.embedding
            if config.is_head_tied
            else reader.read("lm_head.weight", config.vocab_size, block.hidden_size)
        )
        self._rotary = Rotary(block, num_positions, self.embedding.dtype, self.embedding.device)
        self._feature_layers = feature_layers

    def forward(self, rows: Rows, logit_rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run all rows; writes their keys and values into their windows of the cache.

        Args:
            rows: what to run.
            logit_rows: rows whose logits are wanted, [R] int64.

        Returns:
            logits [R, V] and features [M, F * E], the residual stream after each feature layer,
            before any norm; None where no feature layer was asked for.
        """
        hidden = self.embedding[rows.token_ids]
        table = self._rotary.at(rows.positions)
        features = []
        for index, layer in enumerate(self._layers):
            hidden = self._attention(index, layer.input_norm(hidden), rows.windows, table).add_(hidden)
            hidden = layer.feed_forward(hidden)
            if index in self._feature_layers:
                features.append(hidden)
        logits = self.head(self._norm(hidden[logit_rows]))
        return logits, torch.cat(features, dim=-1) if features else None

    def _attention(
        self, index: int, x: Tensor, windows: list[Window], table: tuple[Tensor, Tensor]
    ) -> Tensor:
        block = self.config.block
        layer = self._layers[index]
        heads = layer.qkv(x).view(len(x), -1, block.head_dim)
        rotated, values = heads.split_with_sizes(
            [block.num_heads + block.num_kv_heads, block.num_kv_heads], dim=1
        )
        queries, keys = self._rotary.rotate(rotated, table).split_with_sizes(
            [block.num_heads, block.num_kv_heads], dim=1
        )
        return layer.out(attend(Heads(queries, keys, values), windows, index))
