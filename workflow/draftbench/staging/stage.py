"""Bring a campaign's model to the folder that its servers load it from. Idempotent."""

import contextlib
import fcntl
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from draftbench.config import Method, Model, Source
from draftbench.errors import StagingError
from draftbench.files import canonical_json, sha256_text
from draftbench.staging import gguf_sizes
from draftbench.staging.fit import require_fit
from draftbench.staging.manifest import Manifest, read_manifest, write_manifest
from draftbench.staging.room import cache_directory, require_room
from draftbench.staging.sources import fetch, source_file
from draftbench.staging.transforms import wanted_transforms

logger = logging.getLogger(__name__)
CONVERT_LIMIT_S = 1800
# Files that tell a reader about a model and that no server needs.
NOT_STAGED = {"README.md", "card.json", ".cache"}


class StagedModel(BaseModel):
    """Where a target and its drafter lie, with the hash of every file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target_dir: Path
    drafter_dir: Path | None
    target_sha256: dict[str, str]
    drafter_sha256: dict[str, str]


def stage_model(model: Model, root: Path, methods: Mapping[str, Method] | None = None) -> StagedModel:
    """Stage target and drafter below `root`; what is complete there is left alone.

    Args:
        model: sources of target and drafter.
        root: directory of staged models.
        methods: of the campaign, whose block sizes the drafter must allow.

    Raises:
        StagingError: a source cannot be fetched, checked, converted or stored, or the drafter does not fit.
    """
    with _alone(root):
        target_dir, target = _stage_source(model.target, root)
        if model.drafter is None:
            return StagedModel(
                target_dir=target_dir, drafter_dir=None, target_sha256=target.hashes, drafter_sha256={}
            )
        drafter_dir, drafter = _stage_source(model.drafter, root)
    require_fit(target_dir, drafter_dir, methods or {})
    return StagedModel(
        target_dir=target_dir,
        drafter_dir=drafter_dir,
        target_sha256=target.hashes,
        drafter_sha256=drafter.hashes,
    )


def staged_folder(source: Source, root: Path) -> Path:
    """The folder that a source is staged in, whether it is there or not."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", source.source.partition(":")[2]).strip("-")[-60:]
    return root / f"{slug}-{sha256_text(canonical_json(_identity(source)))[:12]}"


def is_staged(source: Source, root: Path) -> bool:
    """The source lies complete and undamaged below `root`."""
    return read_manifest(staged_folder(source, root), _origin(source)) is not None


def _identity(source: Source) -> dict[str, Any]:
    return source.model_dump(mode="json", exclude={"size_bytes"})


def _origin(source: Source) -> dict[str, Any]:
    """What a staged folder was made from; for a local directory with its files as they are now."""
    scheme, _, rest = source.source.partition(":")
    origin = _identity(source)
    if scheme == "path" and Path(rest).is_dir():
        files = sorted(path for path in Path(rest).rglob("*") if path.is_file())
        origin["found"] = [[str(f.relative_to(rest)), f.stat().st_size, f.stat().st_mtime_ns] for f in files]
    return origin


def _stage_source(source: Source, root: Path) -> tuple[Path, Manifest]:
    folder, origin = staged_folder(source, root), _origin(source)
    present = read_manifest(folder, origin)
    if present is not None:
        logger.info("%s is staged already in %s", source.source, folder)
        return folder, present
    fetched = fetch(source, cache_directory())
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _build(source, fetched, partial)
        manifest = write_manifest(partial, origin)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except OSError as error:
        raise StagingError(
            f"{source.source}: expected to store it in {folder}, got: {error}; make room or set staging_root"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    logger.info("%s staged in %s", source.source, folder)
    return folder, manifest


def _build(source: Source, fetched: Path, out: Path) -> None:
    """Write the staged form of the fetched files into `out`."""
    transforms = wanted_transforms(source)
    plain = out.with_name(f"{out.name}.plain") if transforms else out
    try:
        _build_plain(source, fetched, plain)
        for transform, parameters in transforms:
            transform(plain, out, parameters)
    finally:
        if plain != out:
            shutil.rmtree(plain, ignore_errors=True)


def _build_plain(source: Source, fetched: Path, out: Path) -> None:
    single = source_file(source, fetched)
    if single is not None and single.suffix == ".gguf":
        _require_room(source, out, gguf_sizes.num_staged_bytes(single))
        _convert(single, out)
        return
    files = [path for path in sorted(fetched.rglob("*")) if path.is_file() and _is_wanted(path, fetched)]
    _require_room(source, out, sum(path.stat().st_size for path in files))
    for path in files:
        target = out / path.relative_to(fetched)
        target.parent.mkdir(parents=True, exist_ok=True)
        _link_or_copy(path, target)


def _require_room(source: Source, out: Path, found_bytes: int) -> None:
    require_room(out.parent, max(found_bytes, source.size_bytes or 0), source.source)


def _is_wanted(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    return NOT_STAGED.isdisjoint(parts)


def _link_or_copy(source: Path, target: Path) -> None:
    """A hard link where both lie on one file system, which takes no room; else a copy."""
    try:
        target.hardlink_to(source.resolve())  # of a symbolic link itself it would be one that leads nowhere
    except OSError:
        shutil.copy2(source, target)


def _convert(source: Path, out: Path) -> None:
    """Dequantise in a process of its own, which gives its memory back when it ends."""
    command = [sys.executable, "-m", "draftbench.staging.gguf_convert", str(source), str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CONVERT_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise StagingError(
            f"{source}: expected it to be converted within {CONVERT_LIMIT_S:g} s, it was not; see what else "
            "runs on this host"
        ) from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [
            f"exit code {done.returncode}"
        ]
        raise StagingError(f"{source}: expected it to be converted, got: {lines[-1]}")


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Make the directory, and wait for another process that stages into it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        stream = (root / ".lock").open("w")
    except OSError as error:
        raise StagingError(
            f"{root}: expected a directory to write models to, got: {error}; "
            "correct its rights, or set staging_root in the campaign"
        ) from None
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
