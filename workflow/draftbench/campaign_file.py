"""Reads campaign files strictly: what YAML would pass over in silence is an error here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from draftbench.config import Campaign, load_campaign
from draftbench.config_errors import first_key
from draftbench.errors import ConfigError

MERGE_TAG = "tag:yaml.org,2002:merge"  # `<<`, whose keys may be overwritten
COMMAND_LINE = "--config on the command line"


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a key may stand once in its mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == MERGE_TAG or not isinstance(key_node, yaml.ScalarNode):
                continue  # PyYAML itself refuses what is no scalar
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if key in seen:
                raise ConfigError(
                    f"{self.name}: {key}: expected the key once in its mapping, got it in lines "
                    f"{seen[key]} and {line}; remove one"
                )
            seen[key] = line
        return super().construct_mapping(node, deep)


def read_mapping(path: Path) -> dict[str, Any]:
    """One YAML file that holds a mapping.

    Raises:
        ConfigError: it cannot be read, is no mapping, or has a key twice.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            values = yaml.load(stream, _StrictLoader)  # noqa: S506 - a subclass of the safe loader
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{path}: expected a readable YAML file, got: {reason}; correct the file or its name"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping, got {type(values).__name__}; see config/README.md")
    return values


def read_campaign(paths: Sequence[Path], merged: Mapping[str, Any]) -> Campaign:
    """The campaign that several files and the command line give together.

    Args:
        paths: the files, a later one replacing keys of an earlier one.
        merged: their values and the command line's, merged.

    Raises:
        ConfigError: one sentence that names the file in which the wrong key stands.
    """
    files = [(path, read_mapping(path)) for path in paths]
    try:
        return Campaign.model_validate(merged)
    except ValidationError as error:
        return load_campaign(merged, _origin(first_key(error, Campaign), files, merged))


def _origin(
    key: Sequence[str | int], files: Sequence[tuple[Path, Mapping[str, Any]]], merged: Mapping[str, Any]
) -> Path | str:
    """The last file that holds the longest part of `key`; the command line where it decides what is there."""
    together: Mapping[str, Any] = {}
    for _, values in files:
        together = _laid_over(together, values)
    depth, found = _follow(key, merged)
    depth_in_files, found_in_files = _follow(key, together)
    if not files or depth > depth_in_files or (depth == len(key) and found != found_in_files):
        return COMMAND_LINE
    depths = [_follow(key, values)[0] for _, values in files]
    return [path for (path, _), depth in zip(files, depths, strict=True) if depth == max(depths)][-1]


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """As Snakemake merges: keys of mappings together, everything else replaced."""
    both = {k: (below[k], v) for k, v in above.items() if k in below}
    inner = {k: _laid_over(*pair) for k, pair in both.items() if all(isinstance(v, Mapping) for v in pair)}
    return {**below, **above, **inner}


def _follow(key: Sequence[str | int], values: Any) -> tuple[int, Any]:
    """How many parts of `key` lead somewhere, and where to."""
    for depth, part in enumerate(key):
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return depth, values
    return len(key), values
