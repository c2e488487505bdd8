"""Locks and lifetimes that the kernel keeps."""

import os
import signal
import subprocess
import sys
import time

import pytest

from draftbench import host
from draftbench.errors import DraftbenchError
from draftbench.files import write_atomic

HOLD = """
import sys, time
from pathlib import Path
from draftbench import host
with host.exclusive(Path(sys.argv[1]), "runs a campaign"):
    print("held", flush=True)
    time.sleep(60)
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""
CHILD = "from draftbench import host; import time; host.die_with_parent(); print(flush=True); time.sleep(60)"


def holder(path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def end(process):
    process.kill()
    process.communicate()


def test_a_lock_names_its_holder(tmp_path):
    process = holder(tmp_path / "lock")
    try:
        expected = f"expected to be alone on this host, but process {process.pid} runs a campaign"
        with (
            pytest.raises(DraftbenchError, match=expected),
            host.exclusive(tmp_path / "lock", "runs a campaign"),
        ):
            pass
    finally:
        end(process)


def test_a_lock_ends_with_its_holder(tmp_path):
    end(holder(tmp_path / "lock"))
    with host.exclusive(tmp_path / "lock", "runs a campaign"):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()} runs a campaign\n"


def test_a_shared_lock_whose_last_writer_has_ended_names_no_process(tmp_path):
    with host.shared(tmp_path / "lock", "builds a report"):
        ended = subprocess.Popen(["true"])
        ended.wait()
        (tmp_path / "lock").write_text(f"{ended.pid} builds a report\n")
        with (
            pytest.raises(DraftbenchError, match="but another process holds the lock"),
            host.exclusive(tmp_path / "lock", "runs a campaign"),
        ):
            pass


def test_a_lock_is_free_again_after_its_block(tmp_path):
    for _ in range(2):
        with host.exclusive(tmp_path / "lock", "runs a campaign"):
            pass


def test_a_child_dies_with_its_killed_parent():
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert host.start_ticks(child) is not None
    end(parent)
    deadline_s = time.monotonic() + 5
    while host.start_ticks(child) is not None:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_start_ticks_tell_processes_apart_and_end_with_them():
    process = subprocess.Popen(["sleep", "60"])
    assert host.start_ticks(process.pid) >= host.start_ticks(os.getpid())
    process.send_signal(signal.SIGKILL)
    while host.start_ticks(process.pid) is not None:  # a zombie counts as ended
        time.sleep(0.02)
    process.wait()


def test_the_run_directory_is_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTBENCH_RUN_DIR", str(tmp_path / "run"))
    assert host.run_directory() == tmp_path / "run"
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert host.host_lock_path() == tmp_path / "run" / "lock"


def test_the_host_lock_is_the_same_for_every_checkout(monkeypatch):
    monkeypatch.delenv("DRAFTBENCH_RUN_DIR", raising=False)
    assert host.host_lock_path() == host.TMPFS / "draftbench.lock"


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "result.json").write_text("old")
    with pytest.raises(OSError, match="File too large"):
        limited_write(tmp_path / "result.json")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert (tmp_path / "result.json").read_text() == "old"


def limited_write(path):
    import resource  # noqa: PLC0415 - the limit below is of this test alone

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    try:
        write_atomic(path, "x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, ignored)
