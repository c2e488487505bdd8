"""A run begins alone, in a session of its own, and leaves nothing of itself."""

import os
import signal
from pathlib import Path

import pytest

from draftbench import host
from draftbench.campaign_file import read_campaign, read_mapping
from draftbench.errors import DraftbenchError, ServerError
from draftbench.plan import Plan
from draftbench.run import Run
from draftbench.servers.lifecycle import ServiceKeeper
from draftbench.staging import room
from draftbench.staging.place import campaign_root
from draftbench.steps import Steps

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def plan(tmp_path, monkeypatch):
    for name in ("RUN", "STATE"):
        monkeypatch.setenv(f"DRAFTBENCH_{name}_DIR", str(tmp_path / name.lower()))
    path = ROOT / "config" / "smoke.yaml"
    return Plan(read_campaign([path], read_mapping(path)), ROOT)


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, also where the tests themselves were started to ignore it."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def begun(plan, session, *, only_reports=False):
    run = Run(plan, session)
    run.begin(needs_services=False, needs_tex=False, only_reports=only_reports)
    return run


def test_a_run_replaces_the_sessions_that_others_left(plan, interruptible):
    left = host.sessions_directory() / "left"
    left.mkdir(parents=True)
    session = host.sessions_directory() / "own"
    run = begun(plan, session)
    assert sorted(path.name for path in session.iterdir()) == ["campaign.json", "specs.json"]
    assert not left.exists()
    run.end()
    assert not session.exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    session.mkdir()  # of a run that began since
    run.end()
    assert session.exists()


def test_two_runs_at_once_are_refused_whatever_their_sessions(plan):
    run = begun(plan, host.sessions_directory() / "own")
    with pytest.raises(DraftbenchError, match=f"process {os.getpid()} runs a campaign"):
        begun(plan, host.sessions_directory() / "other")
    assert (host.sessions_directory() / "own").exists()
    run.end()
    begun(plan, host.sessions_directory() / "other").end()


def test_only_the_process_that_began_a_run_ends_it(plan, monkeypatch):
    session = host.sessions_directory() / "own"
    run = begun(plan, session)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)  # as in a fork, which inherits the run
        run.end()
    assert session.exists()
    run.end()
    assert not session.exists()


def test_a_service_that_cannot_be_stopped_ends_the_run_all_the_same(plan, interruptible, monkeypatch):
    def fail(_keeper):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        raise ServerError("it hangs in a driver")

    session = host.sessions_directory() / "own"
    run = begun(plan, session)
    monkeypatch.setattr(ServiceKeeper, "end", fail)
    with pytest.raises(ServerError, match="hangs in a driver"):
        run.end()
    assert not session.exists()
    with host.exclusive(host.host_lock_path(), "runs a campaign"):
        pass


def test_reports_are_built_beside_each_other_and_not_beside_a_campaign(plan):
    sessions = [host.sessions_directory() / name for name in ("one", "other")]
    runs = [begun(plan, session, only_reports=True) for session in sessions]
    assert all((session / "specs.json").exists() for session in sessions)
    with pytest.raises(DraftbenchError, match=f"process {os.getpid()} builds a report"):
        begun(plan, host.sessions_directory() / "measuring")
    for run in runs:
        run.end()
    measuring = begun(plan, host.sessions_directory() / "measuring")
    with pytest.raises(DraftbenchError, match=f"process {os.getpid()} runs a campaign"):
        begun(plan, sessions[0], only_reports=True)
    assert (measuring.session / "specs.json").exists()
    measuring.end()


def test_where_models_are_staged_is_settled_once_in_a_run(plan, tmp_path, monkeypatch):
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(host, "TMPFS", tmp_path / "shm")
    monkeypatch.setattr(room, "free_bytes", lambda _directory: 10**12)
    monkeypatch.setattr(room, "available_memory_bytes", lambda: 10**12)
    session = host.sessions_directory() / "own"
    begun(plan, session)
    monkeypatch.setattr(room, "available_memory_bytes", lambda: 0)
    assert campaign_root(plan.campaign) != room.memory_directory()
    assert campaign_root(Steps(session).campaign) == room.memory_directory()


def test_a_session_elsewhere_is_refused_and_its_neighbours_are_left_alone(plan, tmp_path):
    neighbour = tmp_path / "home" / "precious"
    neighbour.mkdir(parents=True)
    with pytest.raises(DraftbenchError, match=r"DRAFTBENCH_SESSION: expected a directory in .*; unset it"):
        begun(plan, tmp_path / "home" / "session")
    assert neighbour.exists()
