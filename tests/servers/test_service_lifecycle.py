"""Real servers on loopback: started, found healthy, replaced, refused, stopped."""

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
from tests.servers.factories import make_handle, make_spec
from tests.servers.strangers import stranger
from tests.workflow.workspace import Workspace, is_running, small_campaign

from draftbench import host
from draftbench.config import load_campaign, services
from draftbench.errors import ServerDied, ServerError, StartTimeout, WrongServer
from draftbench.servers import environment
from draftbench.servers.base import MARKER, ServiceHandle, Spawned
from draftbench.servers.lifecycle import ServiceKeeper, make_guards
from draftbench.servers.process import token_prefix
from draftbench.staging.stage import StagedModel


class Bench:
    """A keeper of fake servers in a directory of its own."""

    def __init__(self, workspace, **changes):
        self.workspace = workspace
        campaign = load_campaign(small_campaign() | changes, "small")
        self.keeper = ServiceKeeper(campaign, workspace.path)
        self.services = {service.name: service for service in services(campaign)}
        path = workspace.path / "models"
        self.staged = StagedModel(
            target_dir=path / "target", drafter_dir=path / "drafter", target_sha256={}, drafter_sha256={}
        )

    def ensure(self, name):
        return self.keeper.ensure(self.services[name], self.staged, {"target_sha256": {"a": "b"}})


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    made = Workspace(tmp_path).create()
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield made
    made.clean_up()


@pytest.fixture
def bench(workspace):
    return Bench(workspace)


class Noting:
    """A guard that keeps what it is told."""

    name = "noting"

    def __init__(self):
        self.specs = []
        self.stopped = []

    def before_start(self, spec):
        self.specs.append(spec)
        return {"start": len(self.specs)}

    def after_stop(self, handle, limit_s):
        self.stopped.append((handle.held, limit_s, is_running(handle.spawned.pid)))


def test_a_healthy_service_is_left_alone(bench):
    first = bench.ensure("tp1-dflash")
    assert bench.ensure("tp1-dflash") == first
    assert bench.workspace.starts() == ["dflash"]


def test_another_keeper_finds_the_service(bench):
    first = bench.ensure("tp1-dflash")
    assert Bench(bench.workspace).ensure("tp1-dflash") == first


def test_another_service_replaces_the_running_one(bench):
    first = bench.ensure("tp1-ar")
    second = bench.ensure("tp1-dflash")
    assert not is_running(first.spawned.pid)
    assert is_running(second.spawned.pid)
    assert [event["event"] for event in bench.workspace.events() if event["event"] != "request"] == [
        *("start", "ready", "stop"),
        *("start", "ready"),
    ]


def test_another_budget_under_the_same_name_replaces_the_service(workspace):
    Bench(workspace).ensure("tp1-ddtree-b8")
    methods = small_campaign()["methods"] | {"ddtree-b8": {"algorithm": "ddtree", "budget": 9}}
    Bench(workspace, methods=methods).ensure("tp1-ddtree-b8")
    assert workspace.starts() == ["ddtree-b8", "ddtree-b9"]


def test_the_same_launch_under_another_name_is_another_service(workspace):
    methods = {"ar": {"algorithm": "ar"}, "again": {"algorithm": "ar"}}
    first = Bench(workspace, methods=methods).ensure("tp1-ar")
    second = Bench(workspace, methods=methods).ensure("tp1-again")
    third = Bench(workspace, methods=methods, campaign="other").ensure("tp1-again")
    assert first.fingerprint == second.fingerprint == third.fingerprint
    assert workspace.starts() == ["ar"] * 3


def test_a_server_whose_start_was_interrupted_is_started_again(bench, tmp_path):
    """What it runs on was not recorded, though it serves."""
    handle = bench.ensure("tp1-ar")
    record = tmp_path / "run/service.json"
    record.write_text(handle.model_copy(update={"is_ready": False, "environment": {}}).model_dump_json())
    assert bench.ensure("tp1-ar").environment == handle.environment
    assert bench.workspace.starts() == ["ar", "ar"]


def test_guards_are_told_of_a_stop_what_they_noted_before_the_start(bench):
    bench.keeper.guards = [guard := Noting()]
    bench.ensure("tp1-ar")
    assert guard.stopped == []
    bench.keeper.stop()
    limit_s = bench.keeper.limits.gpu_release_s
    assert guard.stopped == [({"noting": {"start": 1}}, limit_s, False)]


def test_what_a_failed_start_held_is_waited_for(workspace):
    workspace.behave(ar="never-ready")
    bench = Bench(workspace, limits={"ready_s": 0.1, "stop_s": 2})
    bench.keeper.guards = [guard := Noting()]
    with pytest.raises(StartTimeout):
        bench.ensure("tp1-ar")
    assert [held for held, _, _ in guard.stopped] == [{"noting": {"start": 1}}]


