"""From settings to a loaded engine: the one place where models, caches and scheduler are put together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from draftbench.engine.cache import KVCache
from draftbench.engine.config import (
    DrafterConfig,
    TargetConfig,
    read_drafter_config,
    read_target_config,
    require_fit,
)
from draftbench.engine.drafter import Drafter
from draftbench.engine.llama import Llama
from draftbench.engine.profile import Profile
from draftbench.engine.proposer import Algorithm, Proposer
from draftbench.engine.runner import ModelRunner
from draftbench.engine.scheduler import Engine, Resolved
from draftbench.engine.validation import EngineLimits
from draftbench.engine.weights import WeightReader
from draftbench.errors import ConfigError
from draftbench.files import sha256_file, sha256_text


@dataclass(frozen=True)
class EngineSettings:
    """What an embedded engine is made from.

    Attributes:
        model_path: folder of the target: config.json, optionally generation_config.json, safetensors.
        draft_model_path: folder of a DFlash drafter trained for that target; goes with an algorithm only.
        algorithm: None is autoregressive decoding, `DFLASH` verifies one block, `DDTREE` a tree.
        block_size: slots of a draft block, anchor included; None takes the drafter's own.
        budget: DDTree nodes without the root, with DDTREE only; None takes `block_size - 1`.
        dtype: of weights, caches and activations; `auto` is bfloat16 where the device computes in it.
        device: `auto` is a CUDA device where there is one.
        max_running_requests: slots of the caches, so requests that share a round.
        context_length: prompt and output tokens of one request; None takes the target's maximum.
        random_seed: from which requests without a seed of their own get their random streams.
        num_threads: of torch on the CPU; None leaves torch's choice.
    """

    model_path: Path
    draft_model_path: Path | None = None
    algorithm: Algorithm | None = None
    block_size: int | None = None
    budget: int | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_running_requests: int = 8
    context_length: int | None = None
    random_seed: int = 0
    num_threads: int | None = None


@dataclass(frozen=True)
class Shape:
    """Sizes that follow from the settings and both configurations.

    Attributes:
        capacity: cache rows of a slot: the context and, behind it, one block or tree.
        budget: nodes without the root that a verification may have.
    """

    context_length: int
    capacity: int
    block_size: int
    budget: int


@torch.inference_mode()
def load_engine(settings: EngineSettings) -> Engine:
    """Read the models and build an engine that is not started yet.

    Raises:
        ConfigError: a file is missing or does not fit, or a setting is out of range.
        ShapeError: the drafter was not made for the target.
    """
    target_config = read_target_config(settings.model_path)
    drafter_config = _read_drafter_config(settings, target_config)
    shape = resolve_shape(settings, target_config, drafter_config)
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    reader = WeightReader(settings.model_path, dtype, device)
    feature_layers = drafter_config.target_layer_ids if drafter_config else ()
    target = Llama(target_config, reader, shape.capacity, feature_layers)
    cache_size = (settings.max_running_requests, shape.capacity, dtype, device)
    cache = KVCache(target_config.block, *cache_size)
    drafter = None
    if drafter_config is not None and settings.draft_model_path is not None:
        draft_cache = KVCache(drafter_config.block, *cache_size)
        draft_reader = WeightReader(settings.draft_model_path, dtype, device)
        drafter = Drafter(drafter_config, draft_reader, target, draft_cache, shape.block_size)
    runner = ModelRunner(target, cache, Proposer(settings.algorithm, drafter, shape.budget), Profile())
    limits = EngineLimits(
        vocab_size=target_config.vocab_size,
        context_length=shape.context_length,
        max_running_requests=settings.max_running_requests,
        budget=shape.budget,
        eos_token_ids=target_config.eos_token_ids,
    )
    return Engine(runner, limits, _resolve(settings, shape, target))


def resolve_device(name: str) -> torch.device:
    """The device of a name; `auto` is CUDA where there is one.

    Raises:
        ConfigError: CUDA was asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("expected a CUDA device for device 'cuda', got none; set device to 'cpu'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of a name; `auto` is bfloat16 where the device has instructions for it, else float32.

    Raises:
        ConfigError: the device does not compute in that dtype.
    """
    if name == "auto":
        is_fast = torch.cuda.is_bf16_supported() if device.type == "cuda" else has_bfloat16_instructions()
        return torch.bfloat16 if is_fast else torch.float32
    if name == "float16" and device.type == "cpu":
        raise ConfigError("expected dtype float32 or bfloat16 on a CPU, got float16; set another dtype")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def has_bfloat16_instructions() -> bool:
    """The CPU multiplies bfloat16 natively (AVX-512 BF16, AMX, or Arm's extension)."""
    path = Path("/proc/cpuinfo")
    words = set(path.read_text().split()) if path.exists() else set()
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16"})


def resolve_shape(settings: EngineSettings, target: TargetConfig, drafter: DrafterConfig | None) -> Shape:
    """Fill in the sizes.

    Raises:
        ConfigError: one is out of range.
    """
    context_length = target.max_length if settings.context_length is None else settings.context_length
    trained = drafter.block_size if drafter else 1
    block_size = trained if settings.block_size is None else settings.block_size
    if settings.budget is not None and settings.algorithm != "DDTREE":
        raise ConfigError(f"expected budget with DDTREE only, got it with {settings.algorithm}; leave it out")
    budget = block_size - 1 if settings.budget is None else settings.budget
    for name, value, low, high in (
        ("context_length", context_length, 2, target.max_length),
        ("max_running_requests", settings.max_running_requests, 1, 1024),
        ("block_size", block_size, 2 if drafter else 1, trained),
        ("budget", budget, 1 if drafter else 0, 1024),
        ("num_threads", 1 if settings.num_threads is None else settings.num_threads, 1, 1024),
    ):
        if not low <= value <= high:
            raise ConfigError(
                f"expected {name} from {low} to {high}, got {value}; give a value in that range"
            )
    return Shape(context_length, context_length + max(block_size, budget + 1), block_size, budget)


def _read_drafter_config(settings: EngineSettings, target: TargetConfig) -> DrafterConfig | None:
    if (settings.algorithm is None) != (settings.draft_model_path is None):
        got = f"{settings.algorithm or 'no algorithm'} and {settings.draft_model_path or 'no drafter'}"
        raise ConfigError(f"expected algorithm and draft_model_path together, got {got}; give both or none")
    if settings.draft_model_path is None:
        return None
    config = read_drafter_config(settings.draft_model_path)
    require_fit(config, target, settings.draft_model_path)
    return config


def _resolve(settings: EngineSettings, shape: Shape, target: Llama) -> Resolved:
    return Resolved(
        model_path=str(settings.model_path),
        draft_model_path=str(settings.draft_model_path) if settings.draft_model_path else None,
        algorithm=settings.algorithm,
        block_size=shape.block_size if settings.algorithm else None,
        dtype=str(target.embedding.dtype).removeprefix("torch."),
        device=str(target.embedding.device),
        num_threads=torch.get_num_threads(),
        order_of_one_row=target.head.order_of_one_row,
        random_seed=settings.random_seed,
        target_sha256=_hash_weights(settings.model_path),
        drafter_sha256=_hash_weights(settings.draft_model_path) if settings.draft_model_path else None,
    )


def _hash_weights(directory: Path) -> str:
    paths = WeightReader(directory, torch.float32, torch.device("cpu")).paths()
    return sha256_text("".join(sha256_file(path) for path in paths))
