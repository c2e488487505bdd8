from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.recovery.gpu_workspace import GpuWorkspace


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GpuWorkspace]:
    made = GpuWorkspace(tmp_path).create()
    yield made
    made.clean_up()
