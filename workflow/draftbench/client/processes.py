"""CPU time, frequency and processes from `/proc`: who works on this machine."""

import os
from dataclasses import dataclass
from pathlib import Path

from draftbench.host import process_stat

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTimes:
    """Core-seconds since boot, all cores together."""

    busy_s: float
    steal_s: float


def cpu_times() -> CpuTimes:
    """From the first line of `/proc/stat`; guests are already part of user time."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(field) / TICKS_PER_S for field in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return CpuTimes(busy_s=user + nice + system + irq + softirq, steal_s=steal)


def cpu_mhz() -> float | None:
    """Mean frequency of all cores now, None where the machine does not tell."""
    values = []
    for line in (PROC / "cpuinfo").read_text().splitlines():
        if line.startswith("cpu MHz"):
            values.append(float(line.partition(":")[2]))
    return sum(values) / len(values) if values else None


def process_tree(pid: int) -> frozenset[int]:
    """`pid`, its descendants, and its session: children of a dead parent leave the tree, not the session."""
    parents: dict[int, int] = {}
    sessions: dict[int, int] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        fields = process_stat(int(entry.name))
        if fields is not None:
            parents[int(entry.name)], sessions[int(entry.name)] = int(fields[1]), int(fields[3])
    session = sessions.get(pid, pid)  # a leader that has ended leaves its number to its session
    own_session = sessions.get(os.getpid())
    members = {pid} | {
        child for child, value in sessions.items() if session == value and session != own_session
    }
    grown = True
    while grown:
        children = {child for child, parent in parents.items() if parent in members} - members
        members |= children
        grown = bool(children)
    return frozenset(members - {os.getpid()})


def cpu_seconds(pids: frozenset[int]) -> dict[int, float]:
    """CPU seconds that each of `pids` has used; those that have ended are left out."""
    used = {}
    for pid in pids:
        fields = process_stat(pid)
        if fields is not None:
            used[pid] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return used
