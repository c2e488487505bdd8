"""Locks and lifetimes that the kernel keeps."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftbench import host
from draftbench.errors import DraftbenchError
from draftbench.files import canonical_json, write_atomic, write_json

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
CHILD = """
import signal, time
from draftbench import host
signal.signal(signal.SIGTERM, signal.SIG_IGN)
host.die_with_parent()
print(flush=True)
time.sleep(60)
"""


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
    (tmp_path / "lock").write_text("4194304\n" * 2)  # of another holder, longer than ours
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


def test_every_user_may_take_a_lock_and_none_may_lead_it_elsewhere(tmp_path):
    umask = os.umask(0o077)
    try:
        with host.exclusive(tmp_path / "lock", "runs a campaign"):
            assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(umask)
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "link").symlink_to("mine")
    with pytest.raises(OSError, match="symbolic links"), host.exclusive(tmp_path / "link", ""):
        pass
    assert (tmp_path / "mine").read_text() == "precious"


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


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_step_whose_run_ended_before_it_began_dies_at_once(has_ended):
    with subprocess.Popen(["sleep", "60"]) as run:
        if has_ended:
            end(run)
        environment = os.environ | {host.RUN_PID: str(run.pid)}
        with subprocess.Popen(
            [sys.executable, "-c", CHILD], env=environment, stdout=subprocess.PIPE
        ) as child:
            words = child.stdout.readline()
            end(child)
        end(run)
    assert words == (b"" if has_ended else b"\n")


ODDLY_NAMED = """
import time
with open("/proc/self/comm", "w") as name:
    name.write("a) Z (1")
print(flush=True)
time.sleep(60)
"""


def test_a_process_is_known_whatever_it_calls_itself():
    with subprocess.Popen([sys.executable, "-c", ODDLY_NAMED], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        ticks = host.start_ticks(process.pid)
        end(process)
    assert ticks >= host.start_ticks(os.getpid())


def test_a_process_that_ends_while_it_is_looked_at_has_ended(monkeypatch):
    def vanish(_path):
        raise ProcessLookupError

    monkeypatch.setattr(Path, "read_text", vanish)
    assert host.start_ticks(os.getpid()) is None


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


def test_users_have_run_directories_of_their_own_in_memory(tmp_path, monkeypatch):
    monkeypatch.delenv("DRAFTBENCH_RUN_DIR", raising=False)
    monkeypatch.setattr(host, "TMPFS", tmp_path)
    assert host.run_directory() == tmp_path / f"draftbench-{os.getuid()}"


def test_a_run_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTBENCH_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(DraftbenchError, match=rf"{tmp_path} to belong to user \d+, it belongs to "):
        host.run_directory()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give links away")
def test_another_users_link_to_an_own_directory_is_refused(tmp_path, monkeypatch):
    (tmp_path / "run").symlink_to(tmp_path)
    os.chown(tmp_path / "run", 12345, -1, follow_symlinks=False)
    monkeypatch.setenv("DRAFTBENCH_RUN_DIR", str(tmp_path / "run"))
    with pytest.raises(DraftbenchError, match="it belongs to 12345"):
        host.run_directory()


def test_the_steps_of_a_run_share_its_session(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTBENCH_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("DRAFTBENCH_SESSION", "")
    monkeypatch.delenv("DRAFTBENCH_SESSION")
    assert str(host.session_directory()) == os.environ["DRAFTBENCH_SESSION"]
    assert host.session_directory() == host.session_directory()


def test_programs_beside_the_interpreter_are_found_first(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    host.activate_environment()
    here = str(Path(sys.executable).parent)
    assert os.environ["PATH"] == f"{here}{os.pathsep}/usr/bin"
    host.activate_environment()
    assert os.environ["PATH"] == f"{here}{os.pathsep}/usr/bin"


def test_the_host_lock_is_the_same_for_every_checkout(monkeypatch):
    monkeypatch.delenv("DRAFTBENCH_RUN_DIR", raising=False)
    assert host.host_lock_path() == host.TMPFS / "draftbench.lock"


def test_a_file_is_on_the_disk_before_it_replaces_the_old_one_and_its_name_after_that(tmp_path, monkeypatch):
    """What only a power cut would tell: the order of flushes and the rename."""
    path = tmp_path / "deep" / "folder" / "result.json"
    calls = []

    def note(name, call):
        def noted(*arguments):
            flushed = Path(os.readlink(f"/proc/self/fd/{arguments[0]}")) if name == "fsync" else None
            where = {path.parent: "of the folder", None: ""}.get(flushed, "elsewhere")
            is_beside = flushed is not None and flushed.parent == path.parent
            calls.append((name, "beside" if is_beside else where))
            return call(*arguments)

        return noted

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, note(name, getattr(os, name)))
    write_atomic(path, "new")
    assert calls == [("fsync", "beside"), ("replace", ""), ("fsync", "of the folder")]
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_no_file_holds_a_number_that_is_none(tmp_path, number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "result.json", {"speed": number})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(number)
    assert list(tmp_path.iterdir()) == []


def test_the_canonical_text_of_a_value_does_not_depend_on_its_order():
    assert canonical_json({"b": "é", "a": [1]}) == canonical_json({"a": [1], "b": "é"}) == '{"a":[1],"b":"é"}'


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