def specs_of_starts(workspace, service, **changes):
    """What two starts of a server are asked for whose program is missing."""
    bench = Bench(workspace, **changes)
    bench.keeper.guards = [guard := Noting()]
    for _ in range(2):
        with pytest.raises(ServerError, match="no-python"):
            bench.ensure(service)
    return guard.specs


SGLANG = {"kind": "sglang", "version": "0.5.17", "python": "./no-python"}


@pytest.mark.parametrize(
    ("engine", "num_gpus"), [({"kind": "embedded", "python": "./no-python"}, 0), (SGLANG, 2)]
)
def test_a_service_holds_gpus_where_its_engine_runs_on_them(workspace, engine, num_gpus):
    tp = num_gpus or 1
    specs = specs_of_starts(workspace, f"tp{tp}-ar", engine=engine, tp=[tp])
    assert [spec.num_gpus for spec in specs] == [num_gpus] * 2


@pytest.mark.parametrize("engine", [{"kind": "embedded", "python": "./no-python"}, SGLANG])
def test_starts_of_a_service_are_interchangeable_and_have_the_campaigns_seed(workspace, engine):
    specs = specs_of_starts(workspace, "tp1-ar", engine=engine, seed=7)
    assert specs[0].fingerprint == specs[1].fingerprint
    assert specs[0].token != specs[1].token
    for spec in specs:
        argv = spec.launch.argv
        assert argv[argv.index("--random-seed") + 1] == "7"
        assert not any("speculative" in part for part in argv)


def test_other_settings_of_the_engine_replace_the_service(workspace):
    Bench(workspace).ensure("tp1-ar")
    engine = small_campaign()["engine"] | {"context_length": 64}
    Bench(workspace, engine=engine).ensure("tp1-ar")
    assert workspace.starts() == ["ar", "ar"]


def test_a_server_that_ended_before_it_was_looked_at_is_reported(bench, monkeypatch):
    with subprocess.Popen(["true"]) as process:
        pass
    monkeypatch.setattr(bench.keeper.supervisor, "spawn", lambda _spec: Spawned(pid=process.pid))
    with pytest.raises(ServerDied, match="tp1-ar: expected it to run, but it ended at once; see "):
        bench.ensure("tp1-ar")


@pytest.mark.parametrize(
    ("displaced", "names"), [([], ["port", "gpu"]), (["a"], ["displaced", "port", "gpu"])]
)
def test_units_step_aside_before_ports_and_gpus_are_looked_at(displaced, names):
    supervisor = {"kind": "systemd", "displace": displaced}
    guards = make_guards(load_campaign(small_campaign() | {"supervisor": supervisor}, "small"))
    assert [guard.name for guard in guards] == names


def test_guards_are_asked_in_their_order(bench):
    asked = []

    class Asked(Noting):
        def before_start(self, spec):
            asked.append(self)

    bench.keeper.guards = [Asked(), Asked(), Asked()]
    bench.ensure("tp1-ar")
    assert asked == bench.keeper.guards


def test_a_killed_service_is_started_again(bench):
    first = bench.ensure("tp1-ar")
    os.kill(first.spawned.pid, 9)
    second = bench.ensure("tp1-ar")
    assert second.spawned.pid != first.spawned.pid
    assert len(bench.workspace.living_servers()) == 1


def test_a_stopped_service_leaves_no_process_and_no_record(bench, tmp_path):
    bench.ensure("tp1-ar")
    bench.keeper.stop()
    assert bench.workspace.living_servers() == []
    assert not (tmp_path / "run/service.json").exists()
    bench.keeper.stop()


def test_a_server_without_a_record_is_found_by_its_marker(bench, tmp_path):
    bench.ensure("tp1-ar")
    (tmp_path / "run/service.json").write_text("{")
    bench.keeper.stop()
    assert bench.workspace.living_servers() == []


def test_a_servers_identity_says_how_it_was_started(bench):
    handle = bench.ensure("tp1-ddtree-b8")
    spawned = handle.spawned.model_copy(update={"invocation_id": "one"})
    identity = bench.keeper.identity(handle.model_copy(update={"spawned": spawned}))
    assert identity.pid == handle.spawned.pid
    assert (identity.started_at, identity.invocation_id) == (handle.started_at, "one")
    assert identity.engine_version == "fake"
    assert identity.pid_start_ticks == host.start_ticks(handle.spawned.pid)
    assert identity.boot_id == host.boot_id()
    assert identity.argv[-2:] == ["--speculative-ddtree-budget", "8"]
    assert identity.server_info["speculative_ddtree_budget"] == 8
    assert identity.environment["target_sha256"] == {"a": "b"}
    assert identity.environment["packages"]["snakemake"]


