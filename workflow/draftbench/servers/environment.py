"""What is recorded of host and software, once per start of a service."""

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from draftbench import host

PACKAGES = (
    "draftbench",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "starlette",
    "uvicorn",
    "requests",
    "pydantic",
    "snakemake",
)
# Instructions that decide how fast a CPU multiplies matrices.
CPU_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "asimd",
    "bf16",
    "sve",
)
GIT_LIMIT_S = 10


def capture(repository: Path) -> dict[str, Any]:
    """Packages, kernel, CPU, memory, clocks policy, boot and git state of this host, as plain JSON values.

    Args:
        repository: directory of the workflow, whose commit is recorded.
    """
    return {
        "packages": _packages(),
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "boot_id": host.boot_id(),
        "git": _git(repository),
    }


def _packages() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _cpu() -> dict[str, Any]:
    text = Path("/proc/cpuinfo").read_text()
    names = re.findall(r"^(?:model name|Model|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = set(" ".join(re.findall(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)).split())
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "model": names[0] if names else None,
        "num_usable_cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
        "governor": governor.read_text().strip() if governor.exists() else None,
    }


def _git(repository: Path) -> dict[str, Any]:
    """Commit, and whether code or configuration differ from it; nulls outside a checkout."""
    commit = _run_git(repository, "rev-parse", "HEAD")
    status = _run_git(repository, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "is_dirty": None if status is None else bool(status)}


def _run_git(repository: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(repository), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or no checkout: recorded as unknown
    return answer.stdout.strip()
