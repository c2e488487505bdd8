"""Options of SGLang's server, one table of names per release, and the forms that DDTree takes.

`sglang_options.json` holds the names that each release's own parser accepts. A version is a release
(`0.5.17`), whose DDTree comes from a plugin (a distribution `sglang-ddtree`), or a release with `+ddtree`, a
fork that has DDTree built in.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from draftbench.config import Method, SglangEngine
from draftbench.errors import ConfigError

Value = str | int | float | bool
FORK_SUFFIX = "+ddtree"
FORK_OPTIONS = frozenset(
    {"speculative-ddtree-budget", "speculative-ddtree-topk", "speculative-ddtree-allow-hybrid-unsafe"}
)
PLUGIN_ALGORITHM = "DDTREE_OOT"
FORK_ALGORITHM = "DDTREE"


@dataclass(frozen=True)
class FlagTable:
    """One entry of the table.

    Attributes:
        version: as the campaign names it.
        options: names that the server's parser accepts, without hyphens in front.
        is_fork: DDTree is built in; else it comes from a plugin.
    """

    version: str
    options: frozenset[str]
    is_fork: bool

    @property
    def release(self) -> str | None:
        """What the server says its version is; None for a fork, which may say anything."""
        return None if self.is_fork else self.version


@cache
def flag_tables() -> dict[str, FlagTable]:
    """Every known version."""
    stored = json.loads(resources.files(__package__).joinpath("sglang_options.json").read_text())
    tables = {}
    for release in stored["releases"]:
        some = {name for name, releases in stored["in_some_releases"].items() if release in releases}
        options = frozenset(stored["in_every_release"]) | some
        for version, names in ((release, options), (release + FORK_SUFFIX, options | FORK_OPTIONS)):
            tables[version] = FlagTable(version, names, is_fork=version != release)
    return tables


def find_flag_table(version: str) -> FlagTable:
    """The table of one version.

    Raises:
        ConfigError: it is unknown.
    """
    table = flag_tables().get(version)
    if table is None:
        releases = [name for name, known in flag_tables().items() if not known.is_fork]
        raise ConfigError(
            f"engine.version: expected an SGLang release from {releases[0]} to {releases[-1]} (with "
            f"{FORK_SUFFIX} for a fork that has DDTree), got {version}; "
            "add its options to servers/sglang_options.json"
        )
    return table


def speculative_options(table: FlagTable, method: Method) -> dict[str, Value]:
    """How one method drafts; empty for autoregressive decoding. Also what `/server_info` says of it.

    A tree of `budget` nodes is verified with its root, so the plugin's width is `budget + 1`.
    """
    if method.algorithm == "ar":
        return {}
    options: dict[str, Value] = {"speculative-dflash-block-size": method.block_size}
    if method.budget is None:
        options["speculative-algorithm"] = "DFLASH"
    elif table.is_fork:
        options["speculative-algorithm"] = FORK_ALGORITHM
        options["speculative-ddtree-budget"] = method.budget
    else:
        options["speculative-algorithm"] = PLUGIN_ALGORITHM
        options["speculative-num-draft-tokens"] = method.budget + 1
    return options


def extra_options(
    table: FlagTable, engine: SglangEngine, method: Method, pinned: Mapping[str, Any]
) -> dict[str, Value]:
    """The campaign's `extra_args` that concern this method.

    `speculative-…` go to drafting methods only, `speculative-ddtree-…` to trees only, all others to every
    method, so that arms differ in nothing but their drafts. `false` leaves an option out.

    Raises:
        ConfigError: this version has no such option, or the pipeline sets it itself.
    """
    chosen: dict[str, Value] = {}
    for name, value in engine.extra_args.items():
        if name not in table.options:
            raise ConfigError(
                f"engine.extra_args.{name}: SGLang {table.version} has no option --{name}; "
                "correct it, or set engine.version to a version that has it"
            )
        if name in pinned:
            raise ConfigError(
                f"engine.extra_args.{name}: --{name} is set by the pipeline, equally for all methods; "
                "remove it, or use the key of the campaign that stands for it"
            )
        if value is not False and _concerns(name, method):
            chosen[name] = value
    return chosen


def as_arguments(options: Mapping[str, Value | list[int]]) -> Iterator[str]:
    """Options as an argument list; `True` is a flag without a value."""
    for name, value in options.items():
        yield f"--{name}"
        if isinstance(value, list):
            yield from map(str, value)
        elif value is not True:
            yield str(value)


def _concerns(name: str, method: Method) -> bool:
    if name.startswith("speculative-ddtree-"):
        return method.algorithm == "ddtree"
    return method.algorithm != "ar" or not name.startswith("speculative-")
