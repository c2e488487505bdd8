"""The tiny target, made once."""

from pathlib import Path

import pytest
import tiny
import torch

from draftbench.training.target import Target


@pytest.fixture(scope="session", autouse=True)
def single_thread() -> None:
    """The models are too small to share, and other processes may use the other cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("target")


@pytest.fixture(scope="session")
def reference(folder):
    """The tiny target as transformers runs it; writes the folder."""
    return tiny.write_folder(folder)


@pytest.fixture(scope="session")
def target(reference, folder) -> Target:
    return Target.load(folder, tiny.CPU, torch.float32)
