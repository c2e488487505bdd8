"""What the engine reads from the config.json of a target and of a drafter, and whether the two fit."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftbench.errors import ConfigError, ShapeError


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3's stretching of low rotary frequencies.

    Attributes:
        factor: by which wavelengths above `original_length / low_freq_factor` grow.
        original_length: positions the model was trained on before the stretching.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int


@dataclass(frozen=True)
class BlockConfig:
    """The shape that a stack of Llama-family layers has; target and drafter share it."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None


@dataclass(frozen=True)
class TargetConfig:
    """A Llama-family target.

    Attributes:
        max_length: positions the model was made for.
        is_head_tied: the output head is the embedding table.
        eos_token_ids: tokens that end a text.
    """

    block: BlockConfig
    vocab_size: int
    max_length: int
    is_head_tied: bool
    eos_token_ids: frozenset[int]


@dataclass(frozen=True)
class DrafterConfig:
    """A DFlash drafter.

    Attributes:
        block_size: slots of the block it was trained on, the anchor included.
        target_layer_ids: layers of the target whose outputs it reads.
        num_target_layers: layers of the target it was trained for.
        mask_token_id: the token that stands in the slots to be drafted.
    """

    block: BlockConfig
    vocab_size: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    mask_token_id: int


def read_target_config(directory: Path) -> TargetConfig:
    """Read `config.json` and, where it exists, `generation_config.json`.

    Raises:
        ConfigError: a file or key is missing, or the model is of another family.
    """
    path = directory / "config.json"
    raw = _read_json(path)
    if raw.get("model_type") != "llama":
        raise ConfigError(
            f"expected model_type 'llama', got {raw.get('model_type')!r} in {path}; give a Llama model"
        )
    _require_plain_layers(raw, path)
    generation_path = directory / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.exists() else {}
    return TargetConfig(
        block=_read_block(raw, path),
        vocab_size=_integer(raw, "vocab_size", path),
        max_length=_integer(raw, "max_position_embeddings", path),
        is_head_tied=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_id_set(generation.get("eos_token_id")) | _id_set(raw.get("eos_token_id")),
    )


def read_drafter_config(directory: Path) -> DrafterConfig:
    """Read a DFlash drafter's `config.json`, the format that SGLang's DFLASH loads.

    Raises:
        ConfigError: the file or a key is missing, or the layers are of another kind.
    """
    path = directory / "config.json"
    raw = _read_json(path)
    _require_plain_layers(raw, path)
    dflash = raw.get("dflash_config")
    if not isinstance(dflash, dict) or not isinstance(dflash.get("target_layer_ids"), list):
        raise ConfigError(
            f"expected dflash_config with target_layer_ids and mask_token_id, got {dflash!r} in {path}; "
            "give a DFlash drafter"
        )
    return DrafterConfig(
        block=_read_block(raw, path),
        vocab_size=_integer(raw, "vocab_size", path),
        block_size=_integer(raw, "block_size", path),
        target_layer_ids=tuple(int(layer) for layer in dflash["target_layer_ids"]),
        num_target_layers=_integer(raw, "num_target_layers", path),
        mask_token_id=_integer(dflash, "mask_token_id", path),
    )


def require_fit(drafter: DrafterConfig, target: TargetConfig, directory: Path) -> None:
    """Check that a drafter was made for a target of this shape.

    Raises:
        ShapeError: the first property that differs.
    """
    ids, last = drafter.target_layer_ids, target.block.num_layers - 1
    are_layers = bool(ids) and all(0 <= layer <= last for layer in ids)
    is_token = 0 <= drafter.mask_token_id < target.vocab_size
    for name, expected, got, is_fit in (
        ("hidden_size", target.block.hidden_size, drafter.block.hidden_size, None),
        ("vocab_size", target.vocab_size, drafter.vocab_size, None),
        ("num_target_layers", target.block.num_layers, drafter.num_target_layers, None),
        ("target_layer_ids", f"layers from 0 to {last}", list(ids), are_layers),
        ("mask_token_id", f"an id below {target.vocab_size}", drafter.mask_token_id, is_token),
        ("block_size", "at least 2", drafter.block_size, drafter.block_size >= 2),
    ):
        if not (expected == got if is_fit is None else is_fit):
            raise ShapeError(
                f"expected {name} {expected} to fit the target, got {got} in {directory / 'config.json'}; "
                "give a drafter trained for this target"
            )


def _read_block(raw: dict[str, Any], path: Path) -> BlockConfig:
    num_heads = _integer(raw, "num_attention_heads", path)
    hidden_size = _integer(raw, "hidden_size", path)
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return BlockConfig(
        num_layers=_integer(raw, "num_hidden_layers", path),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
        head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
        intermediate_size=_integer(raw, "intermediate_size", path),
        norm_eps=float(raw["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        rope_scaling=_read_scaling(rope, path),
    )


def _read_scaling(rope: dict[str, Any], path: Path) -> Llama3Scaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ConfigError(
            f"expected rope_type 'default' or 'llama3', got {kind!r} in {path}; give another target"
        )
    return Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_length=int(rope["original_max_position_embeddings"]),
    )


def _require_plain_layers(raw: dict[str, Any], path: Path) -> None:
    for key, plain in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if raw.get(key, plain) != plain:
            raise ConfigError(
                f"expected {key} {plain!r}, got {raw[key]!r} in {path}; give a model without that variation"
            )
    if raw.get("layer_types") and set(raw["layer_types"]) != {"full_attention"}:
        raise ConfigError(
            f"expected layer_types of full_attention only, got {sorted(set(raw['layer_types']))} in {path}; "
            "give a model without sliding windows"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"expected a JSON object in {path}, got {error}; stage the model again") from error
    if not isinstance(value, dict):
        raise ConfigError(f"expected a JSON object in {path}, got a {type(value).__name__}; stage it again")
    return value


def _integer(raw: dict[str, Any], key: str, path: Path) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"expected an integer {key}, got {value!r} in {path}; give a complete config.json")
    return value


def _id_set(value: int | list[int] | None) -> frozenset[int]:
    return frozenset([value] if isinstance(value, int) else value or [])