def test_a_dead_servers_identity_is_refused(bench):
    handle = bench.ensure("tp1-ar")
    os.kill(handle.spawned.pid, 9)
    with pytest.raises(ServerDied, match=r"tp1-ar: expected it to run, but process \d+ ended"):
        bench.keeper.identity(handle)


def test_a_server_that_ends_at_once_is_reported_with_its_last_words(bench):
    bench.workspace.behave(ar="exit")
    with pytest.raises(ServerDied, match="its last words: a scripted end; see ") as error:
        bench.ensure("tp1-ar")
    assert error.value.reason == "crash"
    assert "exit code 3" in str(error.value)


def test_a_server_that_runs_out_of_memory_is_reported_as_such(bench):
    bench.workspace.behave(ar="out-of-memory")
    with pytest.raises(ServerDied) as error:
        bench.ensure("tp1-ar")
    assert error.value.reason == "oom"


def test_a_server_that_never_gets_ready_is_given_up_and_stopped(workspace):
    workspace.behave(ar="never-ready")
    bench = Bench(workspace, limits={"ready_s": 1, "stop_s": 2})
    with pytest.raises(StartTimeout, match=r"expected status 200 of /health .* within 1 s, got none"):
        bench.ensure("tp1-ar")
    assert workspace.living_servers() == []


@pytest.mark.parametrize("answer", ["mute", "strange"])
def test_a_server_that_generates_nothing_is_not_ready(workspace, answer):
    workspace.behave(ar=answer)
    bench = Bench(workspace, limits={"ready_s": 1, "stop_s": 2})
    with pytest.raises(StartTimeout, match="expected a generated token from"):
        bench.ensure("tp1-ar")


def test_a_proxy_of_the_environment_is_not_asked(bench, monkeypatch, free_port):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert bench.ensure("tp1-ar") == bench.ensure("tp1-ar")


def test_a_running_server_that_says_it_is_another_one_is_not_left_alone(bench):
    first = bench.ensure("tp1-ar")
    bench.workspace.behave(ar="lie")
    with pytest.raises(WrongServer):
        bench.ensure("tp1-ar")
    assert not is_running(first.spawned.pid)


def test_a_running_server_that_generates_nothing_is_not_left_alone(workspace):
    first = Bench(workspace).ensure("tp1-ar")
    workspace.behave(ar="mute")
    with pytest.raises(StartTimeout):
        Bench(workspace, limits={"ready_s": 0.1, "stop_s": 2}).ensure("tp1-ar")
    assert not is_running(first.spawned.pid)


def test_a_server_that_does_not_say_what_it_was_started_with_is_refused(bench):
    handle = bench.ensure("tp1-ar")
    asked = handle.model_copy(update={"expected": {"tp_size": 8}})
    with pytest.raises(WrongServer, match=r"expected tp_size 8 in http.*, got None"):
        bench.keeper.identity(asked)


def test_a_server_that_drafts_though_it_should_not_is_refused(bench):
    handle = bench.ensure("tp1-ddtree-b8")
    asked = handle.model_copy(update={"expected": {"speculative_ddtree_budget": None}})
    with pytest.raises(WrongServer, match=r"expected speculative_ddtree_budget None in http.*, got 8"):
        bench.keeper.identity(asked)


def test_another_process_at_the_port_of_a_living_server_is_named(bench, free_port):
    handle = bench.ensure("tp1-ar").model_copy(update={"port": free_port})
    with stranger(free_port) as process:
        sentence = rf"its own process {handle.spawned.pid} at port {free_port}, got process {process.pid} "
        with pytest.raises(WrongServer, match=sentence):
            bench.keeper.identity(handle)


def test_a_server_of_another_model_is_refused_and_stopped(bench):
    bench.workspace.behave(ar="lie")
    with pytest.raises(WrongServer, match=r"expected model_path '.*' in http.*, got '/somewhere/else'"):
        bench.ensure("tp1-ar")
    assert bench.workspace.living_servers() == []


def test_a_stranger_at_a_fixed_port_is_named_and_left_alone(workspace, free_port):
    bench = Bench(workspace, port=free_port)
    with stranger(free_port) as process:
        with pytest.raises(ServerError, match=rf"port {free_port}: .* process {process.pid} ") as error:
            bench.ensure("tp1-ar")
        assert error.value.reason == "port"
        assert process.poll() is None
    assert workspace.starts() == []


def test_a_stranger_that_took_our_port_is_no_server_of_ours(bench):
    handle = bench.ensure("tp1-ar")
    os.kill(handle.spawned.pid, 9)
    while is_running(handle.spawned.pid):
        time.sleep(0.02)
    with stranger(handle.port) as process:
        with pytest.raises(ServerDied):
            bench.keeper.identity(handle)
        second = bench.ensure("tp1-ar")
        assert second.port != handle.port
        assert process.poll() is None


