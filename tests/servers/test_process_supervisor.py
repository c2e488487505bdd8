"""A detached process group: its output, its end, its environment."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.servers.factories import make_handle, make_spec
from tests.servers.strangers import stranger

from draftbench import host
from draftbench.errors import MeasurementError, ServerError
from draftbench.servers import proc, process
from draftbench.servers.journal import ServiceJournal
from draftbench.servers.process import ProcessSupervisor, token_prefix

# Ignores SIGTERM, like its child; says so when both are ready.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("ready", child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Starts a command and gives its handle; what is left of it is killed at the end."""
    monkeypatch.setenv("DRAFTBENCH_RUN_DIR", str(tmp_path / "run"))
    handles = []

    def start(*argv, **environment):
        number = len(handles)
        spec = make_spec(
            *argv,
            environment=environment,
            log=tmp_path / "logs" / f"server-{number}.log",
            token=f"{token_prefix()}{number}",
        )
        handle = make_handle(spec, ProcessSupervisor().spawn(spec))
        handles.append(handle)
        return handle

    yield start
    for handle in handles:
        ProcessSupervisor().stop(handle, 0)


def log_of(handle, words):
    for _ in range(200):
        text = ProcessSupervisor().log_since(handle, "")
        if words in text:
            return text
        time.sleep(0.05)
    raise AssertionError(f"{words!r} was never logged")


def test_stop_ends_a_group_that_ignores_sigterm(started):
    handle = started(sys.executable, "-c", STUBBORN)
    child = int(log_of(handle, "ready").split()[1])
    start_s = time.monotonic()
    ProcessSupervisor().stop(handle, 0.5)
    assert 0.5 <= time.monotonic() - start_s < 8
    assert host.start_ticks(handle.spawned.pid) is None
    assert host.start_ticks(child) is None


def test_stop_ends_children_that_outlived_their_parent(started):
    handle = started("sh", "-c", "sleep 60 & echo child $!")
    child = int(log_of(handle, "child").split()[1])
    while ProcessSupervisor().failure(handle) is None:
        time.sleep(0.02)
    assert host.start_ticks(child) is not None
    ProcessSupervisor().stop(handle, 2)
    assert host.start_ticks(child) is None


