"""From settings to a loaded engine: the one place where models, caches and scheduler are put together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftbench.engine.request import EngineProtocol

Algorithm = Literal["DFLASH", "DDTREE"]


@dataclass(frozen=True)
class EngineSettings:
    """What an embedded engine is made from.

    Attributes:
        model_path: folder of the target: config.json, optionally generation_config.json, safetensors.
        draft_model_path: folder of a DFlash drafter trained for that target; needed with an algorithm.
        algorithm: None is autoregressive decoding, `DFLASH` verifies one block, `DDTREE` a tree.
        block_size: slots of a draft block, anchor included; None takes the drafter's own.
        budget: DDTree nodes without the root; None takes `block_size - 1`.
        dtype: of weights, caches and activations; `auto` is bfloat16 where the CPU computes in it.
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


def load_engine(settings: EngineSettings) -> EngineProtocol:
    """Read the models and build an engine that is not started yet.

    Raises:
        ConfigError: a file is missing or does not fit; the sentence names it.
    """
    raise NotImplementedError(settings)
