"""What the services ran on: what all share, where they differ, and whether two may be compared."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftbench.files import canonical_json, sha256_text
from draftbench.records import CellResult
from draftbench.report.tex import number

# Parts of an environment that change a measurement; the rest (temperatures, paths, times) may differ. So may
# the memory's size: some virtual machines are given more of it while they run.
DECISIVE_KEYS = (
    "packages",
    "python",
    "engine_packages",
    "engine_python",
    "engine_variables",
    "kernel",
    "machine",
    "cpu",
    "gpus",
    "driver",
    "gpu_topology",
)

# Part of a method, not of what the methods share: the baseline's server has no use for it.
METHOD_PACKAGES = frozenset({"sglang-ddtree"})

MAIN_FACTS = {
    "gpus": "GPUs",
    "gpu_settings": "GPU settings",
    "driver": "GPU driver",
    "cpu.model": "Processor",
    "cpu.num_usable_cores": "Usable cores",
    "cpu.flags": "Processor features",
    "memory_bytes": "Memory",
    "kernel": "Kernel",
    "engine_packages.torch": "PyTorch of the engine",
    "packages.torch": "PyTorch of the client",
    "git.commit": "Commit of this project",
    "git.is_dirty": "Uncommitted changes",
}
"""What the report says of the environment in its setup, by key, and the name there."""

_GPU_SETTINGS = (
    (r"persistence_mode (\w+)", r"persistence mode \1"),
    (r"power\.limit ([\d.]+)", r"power limit \1 W"),
    (r"ecc\.mode\.current (\w+)", r"ECC \1"),
    (r"compute_mode (\w+)", r"compute mode \1"),
    (r"clocks\.max\.sm (\d+)", r"highest SM clock \1 MHz"),
)
"""nvidia-smi's names and numbers, and the words with units for them."""

MAX_LISTED_HASHES = 6
"""A model in more files than this is named by one hash of their hashes."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def same_environment(one: CellResult, other: CellResult) -> bool:
    """Whether two results come from the same engine, packages and hardware.

    A plugin that only some methods need may be missing, or of another release, for the other one. Variables
    are compared where both have a record of them, which older results lack.
    """
    both_record = all("engine_variables" in result.identity.environment for result in (one, other))
    keys = [key for key in DECISIVE_KEYS if key != "engine_variables" or both_record]
    return _fingerprint(one, keys) == _fingerprint(other, keys)


def same_machine(one: CellResult, other: CellResult) -> bool:
    """Whether two results come from one machine: its GPUs where they are recorded, else its boot."""
    return _machine(one) == _machine(other)


def _machine(result: CellResult) -> str:
    return canonical_json(result.identity.environment.get("gpu_uuids") or result.identity.boot_id)


def _fingerprint(result: CellResult, keys: Sequence[str]) -> str:
    identity = result.identity
    decisive = {key: identity.environment[key] for key in keys if key in identity.environment}
    if isinstance(installed := decisive.get("engine_packages"), Mapping):
        decisive["engine_packages"] = {k: v for k, v in installed.items() if k not in METHOD_PACKAGES}
    return canonical_json([identity.engine, identity.engine_version, decisive])


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings as (dotted key, text); lists are joined, null is left out, many hashes become one."""
    for key, value in sorted(values.items()):
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and _is_long_list_of_hashes(value):
            yield name, f"{len(value)} files, SHA-256 of the list: {sha256_text(canonical_json(value))}"
        elif isinstance(value, Mapping):
            yield from flatten(value, f"{name}.")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield name, _listed([_item(item) for item in value])
        elif value is not None:
            yield name, str(value)


def _is_long_list_of_hashes(values: Mapping[str, Any]) -> bool:
    return len(values) > MAX_LISTED_HASHES and all(_SHA256.fullmatch(str(value)) for value in values.values())


def _item(value: Any) -> str:
    """One entry of a list: a mapping as its keys and values in a row."""
    return ", ".join(f"{key} {value[key]}" for key in value) if isinstance(value, Mapping) else str(value)


def _listed(items: Sequence[str]) -> str:
    """Entries in a row; several that are all equal, such as GPUs, once with their number."""
    if len(items) > 1 and len(set(items)) == 1:
        return f"{len(items)} \u00d7 {items[0]}"
    return ("; " if any(", " in item for item in items) else ", ").join(items)


def main_facts(shared: Sequence[Sequence[str]], different: Sequence[Sequence[str]]) -> list[list[str]]:
    """[name, value] of what the setup names, from the two tables of `shared_and_different`."""
    values = {key: "differs between services, see the appendix" for key, *_ in different}
    values |= {key: _readable(key, value) for key, value in shared}
    return [[name, values[key]] for key, name in MAIN_FACTS.items() if key in values]


def _readable(key: str, value: str) -> str:
    if key == "memory_bytes":
        return f"{number(int(value) / 2**30, 0)}\u00a0GiB"
    if key == "gpu_settings":
        for pattern, words in _GPU_SETTINGS:
            value = re.sub(pattern, words, value)
    return {"True": "yes", "False": "no"}.get(value, value)


def shared_and_different(
    results: Sequence[CellResult],
) -> tuple[list[list[str]], list[list[str]]]:
    """The environment in two tables: [key, value] equal everywhere, [key, value, its services] elsewhere.

    A service that was started more than once, for some of its cells each time, can have several values.
    """
    by_start = {(result.service, *_start(result)): result for result in results}
    starts = [(result.service, _facts(result)) for result in by_start.values()]
    keys = sorted(set().union(*(facts for _, facts in starts)))
    shared, different = [], []
    for key in keys:
        services: dict[str, dict[str, None]] = {}
        for service, facts in starts:
            services.setdefault(facts.get(key, "not recorded"), {})[service] = None
        if len(services) == 1:
            shared.append([key, *services])
        else:
            different += [[key, value, ", ".join(names)] for value, names in services.items()]
    return shared, different


@dataclass(frozen=True)
class DifferenceTable:
    """Values that differ, with services that have all of them in common as one group.

    Attributes:
        groups: (number, its services).
        rows: (key, value, numbers of the groups that have it).
    """

    groups: list[tuple[int, str]]
    rows: list[tuple[str, str, str]]


def difference_table(differences: Sequence[Sequence[str]]) -> DifferenceTable:
    """The second table of `shared_and_different` without its long lists of services."""
    places: dict[str, list[int]] = {}
    for place, (_, _, services) in enumerate(differences):
        for service in services.split(", "):
            places.setdefault(service, []).append(place)
    members: dict[tuple[int, ...], list[str]] = {}
    for service, found in places.items():
        members.setdefault(tuple(found), []).append(service)
    numbers: list[list[str]] = [[] for _ in differences]
    for group, shared in enumerate(members, 1):
        for place in shared:
            numbers[place].append(str(group))
    return DifferenceTable(
        [(group, ", ".join(services)) for group, services in enumerate(members.values(), 1)],
        [(key, value, ", ".join(own)) for (key, value, _), own in zip(differences, numbers, strict=True)],
    )


def _start(result: CellResult) -> tuple[str, int, int]:
    """What tells the process that served it from all others."""
    identity = result.identity
    return identity.boot_id, identity.pid, identity.pid_start_ticks


def _facts(result: CellResult) -> dict[str, str]:
    facts = {"engine": result.identity.engine, "engine version": result.identity.engine_version}
    return facts | dict(flatten(result.identity.environment))
