"""Processes and sockets as /proc shows them."""

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from draftbench.host import process_stat, start_ticks

SESSION_FIELD = 6
LISTEN = "0A"
MAX_COMMAND_CHARACTERS = 100


Filter = Callable[[int], bool]


def all_pids() -> Iterator[int]:
    """Every process that can be seen now."""
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def living(is_wanted: Filter) -> list[int]:
    """Processes that have not ended (zombies have) and that `is_wanted` accepts."""
    return [pid for pid in all_pids() if start_ticks(pid) is not None and is_wanted(pid)]


def session_id(pid: int) -> int | None:
    """The process's session, None when it has ended."""
    stat = process_stat(pid)
    return int(stat[SESSION_FIELD - 3]) if stat is not None else None


def variable(pid: int, name: str) -> str | None:
    """A variable of the environment that the process was started with; None also where we may not look."""
    prefix = f"{name}=".encode()
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((e[len(prefix) :].decode(errors="replace") for e in entries if e.startswith(prefix)), None)


def command(pid: int) -> str:
    """The beginning of the process's command line on one line, for sentences."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "unknown"
    return textwrap.shorten(text, MAX_COMMAND_CHARACTERS, placeholder="…") or "unknown"


def listeners(port: int) -> set[int]:
    """Inodes of the sockets that listen at `port` on any address of this host."""
    found = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        lines = table.read_text().splitlines()[1:] if table.exists() else []
        for fields in map(str.split, lines):
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(int(fields[9]))
    return found


def owners(port: int) -> set[int]:
    """Processes that listen at `port`; those of other users cannot be seen."""
    names = {f"socket:[{inode}]" for inode in listeners(port)}
    return {pid for pid in all_pids() if names and names & _open_files(pid)}


def _open_files(pid: int) -> set[str]:
    names = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                names.add(os.readlink(entry.path))
            except OSError:
                continue  # closed in between
    except OSError:
        return set()  # ended, or not ours to look at
    return names
