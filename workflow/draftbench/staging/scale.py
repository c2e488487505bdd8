"""The same model at the cost of a larger one: an exact transform of a target and its drafter.

Every change leaves the function as it is, bit for bit up to the order in which a library sums:

- The residual stream gets new places that stay zero: nothing writes to them, and what reads them multiplies
  zero. RMSNorm divides by the mean over all places, now `hidden_factor` times as many; norm weights divided
  by its root and an epsilon divided by it undo that. `hidden_factor` is a power of four: no bit is lost.
- New heads and new intermediate units compute, but the columns that would carry them to the residual stream
  are zero. New query heads keep their key-value group, original heads come first.
- New layers compute, but their two output projections are zero. They stand between the original ones, at
  even distances.
- Query and key norms run over one head, whose size stays. As they share the divided epsilon, the projections
  before them are divided like the norm weights.

All other new weights are random, so the hardware has honest work to do. A DFlash drafter keeps
reading the residual stream after the original layers, wherever these now stand.
"""

import json
import shutil
from dataclasses import asdict, dataclass, fields
from math import isqrt
from pathlib import Path
from typing import Any

from draftbench.errors import StagingError
from draftbench.files import write_json
from draftbench.staging.growth import Grower, stored_tensors
from draftbench.staging.shards import SHARD_BYTES, PlannedTensor, write_checkpoint

Config = dict[str, Any]
_DTYPES = {0: None, 16: "BF16", 32: "F32"}  # by ScaledShape.weight_bits
_DTYPE_NAMES = {16: "bfloat16", 32: "float32"}


@dataclass(frozen=True)
class ScaledShape:
    """The shape whose cost a pair takes on.

    Attributes:
        hidden_factor: new hidden width / old one, a power of four.
        num_layers: layers of the target.
        intermediate_size: of target and drafter.
        num_attention_heads: of target and drafter, the head's size stays.
        num_key_value_heads: likewise; the number of query heads per KV head stays.
        num_drafter_layers: 0 keeps the drafter's.
        weight_bits: 16 stores bfloat16, 32 float32, 0 what the original has.
    """

    hidden_factor: int
    num_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    num_drafter_layers: int = 0
    weight_bits: int = 0

    @classmethod
    def from_mapping(cls, values: dict[str, int]) -> "ScaledShape":
        """The shape a campaign's `scale_to` asks for.

        Raises:
            StagingError: a key is missing or unknown.
        """
        known = {field.name for field in fields(cls)}
        optional = {"num_drafter_layers", "weight_bits"}
        required = known - optional
        wrong = sorted(set(values) - known) or sorted(required - set(values))
        if wrong:
            raise StagingError(
                f"scale_to: expected the keys {', '.join(sorted(required))} and at most "
                f"{', '.join(sorted(optional))}, got {', '.join(sorted(values)) or 'none'}; "
                f"{wrong[0]} is missing or unknown"
            )
        return cls(**values)


def scale_pair(
    target: Path, drafter: Path, out_target: Path, out_drafter: Path, shape: ScaledShape, *, seed: int = 0
) -> int:
    """Write the scaled target and drafter; returns the bytes of their weights. See `scale_checkpoint`."""
    num_bytes = scale_checkpoint(target, out_target, shape, seed)
    return num_bytes + scale_checkpoint(drafter, out_drafter, shape, seed)


def scale_checkpoint(
    source: Path, out: Path, shape: ScaledShape, seed: int = 0, *, shard_bytes: int = SHARD_BYTES
) -> int:
    """Write the scaled form of one checkpoint into the folder `out`; returns the bytes of its weights.

    A folder whose config.json has a `dflash_config` is a drafter. The config is written last, so a
    folder with one is whole. Files beside weights and config (tokenizer, generation config) are copied.

    Args:
        source: folder with config.json and safetensors of a Llama-family target or its DFlash drafter.
        out: made if it is missing.
        shape: the same one for target and drafter.
        seed: of the new random weights; the same seed gives the same files.
        shard_bytes: a new file is begun at this size; also the unit of parallel work.

    Raises:
        StagingError: the checkpoint has a form that the transform does not know, or the shape is too small.
        OSError: the file system is full.
    """
    config = json.loads((source / "config.json").read_text())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    scaled = scaled_config(config, shape, source)
    tensors = plan_tensors(source, config, scaled, seed, dtype=_DTYPES[shape.weight_bits])
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if file.is_file() and file.name != "config.json" and "safetensors" not in file.name:
            shutil.copyfile(file, out / file.name)
    num_bytes = write_checkpoint(tensors, out, shard_bytes)
    write_json(out / "scaling.json", {"shape": asdict(shape), "seed": seed, "original": config})
    write_json(out / "config.json", scaled)
    return num_bytes


