"""A staged folder's own list of what it holds: written last, so that its presence says complete."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from draftbench.files import sha256_file, write_json

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"


class StagedFile(BaseModel):
    """One file, and how it was found after it had been written."""

    model_config = ConfigDict(extra="forbid")

    num_bytes: int
    mtime_ns: int
    sha256: str


class Manifest(BaseModel):
    """What a staged folder was made from, and its files by name."""

    model_config = ConfigDict(extra="forbid")

    origin: dict[str, Any]
    files: dict[str, StagedFile]

    @property
    def hashes(self) -> dict[str, str]:
        """File name -> SHA-256."""
        return {name: file.sha256 for name, file in self.files.items()}


def write_manifest(folder: Path, origin: dict[str, Any]) -> Manifest:
    """Hash every file below `folder` and list it."""
    paths = _files(folder)
    with ThreadPoolExecutor() as pool:  # a large model is hashed on all cores
        described = list(pool.map(_describe, paths))
    names = [str(path.relative_to(folder)) for path in paths]
    manifest = Manifest(origin=origin, files=dict(zip(names, described, strict=True)))
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
    return manifest


def read_manifest(folder: Path, origin: dict[str, Any]) -> Manifest | None:
    """The manifest of a folder that is complete, undamaged and made from `origin`; else None.

    A file whose size and time are as recorded is believed; any other is hashed, and a difference is logged.
    """
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError):
        return None
    if manifest.origin != origin:
        return None
    damaged = [name for name, file in manifest.files.items() if not _is_unchanged(folder / name, file)]
    if damaged:
        logger.warning("%s differs from what was staged; the model is staged again", folder / damaged[0])
        return None
    return manifest


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def _describe(path: Path) -> StagedFile:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())  # a manifest that survives a power cut must not name lost data
    status = path.stat()
    return StagedFile(num_bytes=status.st_size, mtime_ns=status.st_mtime_ns, sha256=sha256_file(path))


def _is_unchanged(path: Path, recorded: StagedFile) -> bool:
    if not path.is_file():
        return False
    status = path.stat()
    if status.st_size != recorded.num_bytes:
        return False
    return status.st_mtime_ns == recorded.mtime_ns or sha256_file(path) == recorded.sha256
