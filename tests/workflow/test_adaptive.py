"""More sessions while intervals are wide: the real Snakefile, one command, a fake engine whose AR drifts."""

import json
import shutil

import pytest
from tests.workflow.test_graph import cpu_time_of_children_s
from tests.workflow.workspace import Workspace, small_campaign, two_services

REPORT = {"summarise": 1, "figures": 1, "typeset": 1}
SHORT, PAIR = 4, 6  # tokens of the two workloads' answers
# Two sessions leave one degree of freedom: even a steady server is known no better than some 20 % then.
ASKED = 0.9
DRIFT = {"token_s": 0.05, "drifting": SHORT}


def adaptive_campaign(*, max_sessions=3, half_width=ASKED):
    campaign = two_services() | {"sessions": 2}
    campaign["workloads"]["pair"]["max_tokens"] = PAIR
    return campaign | {"adaptive": {"half_width": half_width, "max_sessions": max_sessions}}


@pytest.fixture
def fresh(tmp_path):
    """An adaptive campaign of which nothing has been done."""
    made = Workspace(tmp_path).create(adaptive_campaign())
    made.behave(**DRIFT)
    yield made
    made.clean_up()


@pytest.fixture(scope="module")
def drifted(tmp_path_factory):
    """The same after one command; for reading only."""
    made = Workspace(tmp_path_factory.mktemp("drifted")).create(adaptive_campaign())
    made.behave(**DRIFT)
    made.first_run = made.run()
    yield made
    made.clean_up()


@pytest.fixture
def finished(drifted, tmp_path):
    """A copy of it, events kept: they are what the drift counts."""
    shutil.copytree(drifted.path, tmp_path, symlinks=True, dirs_exist_ok=True)
    made = Workspace(tmp_path)
    yield made
    made.clean_up()


def results(workspace):
    """Cells with a result, by session."""
    by_session = {}
    for path in (workspace.path / "results/small").glob("*[!d].json"):  # not *.failed.json
        result = json.loads(path.read_text())
        by_session.setdefault(result["session"], set()).add((result["service"], result["workload"]))
    return by_session


def verdict(workspace, group, session):
    path = workspace.path / f"report/build/small/sessions/{ASKED}/{group}.{session}.json"
    return json.loads(path.read_text())


def test_a_fresh_dry_run_announces_the_first_sessions_and_their_judges(fresh):
    assert fresh.pending() == {"stage": 1, "start": 4, "measure": 8, "judge": 2, **REPORT}
    assert fresh.events() == []


def test_one_command_measures_further_sessions_only_where_the_interval_is_wide(drifted):
    assert drifted.first_run.code == 0, drifted.first_run.text
    assert (drifted.path / "report/bench.pdf").exists()
    assert verdict(drifted, "tp1.short", 2)["needs_more"]
    assert not verdict(drifted, "tp1.pair", 2)["needs_more"]
    found = results(drifted)
    assert sorted(found) == [1, 2, 3]
    assert len(found[1]) == len(found[2]) == 4
    assert found[3] == {("tp1-ar-s3", "short"), ("tp1-dflash-s3", "short")}


def test_each_service_of_each_session_is_started_once_session_after_session(drifted):
    starts = drifted.starts()
    assert [sorted(starts[n : n + 2]) for n in (0, 2, 4)] == [["ar", "dflash"]] * 3
    assert len(starts) == 6
    assert drifted.living_servers() == []


def test_a_finished_adaptive_campaign_has_nothing_to_do_after_a_reboot(finished):
    finished.reboot()
    assert "Nothing to be done" in finished.snakemake("-n", "report/bench.pdf").text


@pytest.mark.slow
def test_a_deleted_result_of_a_further_session_is_measured_again_and_nothing_else(finished):
    finished.result("tp1-dflash-s3.short").unlink()
    assert finished.pending() == {"stage": 1, "start": 1, "measure": 1, **REPORT}
    num_starts = len(finished.starts())
    assert finished.run().code == 0
    assert finished.starts()[num_starts:] == ["dflash"]
    assert finished.pending() == {}


@pytest.mark.slow
def test_a_deleted_result_of_an_early_session_is_judged_again(finished):
    finished.result("tp1-dflash.short").unlink()
    assert finished.pending() == {"stage": 1, "start": 1, "measure": 1, "judge": 1, **REPORT}
    num_starts = len(finished.starts())
    assert finished.run().code == 0
    assert finished.starts()[num_starts:] == ["dflash"]
    assert finished.pending() == {}


@pytest.mark.slow
def test_a_higher_limit_measures_only_the_new_sessions(finished):
    before = results(finished)
    finished.configure(adaptive_campaign(max_sessions=4))
    assert finished.run().code == 0
    after = results(finished)
    assert after.pop(4) == {("tp1-ar-s4", "short"), ("tp1-dflash-s4", "short")}
    assert after == before
    assert len(finished.starts()) == 8
    assert finished.pending() == {}


@pytest.mark.slow
def test_what_a_narrower_width_asks_for_is_measured_also_after_an_interruption(finished):
    finished.configure(adaptive_campaign(half_width=1e-6, max_sessions=4))
    assert finished.run("--until", "judge").code == 0
    assert not verdict(finished, "tp1.pair", 2)["needs_more"]  # of the other width, which keeps its verdicts
    assert finished.pending() == {"stage": 1, "start": 2, "measure": 2, "judge": 2, **REPORT}
    assert finished.run().code == 0
    found = results(finished)
    assert sorted(found) == [1, 2, 3, 4]
    assert {len(cells) for cells in found.values()} == {4}
    assert finished.pending() == {}


@pytest.mark.slow
def test_lost_verdicts_are_found_again_without_measuring(finished):
    shutil.rmtree(finished.path / "report")
    num_starts = len(finished.starts())
    assert finished.run().code == 0
    assert len(finished.starts()) == num_starts
    assert finished.pending() == {}


@pytest.mark.slow
def test_a_failed_cell_keeps_only_its_own_workload_from_further_sessions(fresh):
    fresh.behave(**DRIFT, dflash=f"fail-{PAIR}")
    assert fresh.run().code == 1
    assert ("tp1-dflash-s3", "short") in results(fresh)[3]
    assert not (fresh.path / "report/bench.pdf").exists()
    fresh.behave(**DRIFT)
    assert fresh.snakemake("--cores", "1", "measured").code == 0
    assert ("tp1-dflash-s2", "pair") in results(fresh)[2]
    assert fresh.pending() == REPORT


@pytest.mark.slow
def test_a_forced_result_is_measured_once(finished):
    cell = "results/small/tp1-ar-s3.short.json"
    assert finished.pending("--forcerun", cell)["measure"] == 1
    num_starts = len(finished.starts())
    assert finished.run("--forcerun", cell).code == 0
    assert len(finished.starts()) == num_starts + 1
    assert finished.pending() == {}


@pytest.mark.slow
def test_a_thousand_cells_are_planned_in_seconds_also_where_there_may_be_more(fresh):
    campaign = small_campaign() | {"sessions": 2, "adaptive": {"half_width": 0.05, "max_sessions": 4}}
    campaign["methods"] = {f"ddtree-b{n}": {"algorithm": "ddtree", "budget": n} for n in range(1, 50)}
    campaign["methods"]["ar"] = {"algorithm": "ar"}
    short = campaign["workloads"]["short"]
    campaign["workloads"] = {f"short-{n}": short | {"max_tokens": n} for n in range(1, 11)}
    fresh.configure(campaign)
    before_s = cpu_time_of_children_s()
    assert fresh.pending()["measure"] == 1000
    assert cpu_time_of_children_s() - before_s < 10  # as in test_graph
