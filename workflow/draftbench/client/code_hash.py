"""Which code measured: a result of other measuring code must not be mixed in unseen."""

import functools
import hashlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
MEASURING = ("chat_template.py", "definitions.py", "records.py")


@functools.cache
def client_sha256() -> str:
    """Hex SHA-256 over the names and sources of the client and of what it measures by."""
    sources = sorted([*(PACKAGE / "client").glob("*.py"), *(PACKAGE / name for name in MEASURING)])
    digest = hashlib.sha256()
    for source in sources:
        content = source.read_bytes()
        digest.update(f"{source.relative_to(PACKAGE)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
