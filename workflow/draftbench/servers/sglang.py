"""The launch of a real SGLang server.

What SGLang would choose by itself, and differently for different algorithms, is given in every launch:
attention, sampling and grammar backend, page size, cache policy, running requests, CUDA-graph sizes, seed.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftbench.config import Method, SglangEngine
from draftbench.errors import ConfigError
from draftbench.servers.base import HOST, Launch
from draftbench.servers.guards import choose_port
from draftbench.servers.sglang_flags import (
    FlagTable,
    Value,
    as_arguments,
    extra_options,
    find_flag_table,
    speculative_options,
)

MODEL_NAME = "target"
# Makes accept lengths up: a number measured under it would be fiction.
SIMULATION_PREFIX = "SGLANG_SIMULATE_ACC_"
# NVML counts GPUs by bus; CUDA does so only when told. Models lie in a folder: no server asks a hub.
ENVIRONMENT = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def build_sglang_launch(
    engine: SglangEngine,
    method: Method,
    target: Path,
    drafter: Path | None,
    *,
    tp: int,
    port: int,
    seed: int,
) -> Launch:
    """`python -m sglang.launch_server …` for one method.

    Args:
        engine: SGLang's version, environment and settings.
        method: what drafts.
        target: folder of the target.
        drafter: folder of the drafter, None for autoregressive decoding.
        tp: GPUs that share every layer.
        port: of the server; 0 builds the launch's fingerprint. NCCL gets a free port of its own.
        seed: of the server's sampling.

    Raises:
        ConfigError: the version is unknown, an extra option is unknown or pinned, or the environment
            makes SGLang simulate its accept length.
    """
    environment = ENVIRONMENT | engine.environment
    refuse_simulation(os.environ | environment)
    table = find_flag_table(engine.version)
    pinned = _pinned_options(engine, tp=tp, port=port, seed=seed)
    drafting = speculative_options(table, method)
    options = {"model-path": str(target)} | pinned | drafting
    if drafter is not None:
        options |= {
            "speculative-draft-model-path": str(drafter),
            "speculative-draft-attention-backend": engine.attention_backend,
        }
    options |= extra_options(table, engine, method, options)
    argv = (engine.python, "-m", "sglang.launch_server", *as_arguments(options))
    expected = _expected(table, engine, target, drafter, drafting) | {"tp_size": tp, "random_seed": seed}
    return Launch(argv=argv, environment=environment, expected=expected, engine="sglang")


def refuse_simulation(environment: Mapping[str, str]) -> None:
    """Check that no variable makes SGLang invent accept lengths.

    Raises:
        ConfigError: one does; the sentence names it.
    """
    found = sorted(name for name in environment if name.startswith(SIMULATION_PREFIX))
    if found:
        raise ConfigError(
            f"environment: expected no {SIMULATION_PREFIX}* variable, "
            f"got {found[0]}={environment[found[0]]}; it makes SGLang invent its accept length: unset it"
        )


def cuda_graph_sizes(max_running_requests: int) -> list[int]:
    """Batch sizes whose decode step is captured: powers of two up to the largest, and the largest."""
    sizes = [1 << power for power in range(max_running_requests.bit_length())]
    return sorted({*sizes, max_running_requests})


def _choose_nccl_port(port: int) -> int:
    while (chosen := choose_port("auto")) == port:
        pass
    return chosen


def _pinned_options(engine: SglangEngine, *, tp: int, port: int, seed: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "served-model-name": MODEL_NAME,
        "dtype": engine.dtype,
        "host": HOST,
        "port": port,
        "nccl-port": _choose_nccl_port(port) if port else 0,
        "tp-size": tp,
        "attention-backend": engine.attention_backend,
        "sampling-backend": "pytorch",
        "grammar-backend": "none",
        "page-size": engine.page_size,
        "max-running-requests": engine.max_running_requests,
        "mem-fraction-static": engine.mem_fraction_static,
        "cuda-graph-bs-decode": cuda_graph_sizes(engine.max_running_requests),
        "random-seed": seed,
        "stream-interval": 1,
        "decode-log-interval": 40,
        "enable-cache-report": True,
        "skip-server-warmup": True,  # readiness is a generation of our own, warm-up is the client's
    }
    if engine.context_length is not None:
        options["context-length"] = engine.context_length
    if not engine.radix_cache:
        options["disable-radix-cache"] = True
    return options


def _expected(
    table: FlagTable,
    engine: SglangEngine,
    target: Path,
    drafter: Path | None,
    drafting: Mapping[str, Value],
) -> dict[str, Any]:
    """What `/server_info` must say, by its own keys."""
    expected: dict[str, Any] = {
        "model_path": str(target),
        "served_model_name": MODEL_NAME,
        "dtype": engine.dtype,
        "attention_backend": engine.attention_backend,
        "page_size": engine.page_size,
        "disable_radix_cache": not engine.radix_cache,
        "speculative_algorithm": None,
        "speculative_draft_model_path": None if drafter is None else str(drafter),
    }
    if table.release is not None:
        expected["version"] = table.release
    return expected | {name.replace("-", "_"): value for name, value in drafting.items()}
