"""Downloads from the hub: pinned, resumed, checked."""

import logging
import os
import shutil
import subprocess
import sys
import time

import pytest
from tests.staging.fake_hub import REVISION, FakeHub

from draftbench.config import Source
from draftbench.errors import StagingError
from draftbench.staging import room
from draftbench.staging.sources import fetch

WEIGHTS = os.urandom(3_000_000)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "pytorch_model.bin": b"a pickle"}
SOURCE = Source(source=f"hf:some/model@{REVISION}")
FETCH = (
    "import sys; from pathlib import Path; from draftbench.config import Source\n"
    "from draftbench.staging.sources import fetch\n"
    "fetch(Source(source=sys.argv[1]), Path(sys.argv[2]))\n"
)


@pytest.fixture
def hub(monkeypatch):
    with FakeHub(FILES) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield running


def test_a_revision_is_fetched_without_pickles_and_only_once(hub, tmp_path, monkeypatch):
    folder = fetch(SOURCE, tmp_path)
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert names == {"config.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody is asked again
    assert fetch(SOURCE, tmp_path) == folder


def test_a_revision_that_was_removed_is_fetched_again(hub, tmp_path):
    shutil.rmtree(fetch(SOURCE, tmp_path))
    assert (fetch(SOURCE, tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


def test_of_several_ggufs_only_the_one_that_is_named_is_fetched(hub, tmp_path):
    hub.files = {"small.gguf": b"small", "large.gguf": b"large", "config.json": b"{}"}
    folder = fetch(SOURCE.model_copy(update={"file": "small.gguf"}), tmp_path)
    assert [name for name, _ in hub.gets] == ["small.gguf"]
    assert (folder / "small.gguf").read_bytes() == b"small"


def test_a_revision_without_room_for_it_is_refused_before_it_is_fetched(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda _directory: 3_000_000)
    with pytest.raises(StagingError, match=r"GiB of room for hf:some/model"):
        fetch(SOURCE, tmp_path)
    assert hub.gets == []


def test_a_broken_connection_goes_on_in_the_middle_of_the_file(hub, tmp_path):
    hub.files = {"model.safetensors": os.urandom(25_000_000)}  # more than two of the pieces it is read in
    hub.break_after = 15_000_000
    folder = fetch(SOURCE, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    (_, first), (_, second) = hub.gets
    assert first is None
    assert second.startswith("bytes=1")


def test_after_a_kill_finished_files_are_not_fetched_again(hub, tmp_path):
    hub.files = {f"model-{n}.safetensors": os.urandom(1000) for n in range(3)}
    hub.stall = "model-1.safetensors"
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH, SOURCE.source, str(tmp_path)], stderr=subprocess.DEVNULL
    )
    try:
        deadline_s = time.monotonic() + 60
        while len(list(tmp_path.rglob("model-*.safetensors"))) < 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    hub.stall = None
    hub.gets.clear()
    folder = fetch(SOURCE, tmp_path)
    assert [name for name, _ in hub.gets] == ["model-1.safetensors"]
    assert {path.name: path.read_bytes() for path in folder.glob("*.safetensors")} == hub.files


def test_a_damaged_file_is_named_and_fetched_again(hub, tmp_path, caplog):
    hub.num_damaged = 2
    with caplog.at_level(logging.WARNING):
        folder = fetch(SOURCE, tmp_path)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert "has not the hub's SHA-256; it is fetched again" in caplog.text


def test_a_file_that_stays_damaged_is_refused(hub, tmp_path):
    hub.num_damaged = 100
    with pytest.raises(StagingError, match=r"expected the SHA-256 that the hub gives, got another after 2"):
        fetch(SOURCE, tmp_path)


def test_a_hub_that_cannot_be_reached_is_refused(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StagingError, match=r"hf:some/model@\w+: expected to download it, got: "):
        fetch(SOURCE, tmp_path)
