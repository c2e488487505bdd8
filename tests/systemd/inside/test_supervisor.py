"""The systemd supervisor under a real systemd."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.servers.factories import make_spec
from tests.systemd.inside.conftest import Spawn, systemctl

from draftbench import host
from draftbench.errors import ServerError
from draftbench.servers.systemd import SystemdSupervisor

SLEEP = "import time; time.sleep(600)"
# Prints the pid of a grandchild that has left its session and its parent.
ORPHAN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    print("orphan", os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""
TICKING = "import time\nfor n in range(10000): print('tick', n); time.sleep(0.1)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"


def wait_for(condition: Callable[[], object], limit_s: float = 10.0) -> object:
    deadline_s = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.05)
    return value


def orphan_pid(supervisor: SystemdSupervisor, spawn: Spawn) -> tuple[object, int]:
    handle = spawn(ORPHAN)
    line = wait_for(lambda: supervisor.log_since(handle, ""))
    return handle, int(str(line).split()[1])


def test_a_service_runs_as_a_unit_without_restart_and_rate_limit(spawn: Spawn) -> None:
    handle = spawn(SLEEP)
    names = "MainPID,Restart,KillMode,LogRateLimitIntervalUSec,ActiveState,TimeoutStopUSec"
    shown = set(systemctl("show", handle.spawned.unit, "-p", names).splitlines())
    assert shown == {
        f"MainPID={handle.spawned.pid}",
        "Restart=no",
        "KillMode=control-group",
        "LogRateLimitIntervalUSec=0",
        "ActiveState=active",
        "TimeoutStopUSec=2s",
    }


def test_a_running_service_has_no_failure(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    assert supervisor.failure(spawn(SLEEP)) is None


def test_arguments_arrive_as_they_are(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    odd = ("$HOME", "${HOME}", "%h %%", "a b", "back\\slash", '"quoted"')
    handle = spawn("import sys, time; print(sys.argv[1:]); time.sleep(600)", arguments=odd)
    assert wait_for(lambda: supervisor.log_since(handle, "")) == f"{list(odd)}\n"


def test_the_launchs_variables_arrive_and_snakemakes_do_not(
    supervisor: SystemdSupervisor, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SECRET_TOKEN", "do not pass on")
    program = (
        "import os, time; print([os.environ.get(n) for n in "
        "('NCCL_P2P_DISABLE', 'OMP_NUM_THREADS', 'SECRET_TOKEN')]); time.sleep(600)"
    )
    handle = spawn(program, environment={"NCCL_P2P_DISABLE": "1"})
    assert wait_for(lambda: supervisor.log_since(handle, "")) == "['1', None, None]\n"


def test_an_early_end_is_told_with_its_status(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    try:
        handle = spawn("import sys; print('no room'); sys.exit(3)")
    except ServerError as error:  # it had ended before systemd answered
        said = str(error)
    else:
        said = f"{wait_for(lambda: supervisor.failure(handle))} {supervisor.log_since(handle, '')}"
    assert "it exited with status 3" in said
    assert "no room" in said


def test_a_program_that_is_missing_is_one_sentence(supervisor: SystemdSupervisor) -> None:
    with pytest.raises(ServerError, match=r"expected to start /nowhere/python, got no such program"):
        supervisor.spawn(make_spec("/nowhere/python"))


def test_a_killed_server_is_noticed_and_leaves_no_child(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle, child = orphan_pid(supervisor, spawn)
    os.kill(handle.spawned.pid, signal.SIGKILL)
    cause = wait_for(lambda: supervisor.failure(handle))
    assert "it was ended by signal 9" in str(cause)
    wait_for(lambda: host.start_ticks(child) is None)


def test_a_stop_ends_processes_that_left_the_session(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle, child = orphan_pid(supervisor, spawn)
    assert supervisor.owns(handle, child)
    supervisor.stop(handle, 2.0)
    assert host.start_ticks(child) is None
    assert host.start_ticks(handle.spawned.pid) is None
    assert systemctl("show", handle.spawned.unit, "-p", "LoadState") == "LoadState=not-found"


def test_a_server_that_ignores_sigterm_is_killed(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle = spawn(STUBBORN)
    wait_for(lambda: supervisor.log_since(handle, ""))
    started_s = time.monotonic()
    supervisor.stop(handle, 2.0)
    assert 1.5 < time.monotonic() - started_s < 8
    assert host.start_ticks(handle.spawned.pid) is None


def test_the_journal_stays_as_a_file(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle = spawn("import time; print('ready to roll'); time.sleep(600)")
    wait_for(lambda: supervisor.log_since(handle, ""))
    supervisor.stop(handle, 2.0)
    assert Path(handle.log).read_text() == "ready to roll\n"


def test_no_line_of_a_flood_is_lost(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle = spawn("import time\nfor n in range(20000): print('line', n)\nprint('done'); time.sleep(600)")
    wait_for(lambda: supervisor.log_since(handle, "").endswith("done\n"), 30.0)
    assert len(supervisor.log_since(handle, "").splitlines()) == 20001


def test_the_log_is_bounded_by_cursors(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle = spawn(TICKING)
    wait_for(lambda: "tick 2" in supervisor.log_since(handle, ""))
    start = supervisor.log_cursor(handle)
    seen = supervisor.log_since(handle, "", start)
    wait_for(lambda: supervisor.log_since(handle, start))
    end = supervisor.log_cursor(handle)
    between = supervisor.log_since(handle, start, end)
    wait_for(lambda: len(supervisor.log_since(handle, start)) > len(between))
    assert between
    assert supervisor.log_since(handle, start, end) == between
    assert supervisor.log_since(handle, "").startswith(seen + between)


def test_colours_and_broken_bytes_are_text(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle = spawn(
        "import sys, time; sys.stdout.buffer.write(b'\\x1b[31mred\\x1b[0m \\xff\\n'); time.sleep(600)"
    )
    assert wait_for(lambda: supervisor.log_since(handle, "")) == "\x1b[31mred\x1b[0m \ufffd\n"


def test_a_long_line_is_whole(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle = spawn("import time; print('x' * 20000); time.sleep(600)")
    assert wait_for(lambda: supervisor.log_since(handle, "")) == "x" * 20000 + "\n"


def test_a_restart_by_somebody_else_is_noticed(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle = spawn(SLEEP)
    systemctl("restart", handle.spawned.unit)
    assert "was started anew by somebody else" in str(supervisor.failure(handle))


def test_a_stop_by_somebody_else_is_noticed(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle = spawn(SLEEP)
    systemctl("stop", handle.spawned.unit)
    assert "is gone: somebody stopped it" in str(supervisor.failure(handle))


def test_another_process_does_not_belong_to_the_service(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle = spawn(SLEEP)
    assert supervisor.owns(handle, handle.spawned.pid)
    assert not supervisor.owns(handle, os.getpid())


def test_strays_are_stopped_and_strangers_are_not(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    stray = spawn(SLEEP)
    stranger = "draftbench-0-of-another-run-directory"
    subprocess.run(["systemd-run", "--quiet", f"--unit={stranger}", "sleep", "600"], check=True, timeout=30)
    supervisor.stop_strays(1.0)
    assert host.start_ticks(stray.spawned.pid) is None
    assert systemctl("is-active", stranger) == "active"
    systemctl("stop", stranger)


def test_memory_and_processor_time_are_counted(supervisor: SystemdSupervisor, spawn: Spawn) -> None:
    handle = spawn("import time; b = bytearray(50_000_000); sum(range(10**6)); print('up'); time.sleep(600)")
    wait_for(lambda: supervisor.log_since(handle, ""))
    usage = supervisor.usage(handle)
    assert 50e6 < usage["memory_peak_bytes"] < 500e6
    assert 0 < usage["cpu_s"] < 60
