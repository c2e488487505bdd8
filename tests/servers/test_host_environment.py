"""What is recorded of the host and the workflow's commit with every start."""

import re
import subprocess
from pathlib import Path

import pytest

from draftbench.servers.environment import capture


def git(repository: Path, *arguments: str) -> str:
    author = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    command = ["git", "-C", str(repository), *author, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout of one file."""
    (tmp_path / "config.yaml").write_text("a: 1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    return tmp_path


def test_the_workflows_commit_is_recorded_and_results_beside_it_do_not_count(repository: Path) -> None:
    (repository / "result.json").write_text("{}")
    commit = git(repository, "rev-parse", "HEAD")
    assert capture(repository)["git"] == {"commit": commit, "is_dirty": False}


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_change_since_the_commit_is_recorded(repository: Path, is_staged: bool) -> None:
    (repository / "config.yaml").write_text("a: 2\n")
    if is_staged:
        git(repository, "add", ".")
    assert capture(repository)["git"]["is_dirty"] is True


def test_without_a_checkout_nothing_is_said_of_a_commit(tmp_path: Path) -> None:
    assert capture(tmp_path / "nowhere")["git"] == {"commit": None, "is_dirty": None}


def test_memory_is_recorded_in_bytes(tmp_path: Path) -> None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    assert capture(tmp_path)["memory_bytes"] == pytest.approx(int(found[1]) * 1024, rel=0.1)