# Starts a child that leaves the session, or that forgets the environment and leaves the group.
LEAVING = """
import subprocess, sys, time
child = subprocess.Popen(["/bin/sleep", "60"], **eval(sys.argv[1]))
print("child", child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("options", [{"start_new_session": True}, {"env": {}, "process_group": 0}])
def test_stop_ends_children_known_by_the_marker_or_the_session_alone(started, options):
    handle = started(sys.executable, "-c", LEAVING, repr(options))
    child = int(log_of(handle, "child").split()[1])
    ProcessSupervisor().stop(handle, 2)
    assert host.start_ticks(child) is None


def test_stop_ends_a_child_that_shows_its_marker_only_after_its_parents_end(started, monkeypatch):
    handle = started(sys.executable, "-c", LEAVING, repr({"start_new_session": True}))
    child = int(log_of(handle, "child").split()[1])
    variable, looks = proc.variable, []

    def see_late(pid, name):
        """As while the child begins its program: it is known from the second look without its parent on."""
        if pid == child and host.start_ticks(handle.spawned.pid) is None:
            looks.append(pid)
        return None if pid == child and len(looks) < 2 else variable(pid, name)

    monkeypatch.setattr(proc, "variable", see_late)
    start_s = time.monotonic()
    ProcessSupervisor().stop(handle, 60)
    assert host.start_ticks(child) is None
    assert time.monotonic() - start_s < 30  # it was asked to end, not waited for


def test_a_stopped_server_is_no_zombie(started):
    handle = started("sleep", "60")
    ProcessSupervisor().stop(handle, 2)
    assert host.process_stat(handle.spawned.pid) is None


def test_a_server_that_cannot_be_ended_is_an_error_that_names_it(started, monkeypatch):
    handle = started("sleep", "60")
    with monkeypatch.context() as patch:
        patch.setattr(process, "KILL_LIMIT_S", 0.1)
        patch.setattr(os, "kill", lambda _pid, _number: None)
        sentence = rf"process {handle.spawned.pid} \(sleep 60\) to end on SIGKILL"
        with pytest.raises(ServerError, match=sentence):
            ProcessSupervisor().stop(handle, 0.1)


def test_a_server_that_ends_before_its_signal_is_as_good_as_stopped(started, monkeypatch):
    handle = started("sleep", "60")
    kill = os.kill

    def kill_late(pid, number):
        kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kill(pid, number)

    monkeypatch.setattr(os, "kill", kill_late)
    ProcessSupervisor().stop(handle, 2)
    assert ProcessSupervisor().failure(handle) == f"process {handle.spawned.pid} ended"


def test_a_server_of_another_boot_does_not_run_though_its_pid_does(started):
    handle = started("sleep", "60")
    stale = handle.model_copy(update={"boot_id": "another"})
    assert ProcessSupervisor().failure(stale) == "its host was started anew"


def test_a_service_outlives_a_signal_to_the_group_that_started_it(started):
    handle = started("sleep", "60")
    assert os.getpgid(handle.spawned.pid) == handle.spawned.pid
    assert proc.session_id(handle.spawned.pid) == handle.spawned.pid


def test_snakemakes_thread_counts_are_not_passed_on(started, monkeypatch):
    for name in (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    handle = started("sh", "-c", "env; echo done", EXTRA="given")
    text = log_of(handle, "done")
    assert "_THREADS" not in text
    assert "EXTRA=given" in text
    assert "PYTHONUNBUFFERED=1" in text  # else a log lags behind what it is cut at


def test_both_outputs_go_to_a_log_that_begins_anew_and_broken_pipes_end_a_server(started, tmp_path):
    log = tmp_path / "logs" / "server-0.log"
    log.parent.mkdir()
    log.write_text("CUDA out of memory, the last time" * 10)
    handle = started("sh", "-c", "grep SigIgn /proc/self/status; echo done >&2")
    ignored, end = log_of(handle, "done").splitlines()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not int(ignored.split()[1], 16) & 1 << number - 1
    assert end == "done"


@pytest.mark.parametrize(
    ("script", "words"), [("exit 3", "exit code 3"), ("kill -9 $$", f"by {signal.SIGKILL.name}")]
)
def test_a_failure_says_how_the_process_ended(started, script, words):
    handle = started("sh", "-c", script)
    for _ in range(100):
        cause = ProcessSupervisor().failure(handle)
        if cause is not None:
            break
        time.sleep(0.05)
    assert words in cause


def test_a_command_that_is_not_there_is_refused(started):
    with pytest.raises(ServerError, match=r"expected to start /no/such/python"):
        started("/no/such/python")


def test_the_log_is_cut_at_cursors(started):
    handle = started("sh", "-c", "echo one; sleep 60")
    supervisor = ProcessSupervisor()
    log_of(handle, "one")
    cursor = supervisor.log_cursor(handle)
    with open(handle.log, "a") as log:
        log.write("two\n")
    end = supervisor.log_cursor(handle)
    with open(handle.log, "a") as log:
        log.write("three\n")
    assert supervisor.log_since(handle, cursor) == "two\nthree\n"
    assert supervisor.log_since(handle, cursor, end) == "two\n"
    assert supervisor.log_since(handle, "", cursor) == "one\n"
    assert supervisor.log_since(handle, supervisor.log_cursor(handle)) == ""


def test_a_server_whose_log_was_removed_has_said_nothing(started):
    handle = started("sleep", "60")
    Path(handle.log).unlink()
    assert ProcessSupervisor().log_since(handle, "") == ""


@pytest.mark.parametrize("change", [lambda log: log.write_text(""), Path.unlink], ids=["emptied", "removed"])
def test_a_log_that_is_emptied_or_removed_meanwhile_is_noticed(started, change):
    handle = started("sh", "-c", "echo one; sleep 60")
    log_of(handle, "one")
    journal = ServiceJournal(ProcessSupervisor(), handle)
    start = journal.mark()
    change(Path(handle.log))
    with pytest.raises(MeasurementError, match=r"\.log to grow while it is read, got a shorter file or none"):
        journal.read(start, journal.mark())


def test_listeners_are_found_with_their_owners(free_port):
    with stranger(free_port) as process:
        assert proc.owners(free_port) == {process.pid}
    assert proc.owners(free_port) == set()


def test_a_connection_at_a_port_is_no_listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), server.accept()[0]:
            server.close()
            assert proc.listeners(port) == set()


def test_a_zombie_does_not_live():
    with subprocess.Popen(["true"]) as process:
        while host.start_ticks(process.pid) is not None:
            time.sleep(0.02)
        assert proc.living(lambda pid: pid == process.pid) == []