def test_a_reused_pid_is_not_taken_for_ours(bench, tmp_path):
    handle = bench.ensure("tp1-ar")
    bench.keeper.stop()
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        ticks = host.start_ticks(other.pid) + 1
        changes = {"spawned": {"pid": other.pid}, "pid_start_ticks": ticks}
        stale = ServiceHandle.model_validate(handle.model_dump() | changes)
        (tmp_path / "run/service.json").write_text(stale.model_dump_json())
        assert not bench.keeper.is_alive(stale)
        bench.keeper.stop()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_service_whose_environment_cannot_be_recorded_is_stopped(bench, monkeypatch):
    def fail(_repository):
        raise ServerError("expected nvidia-smi to answer")

    monkeypatch.setattr(environment, "capture", fail)
    with pytest.raises(ServerError, match="nvidia-smi"):
        bench.ensure("tp1-ar")
    assert bench.keeper.current() is None
    assert bench.workspace.living_servers() == []


def test_a_record_of_another_boot_stops_nothing(bench, tmp_path):
    handle = bench.ensure("tp1-ar")
    bench.keeper.stop()
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        changes = {
            "spawned": {"pid": other.pid},
            "pid_start_ticks": host.start_ticks(other.pid),
            "boot_id": "another",
        }
        stale = ServiceHandle.model_validate(handle.model_dump() | changes)
        (tmp_path / "run/service.json").write_text(stale.model_dump_json())
        bench.keeper.stop()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    ("campaigns", "units"),
    [("system", "user"), ("user", "system"), ("user", "user")],
)
def test_a_units_own_manager_is_asked_whatever_the_campaigns(tmp_path, monkeypatch, campaigns, units):
    tool = tmp_path / "systemctl"
    tool.write_text('#!/bin/sh\necho "$1" >> "$(dirname "$0")/asked"\necho ActiveState=active\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    supervisor = {"kind": "systemd", "manager": campaigns}
    keeper = ServiceKeeper(load_campaign(small_campaign() | {"supervisor": supervisor}, "small"))
    spawned = Spawned(pid=os.getpid(), unit="draftbench-1.service", invocation_id="", manager=units)
    assert keeper.is_alive(make_handle(make_spec(), spawned))
    assert (tmp_path / "asked").read_text() == f"--{units}\n"


def test_a_process_on_record_is_no_unit_though_the_campaign_has_units():
    supervisor = {"kind": "systemd"}
    keeper = ServiceKeeper(load_campaign(small_campaign() | {"supervisor": supervisor}, "small"))
    assert keeper.is_alive(make_handle(make_spec(), Spawned(pid=os.getpid())))


def test_a_unit_on_record_is_stopped_by_its_own_manager_whatever_the_campaigns(workspace, monkeypatch):
    for name in ("systemctl", "journalctl"):
        tool = workspace.path / name
        tool.write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/asked"\necho ActiveState=inactive\n')
        tool.chmod(0o755)
    (workspace.path / "journalctl").write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{workspace.path}{os.pathsep}{os.environ['PATH']}")
    spawned = Spawned(pid=1, unit="draftbench-1.service", invocation_id="one", manager="user")
    handle = make_handle(make_spec(log=workspace.path / "server.log"), spawned)
    (host.run_directory() / "service.json").write_text(handle.model_dump_json())
    Bench(workspace).keeper.stop()
    assert "--user stop --no-block -- draftbench-1.service" in (workspace.path / "asked").read_text()
    assert not (host.run_directory() / "service.json").exists()


@pytest.mark.parametrize("directory", ["/another/run", "{own}-2"])
def test_another_run_directorys_server_is_no_stray(bench, directory):
    token = f"{directory.format(own=host.run_directory())}:1"
    environment = os.environ | {MARKER: token}
    other = subprocess.Popen(["sleep", "60"], env=environment)
    ours = subprocess.Popen(["sleep", "60"], env=os.environ | {MARKER: f"{token_prefix()}1"})
    try:
        bench.keeper.stop()
        assert ours.wait(5) == -15
        assert other.poll() is None
    finally:
        for process in (other, ours):
            process.kill()
            process.wait()


def test_a_port_on_any_address_counts_as_taken(workspace, free_port):
    bench = Bench(workspace, port=free_port)
    listener = socket.create_server(("::", free_port), family=socket.AF_INET6, dualstack_ipv6=True)
    with listener, pytest.raises(ServerError, match=f"process {os.getpid()} "):
        bench.ensure("tp1-ar")


def test_the_servers_log_is_kept(bench):
    bench.workspace.behave(ar="exit")
    with pytest.raises(ServerDied):
        bench.ensure("tp1-ar")
    assert Path("logs/server/small/tp1-ar.log").read_text() == "a beginning\na scripted end\n"