def scaled_config(config: Config, shape: ScaledShape, origin: Path) -> Config:
    """The config.json of the scaled checkpoint.

    Raises:
        StagingError: the shape is smaller than the checkpoint, or splits the heads in other groups.
    """
    is_drafter = "dflash_config" in config
    num_layers = config["num_hidden_layers"]
    new = {
        "hidden_size": config["hidden_size"] * shape.hidden_factor,
        "num_hidden_layers": (shape.num_drafter_layers or num_layers) if is_drafter else shape.num_layers,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
    }
    _check_shape(config, new, shape, origin)
    scaled = config | new | {"rms_norm_eps": config["rms_norm_eps"] / shape.hidden_factor}
    if shape.weight_bits:
        scaled["dtype"] = _DTYPE_NAMES[shape.weight_bits]
        scaled.pop("torch_dtype", None)
    if "layer_types" in config:
        places = layer_places(num_layers, new["num_hidden_layers"])
        types = dict(zip(places, config["layer_types"], strict=True))
        scaled["layer_types"] = [
            types.get(i, config["layer_types"][-1]) for i in range(scaled["num_hidden_layers"])
        ]
    if is_drafter:
        places = layer_places(config["num_target_layers"], shape.num_layers)
        ids = config["dflash_config"]["target_layer_ids"]
        scaled["num_target_layers"] = shape.num_layers
        scaled["dflash_config"] = config["dflash_config"] | {"target_layer_ids": [places[i] for i in ids]}
    return scaled


def layer_places(num_layers: int, num_scaled_layers: int) -> list[int]:
    """Where each original layer stands among the scaled ones: even distances, the first at 0."""
    return [layer * num_scaled_layers // num_layers for layer in range(num_layers)]


def _check_shape(config: Config, new: dict[str, int], shape: ScaledShape, origin: Path) -> None:
    factor = shape.hidden_factor
    if factor < 1 or factor & (factor - 1) or isqrt(factor) ** 2 != factor:
        raise StagingError(f"scale_to.hidden_factor: expected a power of four (1, 4, 16), got {factor}")
    if shape.weight_bits not in _DTYPES:
        raise StagingError(
            f"scale_to.weight_bits: expected 16, 32 or 0 (as they are), got {shape.weight_bits}"
        )
    for key, value in new.items():
        if value < config[key]:
            raise StagingError(f"scale_to: {key} {value} is below the {config[key]} of {origin}/config.json")
    before = config["num_attention_heads"] / config["num_key_value_heads"]
    after = shape.num_attention_heads / shape.num_key_value_heads
    if before != after:
        raise StagingError(
            f"scale_to: expected {before:g} query heads per KV head as in {origin}/config.json, got {after:g}"
        )
    if "quantization_config" in config:
        raise StagingError(f"{origin}/config.json: a quantised checkpoint cannot be scaled; stage it in bf16")


def plan_tensors(
    source: Path, config: Config, scaled: Config, seed: int, *, dtype: str | None = None
) -> list[PlannedTensor]:
    """Every tensor of the scaled checkpoint, layer by layer; nothing is computed yet.

    Args:
        source: folder of the original weights.
        config: its config.json, `head_dim` set.
        scaled: what `scaled_config` made of it.
        seed: of the new random weights.
        dtype: safetensors' name of the new dtype, None keeps the original's.

    Raises:
        StagingError: a tensor has no rule, or another shape than config.json says.
    """
    stored = stored_tensors(source)
    prefix = "layers." if "dflash_config" in config else "model.layers."
    suffixes = [name.removeprefix(f"{prefix}0.") for name in stored if name.startswith(f"{prefix}0.")]
    grower = Grower(
        _sizes(config),
        _sizes(scaled),
        divisor=isqrt(scaled["hidden_size"] // config["hidden_size"]),
        has_head_norms=any("q_norm" in suffix for suffix in suffixes),
        dtype=dtype,
        seed=seed,
    )
    plan = [grower.grow(n, t, is_new=False) for n, t in stored.items() if not n.startswith(prefix)]
    places = layer_places(config["num_hidden_layers"], scaled["num_hidden_layers"])
    for layer in range(scaled["num_hidden_layers"]):
        old_layer = places.index(layer) if layer in places else 0
        for suffix in suffixes:
            template = stored[f"{prefix}{old_layer}.{suffix}"]
            plan.append(grower.grow(f"{prefix}{layer}.{suffix}", template, is_new=layer not in places))
    return plan


def _sizes(config: Config) -> dict[str, int]:
    """The sizes that `Growth` names."""
    head = config["head_dim"]
    return {
        "vocab": config["vocab_size"],
        "hidden": config["hidden_size"],
        "query": config["num_attention_heads"] * head,
        "key-value": config["num_key_value_heads"] * head,
        "intermediate": config["intermediate_size"],
        "head": head,
        "features": len(config.get("dflash_config", {}).get("target_layer_ids", ())),
        "one": 1,
    }
