"""What all tests share: huge pages and a few fixtures."""

import contextlib
import socket
from pathlib import Path

import pytest
import torch

from draftbench.campaign_file import read_campaign, read_mapping
from draftbench.engine.huge_pages import ask_for_huge_pages
from draftbench.staging.place import campaign_root
from draftbench.staging.stage import StagedModel, stage_model

ROOT = Path(__file__).resolve().parent.parent
# Files of half a minute and more come first: one that came last would leave a worker without work.
LONG_FILES = (
    "workflow/test_recovery.py",
    "workflow/test_graph.py",
    "workflow/test_smoke.py",
    "report/test_typeset.py",
    "recovery/test_gpu_recovery.py",
    "systemd/test_box.py",
    "workflow/test_adaptive.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Start again with the engine's memory in huge pages, which makes its tests several times faster."""
    # By now pytest reads and writes files of its own, which must not become those of the new process.
    config.pluginmanager.getplugin("capturemanager").suspend_global_capture(in_=True)
    ask_for_huge_pages()
    if hasattr(config, "workerinput"):
        torch.set_num_threads(1)  # threads of two tests at once would wait for each other in a spin


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first, all others as they were."""
    places = {ROOT / "tests" / name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def staged_model() -> StagedModel:
    """The default campaign's real target and drafter, where campaigns stage them too."""
    path = ROOT / "config" / "config.yaml"
    campaign = read_campaign([path], read_mapping(path))
    (model,) = campaign.models.values()
    with contextlib.chdir(ROOT):  # sources are relative to it
        return stage_model(model, campaign_root(campaign), campaign.methods)


@pytest.fixture(scope="session")
def staged_target(staged_model: StagedModel) -> Path:
    """Folder of the real target, SmolLM2-135M-Instruct in float32."""
    return staged_model.target_dir


@pytest.fixture(scope="session")
def staged_drafter(staged_model: StagedModel) -> Path:
    """Folder of the real DFlash drafter."""
    assert staged_model.drafter_dir is not None
    return staged_model.drafter_dir


@pytest.fixture
def free_port() -> int:
    """A port of this host that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
