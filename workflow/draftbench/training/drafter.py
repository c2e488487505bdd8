"""The DFlash drafter with gradients: many blocks of one sequence in one forward pass.

The same mathematics as the engine's drafter (`draftbench.engine.drafter`), laid out for training: all
blocks of a row are queries at once, and a mask says which context and which neighbours each one sees.
Parameter names are those of the checkpoint, so `state_dict` is what is saved.
Source: DFlash (arXiv 2602.06036), sections 3 and A.1.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional

from draftbench.errors import ShapeError
from draftbench.files import write_atomic, write_json
from draftbench.training.attention import Mask, attend
from draftbench.training.target import TargetShape, rotary_table, rotate


def feature_layer_ids(num_target_layers: int, num_draft_layers: int) -> tuple[int, ...]:
    """Target layers whose outputs the drafter reads: evenly spaced from 1 to the third from the end."""
    if num_draft_layers == 1:
        return (num_target_layers // 2,)
    first, last = 1, num_target_layers - 3
    step = (last - first) / (num_draft_layers - 1)
    return tuple(round(first + index * step) for index in range(num_draft_layers))


@dataclass(frozen=True)
class DrafterShape:
    """What a drafter is, beyond its target's sizes."""

    target: TargetShape
    num_layers: int
    block_size: int
    mask_token_id: int
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Target layers read."""
        return feature_layer_ids(self.target.num_hidden_layers, self.num_layers)

    def config(self) -> dict[str, Any]:
        """`config.json` of a checkpoint; SGLang's DFLASH reads it as it is."""
        target = self.target
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_size": target.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": target.num_attention_heads,
            "num_key_value_heads": target.num_key_value_heads,
            "head_dim": target.head_dim,
            "intermediate_size": target.intermediate_size,
            "hidden_act": "silu",
            "rms_norm_eps": target.rms_norm_eps,
            "rope_theta": target.rope_theta,
            "max_position_embeddings": 8192,
            "vocab_size": target.vocab_size,
            "block_size": self.block_size,
            "num_target_layers": target.num_hidden_layers,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
            "dflash_config": {
                "target_layer_ids": list(self.feature_layers),
                "mask_token_id": self.mask_token_id,
            },
        }


class RMSNorm(nn.Module):
    """Root-mean-square norm with a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension in float32; the result has x's dtype."""
        return functional.rms_norm(x.float(), (self.weight.numel(),), self.weight, self.eps).to(x.dtype)


class DraftAttention(nn.Module):
    """Attention of block slots to context and own block; the context is only keys and values."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        query = shape.num_attention_heads * shape.head_dim
        kv = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(query, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)

    def forward(self, x: Tensor, context: Tensor, rotary: tuple[Tensor, Tensor], mask: Mask) -> Tensor:
        """Slots [B, Q, E] and context [B, S, E] -> [B, Q, E]; rotary covers [context; x]."""
        cos, sin = rotary
        num_context = context.shape[1]
        query = self.q_norm(self._heads(self.q_proj(x)))
        both = torch.cat([context, x], dim=1)
        key = self.k_norm(self._heads(self.k_proj(both)))
        value = self._heads(self.v_proj(both))
        query = rotate(query, cos[..., num_context:, :], sin[..., num_context:, :])
        mixed = attend(query, rotate(key, cos, sin), value, mask)
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return projected


class DraftMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, Q, E] -> [B, Q, E]."""
        mixed: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return mixed


class DraftLayer(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = DraftAttention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = DraftMlp(shape)

    def forward(self, x: Tensor, context: Tensor, rotary: tuple[Tensor, Tensor], mask: Mask) -> Tensor:
        """[B, Q, E] -> [B, Q, E]; the context passes neither norm nor MLP."""
        x = x + self.self_attn(self.input_layernorm(x), context, rotary, mask)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class Drafter(nn.Module):
    """All blocks of a batch -> hidden states for the target's own head."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        target = shape.target
        self.shape = shape
        self.fc = nn.Linear(len(shape.feature_layers) * target.hidden_size, target.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(target.hidden_size, target.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(target) for _ in range(shape.num_layers))
        self.norm = RMSNorm(target.hidden_size, target.rms_norm_eps)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)

    def forward(
        self, embedded: Tensor, features: Tensor, block_positions: Tensor, positions: Tensor, mask: Mask
    ) -> Tensor:
        """Draft every block.

        Args:
            embedded: [B, N * block, E] embeddings of [anchor, MASK, MASK, ...] per block
            features: [B, S, layers * E] of the context
            block_positions: [B, N * block] int64
            positions: [B, S] int64 of the context
            mask: over [context; blocks], see `draftbench.training.blocks`

        Returns:
            [B, N * block, E]; slot k predicts the token at anchor + k (no shift).
        """
        context = self.hidden_norm(self.fc(features))
        target = self.shape.target
        rotary = rotary_table(
            torch.cat([positions, block_positions], dim=1), target.head_dim, target.rope_theta
        )
        x = embedded
        for layer in self.layers:
            x = layer(x, context, rotary, mask)
        normed: Tensor = self.norm(x)
        return normed

    def save(self, folder: Path) -> None:
        """Write `config.json` and `model.safetensors` in bf16, each atomically."""
        weights = {
            name: value.detach().to("cpu", torch.bfloat16).contiguous()
            for name, value in self.state_dict().items()
        }
        write_atomic(folder / "model.safetensors", save(weights))
        write_json(folder / "config.json", self.shape.config())

    @classmethod
    def load(cls, folder: Path, target: TargetShape, device: torch.device) -> "Drafter":
        """Read a checkpoint as float32.

        Raises:
            ShapeError: it reads other layers of the target than drafters that are trained here do.
        """
        config = json.loads((folder / "config.json").read_text())
        shape = DrafterShape(
            target=target,
            num_layers=config["num_hidden_layers"],
            block_size=config["block_size"],
            mask_token_id=config["dflash_config"]["mask_token_id"],
            bos_token_id=config.get("bos_token_id"),
            eos_token_id=config.get("eos_token_id"),
        )
        found = config["dflash_config"]["target_layer_ids"]
        if found != list(shape.feature_layers):
            raise ShapeError(
                f"{folder}/config.json: target_layer_ids: expected {list(shape.feature_layers)}, as trained "
                f"here, got {found}; try that drafter with the engine"
            )
        drafter = cls(shape)
        drafter.load_state_dict(load_file(folder / "model.safetensors"))
        return drafter.to(device).float()
