"""What goes wrong, and what the next invocation makes of it."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.workflow.test_graph import ONE_CELL
from tests.workflow.workspace import Workspace, two_services

SLOW = {"token_s": 0.15}
CELLS = 4


@pytest.fixture
def workspace(tmp_path):
    """A campaign of two services of which nothing has been done."""
    made = Workspace(tmp_path).create(two_services())
    yield made
    made.clean_up()


def wait_for(condition, limit_s=90):
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.05)


def finish(process):
    text, _ = process.communicate(timeout=120)
    return process.returncode, text


def measuring(workspace):
    """Commands of this workspace that measure now."""
    return stepping(workspace, b"scripts/measure.py")


def stepping(workspace, script=b"scripts/"):
    """Commands of this workspace that run a step now."""
    token = f"DRAFTBENCH_RUN_DIR={workspace.path}/run".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_step = script in (entry / "cmdline").read_bytes()
            if is_step and token in (entry / "environ").read_bytes().split(b"\0"):
                found.append(entry.name)
        except OSError:
            continue  # it ended in between
    return found


def interrupted_in_a_cell(workspace, number, *, is_terminal):
    """Start a run, and send a signal while its second cell is measured."""
    process = workspace.popen("--cores", "1", "report/bench.pdf")
    wait_for(lambda: len(list((workspace.path / "results/small").glob("*.json"))) == 1)
    workspace.behave(**SLOW)
    seen = len(workspace.events("request"))
    wait_for(lambda: len(workspace.events("request")) > seen)
    if is_terminal:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    code, text = finish(process)
    workspace.behave()
    return code, text


def test_after_kill_9_the_same_command_resumes_with_the_living_service(workspace):
    interrupted_in_a_cell(workspace, signal.SIGKILL, is_terminal=False)
    wait_for(lambda: not measuring(workspace))
    assert len(workspace.living_servers()) == 1
    (first,) = (workspace.path / "results/small").glob("*.json")
    before = first.stat().st_mtime_ns
    assert workspace.pending()["measure"] == CELLS - 1
    assert workspace.run().code == 0
    assert first.stat().st_mtime_ns == before
    assert len(workspace.starts()) == 2
    assert workspace.pending() == {}


def test_a_step_that_has_only_begun_dies_with_snakemake_too(workspace):
    process = workspace.popen("--cores", "1", "report/bench.pdf")
    wait_for(lambda: stepping(workspace, b"scripts/start.py"))
    process.kill()
    finish(process)
    wait_for(lambda: not stepping(workspace), limit_s=10)
    assert workspace.starts() == []


def test_ctrl_c_stops_the_service_and_keeps_what_is_finished(workspace):
    code, text = interrupted_in_a_cell(workspace, signal.SIGINT, is_terminal=True)
    assert code == 1
    assert "error: interrupted; the same command goes on" in text
    assert "Traceback" not in text
    assert workspace.living_servers() == []
    assert workspace.pending()["measure"] == CELLS - 1


def test_a_second_ctrl_c_does_not_keep_the_service_from_being_stopped(workspace):
    process = workspace.popen("--cores", "1", "report/bench.pdf")
    wait_for(lambda: workspace.events("request"))
    workspace.behave(stop_s=1)
    os.killpg(process.pid, signal.SIGINT)
    wait_for(lambda: workspace.events("stop"))
    os.killpg(process.pid, signal.SIGINT)
    code, text = finish(process)
    assert code == 1
    assert "Traceback" not in text
    assert workspace.living_servers() == []


def test_an_interrupt_of_snakemake_alone_stops_the_service(workspace):
    code, _ = interrupted_in_a_cell(workspace, signal.SIGINT, is_terminal=False)
    assert code == 1
    assert workspace.living_servers() == []


def test_a_second_instance_is_refused_in_one_sentence(workspace):
    workspace.behave(token_s=0.2)
    process = workspace.popen("--cores", "1", "report/bench.pdf")
    try:
        wait_for(lambda: workspace.events("request"))
        second = workspace.run()
        assert second.code == 1
        assert f"process {process.pid} runs a campaign" in second.error()
        assert "Traceback" not in second.text
        workspace.behave()
        assert finish(process)[0] == 0
    finally:
        process.kill()
    assert len(workspace.starts()) == 2


def test_a_service_killed_between_cells_is_brought_back_by_the_next(workspace):
    process = workspace.popen("--cores", "1", "report/bench.pdf")
    wait_for(lambda: list((workspace.path / "results/small").glob("*.json")))
    (pid,) = workspace.living_servers()
    os.kill(pid, signal.SIGKILL)
    code, text = finish(process)
    done = len(list((workspace.path / "results/small").glob("*.json")))
    if code == 0:
        assert len(workspace.starts()) == 3
    else:  # it died while a cell was measured: that one failed, the others ran
        assert done == CELLS, text


def test_a_service_that_never_gets_ready_fails_its_cells_and_the_others_run(workspace):
    workspace.behave(dflash="exit")
    finished = workspace.run()
    assert finished.code == 1
    assert len(list((workspace.path / "results/small").glob("*.json"))) == CELLS
    for workload in ("short", "pair"):
        failure = workspace.failure(f"tp1-dflash.{workload}")
        assert failure["reason"] == "crash"
        assert "a scripted end" in failure["message"]
    assert workspace.log("start", "tp1-dflash").splitlines()[-1] == f"error: {failure['message']}"
    workspace.behave()
    assert workspace.pending() == ONE_CELL | {"measure": 2}
    assert workspace.run().code == 0
    assert list((workspace.path / "results/small").glob("*.failed.json")) == []


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """A campaign whose DFlash server answers every measurement with an error."""
    made = Workspace(tmp_path_factory.mktemp("failed")).create(two_services())
    made.behave(dflash="fail")
    made.first_run = made.run()
    yield made
    made.clean_up()


def test_a_cell_that_fails_says_why_in_its_logs_last_line_and_the_others_run(failed):
    assert failed.first_run.code == 1
    assert len(failed.starts()) == 2
    for workload in ("short", "pair"):
        cell = f"tp1-dflash.{workload}"
        assert "a scripted fault" in failed.log("measure", cell).splitlines()[-1]
        assert "a scripted fault" in failed.failure(cell)["message"]
    assert failed.pending() == ONE_CELL | {"measure": 2}


def test_the_partial_report_is_built_without_measuring(failed):
    num_requests = len(failed.events("request"))
    partial = failed.snakemake("--cores", "1", "report/partial.pdf")
    assert partial.code == 0, partial.text
    assert (failed.path / "report/partial.pdf").exists()
    assert len(failed.events("request")) == num_requests


def test_a_server_that_dies_in_a_cell_is_reported_and_started_again(workspace):
    workspace.behave(dflash="die")
    finished = workspace.run("--until", "measure")
    assert finished.code == 1
    assert workspace.failure("tp1-dflash.short")["reason"] == "crash"
    assert workspace.starts().count("dflash") == 2
    assert workspace.living_servers() == []


def test_results_without_a_report_are_made_by_their_own_target(workspace):
    campaign = two_services()
    del campaign["methods"]["dflash"]
    workspace.configure(campaign)
    assert workspace.snakemake("--cores", "1", "measured").code == 0
    assert sorted(path.name for path in (workspace.path / "results/small").iterdir()) == [
        "tp1-ar.pair.json",
        "tp1-ar.short.json",
    ]
    assert not (workspace.path / "report").exists()
