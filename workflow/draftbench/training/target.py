"""The frozen target, with its layers' features: for generation in large batches and for training.

Weights are fused (q, k, v in one matrix; gate and up in one) because at these model sizes the number
of kernels decides the speed.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from draftbench.errors import StagingError
from draftbench.training.attention import Mask, attend

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class TargetShape:
    """Sizes of a Llama-family model, as its `config.json` names them."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    is_tied: bool

    @classmethod
    def from_folder(cls, folder: Path) -> "TargetShape":
        """Read `folder/config.json`.

        Raises:
            StagingError: the rotary embedding is scaled, which this module does not compute.
        """
        config = json.loads((folder / "config.json").read_text())
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise StagingError(
                f"{folder}/config.json: expected an unscaled rotary embedding, got {rope}; use another target"
            )
        heads = config["num_attention_heads"]
        return cls(
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocab_size=config["vocab_size"],
            rms_norm_eps=config["rms_norm_eps"],
            rope_theta=float(config.get("rope_theta") or rope.get("rope_theta", 10000.0)),
            is_tied=config.get("tie_word_embeddings", False),
        )


def rotary_table(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of absolute positions.

    Args:
        positions: [..., S] int64
        head_dim: D
        theta: base of the wavelengths

    Returns:
        two tensors [..., 1, S, D] float32, ready to broadcast over heads.
    """
    exponent = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angle = positions.float().unsqueeze(-1) / theta**exponent
    angle = torch.cat([angle, angle], dim=-1).unsqueeze(-3)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [B, H, S, D], computed in the wider of both dtypes, returned in x's."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


class TargetLayer(nn.Module):
    """One decoder layer; how it attends is the caller's."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        query = shape.num_attention_heads * shape.head_dim
        kv = shape.num_key_value_heads * shape.head_dim
        self.input_norm = nn.Parameter(torch.empty(shape.hidden_size))
        self.post_norm = nn.Parameter(torch.empty(shape.hidden_size))
        self.qkv = nn.Parameter(torch.empty(query + 2 * kv, shape.hidden_size))
        self.output = nn.Parameter(torch.empty(shape.hidden_size, query))
        self.gate_up = nn.Parameter(torch.empty(2 * shape.intermediate_size, shape.hidden_size))
        self.down = nn.Parameter(torch.empty(shape.hidden_size, shape.intermediate_size))

    def project(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [B, H, S, D], rotated keys and plain values [B, K, S, D] of hidden [B, S, E]."""
        shape = self.shape
        x = functional.rms_norm(hidden, (shape.hidden_size,), self.input_norm, shape.rms_norm_eps)
        heads = functional.linear(x, self.qkv).view(*x.shape[:2], -1, shape.head_dim).transpose(1, 2)
        num_heads, num_kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        rotated = rotate(heads[:, : num_heads + num_kv_heads], cos, sin)
        return rotated[:, :num_heads], rotated[:, num_heads:], heads[:, num_heads + num_kv_heads :]

    def finish(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Output projection, residual and MLP; mixed [B, H, S, D] -> [B, S, E]."""
        shape = self.shape
        hidden = hidden + functional.linear(mixed.transpose(1, 2).flatten(2), self.output)
        x = functional.rms_norm(hidden, (shape.hidden_size,), self.post_norm, shape.rms_norm_eps)
        gate, up = functional.linear(x, self.gate_up).chunk(2, dim=-1)
        return hidden + functional.linear(functional.silu(gate) * up, self.down)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Mask) -> Tensor:
        """The whole layer over a masked batch, [B, S, E] -> [B, S, E]."""
        query, key, value = self.project(hidden, cos, sin)
        return self.finish(hidden, attend(query, key, value, mask))


class Target(nn.Module):
    """A frozen Llama-family model."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.empty(shape.vocab_size, shape.hidden_size))
        self.norm = nn.Parameter(torch.empty(shape.hidden_size))
        self.layers = nn.ModuleList(TargetLayer(shape) for _ in range(shape.num_hidden_layers))
        self.head = self.embedding if shape.is_tied else nn.Parameter(torch.empty_like(self.embedding))

    @classmethod
    def load(cls, folder: Path, device: torch.device, dtype: torch.dtype) -> "Target":
        """Read `config.json` and all `*.safetensors` of a folder in Hugging Face's layout."""
        shape = TargetShape.from_folder(folder)
        with torch.device("meta"):
            target = cls(shape)
        weights = {name: x for path in folder.glob("*.safetensors") for name, x in load_file(path).items()}
        target.load_state_dict(_fused_weights(weights, shape), assign=True)
        if shape.is_tied:
            target.head = target.embedding
        return target.requires_grad_(False).to(device, dtype).eval()

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """`rotary_table` of this target, in its dtype."""
        cos, sin = rotary_table(positions, self.shape.head_dim, self.shape.rope_theta)
        return cos.to(self.embedding.dtype), sin.to(self.embedding.dtype)

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Mask, feature_layers: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """Normed last hidden states and features of a batch.

        Args:
            ids: [B, S] int64
            positions: [B, S] int64
            mask: which positions see which
            feature_layers: layers whose output is wanted; layer l's feature is the residual stream AFTER it

        Returns:
            last hidden [B, S, E] and features [B, S, len(feature_layers) * E]
        """
        hidden = functional.embedding(ids, self.embedding)
        cos, sin = self.rotary(positions)
        features = []
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, cos, sin, mask)
            if index in feature_layers:
                features.append(hidden)
        return self.final_norm(hidden), torch.cat(features, dim=-1) if features else hidden[..., :0]

    def forward_with(self, hidden: Tensor, positions: Tensor, attend_layer: Attend) -> Tensor:
        """Normed last hidden states of embedded tokens [B, S, E] where the caller attends, cache and all."""
        cos, sin = self.rotary(positions)
        for index, module in enumerate(self.layers):
            layer: TargetLayer = module  # type: ignore[assignment]
            query, key, value = layer.project(hidden, cos, sin)
            hidden = layer.finish(hidden, attend_layer(index, query, key, value))
        return self.final_norm(hidden)

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The norm before the head."""
        return functional.rms_norm(hidden, (self.shape.hidden_size,), self.norm, self.shape.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [N, V] of normed hidden states [N, E]; a bf16 result would tie near-equal tokens."""
        if hidden.is_cuda and hidden.dtype != torch.float32:
            return torch.mm(hidden, self.head.T, out_dtype=torch.float32)
        return (hidden @ self.head.T).float()


def _fused_weights(weights: dict[str, Tensor], shape: TargetShape) -> dict[str, Tensor]:
    """Hugging Face's tensors under this module's names, fused."""
    fused = {
        "embedding": weights["model.embed_tokens.weight"],
        "norm": weights["model.norm.weight"],
        "head": weights["model.embed_tokens.weight" if shape.is_tied else "lm_head.weight"],
    }
    for index in range(shape.num_hidden_layers):
        old, new = f"model.layers.{index}.", f"layers.{index}."
        parts = {
            "input_norm": ["input_layernorm"],
            "post_norm": ["post_attention_layernorm"],
            "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            "output": ["self_attn.o_proj"],
            "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
            "down": ["mlp.down_proj"],
        }
        for name, sources in parts.items():
            fused[new + name] = torch.cat([weights[f"{old}{source}.weight"] for source in sources])
    return fused
