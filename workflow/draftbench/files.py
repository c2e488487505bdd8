"""Files that are either whole or absent: writing, hashing, reading JSON without NaN."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomic(path: Path | str, content: bytes | str) -> None:
    """Write `content` beside `path`, flush it to the disk, and rename it into place.

    A reader sees the old file or the new one, never a part of it, also after a power cut.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)  # mkstemp gives 0600, a result is meant to be read
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def fsync_directory(directory: Path) -> None:
    """Flush a directory's entries, so that a rename inside it survives a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path | str, value: Any) -> None:
    """Write `value` as JSON, atomically.

    Raises:
        ValueError: a number is NaN or infinite; no result file may hold one.
    """
    write_atomic(path, json.dumps(value, allow_nan=False, ensure_ascii=False, indent=1) + "\n")


def canonical_json(value: Any) -> str:
    """The one JSON text of `value`: sorted keys, no blanks, no NaN."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def sha256_text(text: str) -> str:
    """Hex SHA-256 of a text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path | str) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
