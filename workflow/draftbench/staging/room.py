"""Where models are staged and cached, and whether there is room."""

import os
import shutil
from pathlib import Path

from draftbench import host
from draftbench.errors import StagingError

# Left free beside what is staged: logs, shared memory of the servers themselves.
RESERVE_BYTES = 1 << 30
GIB = 1 << 30


def cache_directory() -> Path:
    """Downloads and, where memory is short, staged models: `$XDG_CACHE_HOME/draftbench`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "draftbench"


def memory_directory() -> Path | None:
    """Staged models in memory, where the host has such a file system."""
    return host.TMPFS / f"draftbench-{os.getuid()}" / "models" if host.TMPFS.is_dir() else None


def fits_memory(directory: Path, num_bytes: int) -> bool:
    """Whether `num_bytes` more fit on a file system in memory, with a reserve for everything else."""
    return min(free_bytes(directory), available_memory_bytes()) >= num_bytes + RESERVE_BYTES


def require_room(directory: Path, num_bytes: int, what: str) -> None:
    """Check that `directory` can be written to and that `num_bytes` fit beside what is there.

    Raises:
        StagingError: one does not hold; the sentence says what is there, or how much is needed and free.
    """
    existing = _nearest(directory)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        found = "a directory without that right" if existing.is_dir() else "a file"
        raise StagingError(
            f"{directory}: expected to write models there, got {found} at {existing}; "
            "correct its rights, or set staging_root in the campaign to another directory"
        )
    free = free_bytes(directory)
    if free < num_bytes:
        raise StagingError(
            f"{directory}: expected {num_bytes / GIB:.2f} GiB of room for {what}, got {free / GIB:.2f} GiB; "
            "remove models there, or set staging_root in the campaign to another directory"
        )


def free_bytes(directory: Path) -> int:
    """Free bytes of the file system that holds, or would hold, `directory`."""
    return shutil.disk_usage(_nearest(directory)).free


def _nearest(directory: Path) -> Path:
    """The directory itself or, where it is still to be made, what it will be made in."""
    return next(path for path in (directory, *directory.absolute().parents) if path.exists())


def available_memory_bytes() -> int:
    """What the kernel can give out without swapping; what lies on tmpfs takes it away."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
