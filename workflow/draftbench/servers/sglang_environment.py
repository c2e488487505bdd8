"""What SGLang's own environment and this host's GPUs are: asked before a run, recorded with every start."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from typing import Any

from draftbench.config import SglangEngine
from draftbench.config_errors import WORDS_OF_SECRETS
from draftbench.errors import ConfigError
from draftbench.servers.base import ENGINE_VARIABLE
from draftbench.servers.gpu import choose_gpus, query, read_gpus

PROBE_LIMIT_S = 180.0
PACKAGES = (
    "sglang",
    "sglang-ddtree",
    "sglang-kernel",
    "flashinfer-python",
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "numpy",
    "nvidia-nccl-cu13",
)
PLUGIN_GROUP = "sglang.srt.plugins"
# Both run under the interpreter of SGLang's environment, which need not have this package.
VERSIONS_PROGRAM = f"""
import importlib.metadata as metadata, json, platform
facts = {{"python": platform.python_version(), "versions": {{}}}}
for name in {PACKAGES!r}:
    try:
        facts["versions"][name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        facts["versions"][name] = None
facts["plugins"] = sorted(point.name for point in metadata.entry_points(group="{PLUGIN_GROUP}"))
"""
CUDA_PROGRAM = """
facts["error"] = None
try:
    import torch
    facts["cuda"] = torch.version.cuda
    torch.ones(1, device="cuda").item()
except Exception as error:
    facts["error"] = type(error).__name__ + ": " + str(error).splitlines()[0]
"""
PRINT_PROGRAM = """
print(json.dumps(facts))
"""
# Which GPUs are seen is recorded by their UUIDs, which say more; what opens a door is recorded nowhere.
UNRECORDED = re.compile(rf"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|\w*({WORDS_OF_SECRETS})\w*")
# What of a GPU's settings can change a measurement.
SETTINGS = ("persistence_mode", "power.limit", "ecc.mode.current", "compute_mode", "clocks.max.sm")


def probe(engine: SglangEngine, *, starts_cuda: bool) -> dict[str, Any]:
    """What the interpreter of SGLang's environment says of itself.

    Args:
        engine: whose `python` and `environment` are used.
        starts_cuda: also compute on a GPU, which takes some of its memory for a moment.

    Returns:
        `python`, `versions` by package (None: not installed), `plugins` of SGLang; with `starts_cuda` also
        `cuda` of torch and `error`, None where CUDA computes.

    Raises:
        ConfigError: it does not run.
    """
    program = VERSIONS_PROGRAM + (CUDA_PROGRAM if starts_cuda else "") + PRINT_PROGRAM
    try:
        done = subprocess.run(
            [engine.python, "-c", program],
            env=os.environ | engine.environment,
            capture_output=True,
            text=True,
            timeout=PROBE_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _fault(engine, str(error)) from None
    try:
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = [f"exit code {done.returncode}", *done.stderr.split("\n")]
        raise _fault(engine, [line for line in said if line.strip()][-1]) from None
    return facts


def _fault(engine: SglangEngine, got: str) -> ConfigError:
    return ConfigError(
        f"engine.python: expected {engine.python} to run and to import its packages, got: {got}; "
        "correct it, see envs/sglang.txt"
    )


def capture_sglang(engine: SglangEngine, num_gpus: int) -> dict[str, Any]:
    """SGLang's packages and variables, and a service's GPUs: names, driver, settings, how they are connected.

    Raises:
        DraftbenchError: the interpreter or `nvidia-smi` does not answer.
    """
    environment = os.environ | engine.environment
    gpus = choose_gpus(read_gpus(), num_gpus, environment)
    indices = {str(gpu.index) for gpu in gpus}
    rows = [
        row for row in query(f"--query-gpu=index,driver_version,{','.join(SETTINGS)}") if row[0] in indices
    ]
    facts = probe(engine, starts_cuda=False)
    return {
        "engine_packages": facts["versions"],
        "engine_python": facts["python"],
        "engine_variables": engine_variables(environment),
        "gpus": [f"{gpu.name}, {gpu.total_mib} MiB" for gpu in gpus],
        "gpu_indices": [gpu.index for gpu in gpus],
        "gpu_uuids": [gpu.uuid for gpu in gpus],
        "driver": rows[0][1] if rows else None,
        "gpu_settings": [dict(zip(SETTINGS, row[2:], strict=True)) for row in rows],
        "gpu_topology": _topology() if num_gpus > 1 else None,
    }


def engine_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables of a service's environment that steer CUDA and the engine's libraries."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if re.fullmatch(ENGINE_VARIABLE, name) and not UNRECORDED.fullmatch(name)
    }


def _topology() -> str | None:
    """The matrix of connections, None where this `nvidia-smi` has none or does not get to it."""
    command = ["nvidia-smi", "topo", "-m"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
