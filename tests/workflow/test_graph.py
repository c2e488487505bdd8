"""What runs, in which order, and what does not: the real Snakefile with a fake engine."""

import json
import resource
from itertools import groupby

from tests.workflow.workspace import small_campaign, two_services

from draftbench.config import load_campaign
from draftbench.plan import Plan

EVERYTHING = {"stage": 1, "start": 3, "measure": 6, "summarise": 1, "figures": 1, "typeset": 1}
ONE_CELL = {"stage": 1, "start": 1, "measure": 1, "summarise": 1, "figures": 1, "typeset": 1}
REPORT_ONLY = {"summarise": 1, "figures": 1, "typeset": 1}


def assert_one_start_per_service(workspace, *methods):
    """Each was started once, and no two lived or answered at once."""
    assert sorted(workspace.starts()) == sorted(methods)
    living = 0
    for event in workspace.events():
        living += {"start": 1, "stop": -1}.get(event["event"], 0)
        assert living <= 1
    requests = [event["method"] for event in workspace.events("request")]
    assert len(list(groupby(requests))) == len(methods)


def test_a_fresh_dry_run_announces_every_job_and_starts_nothing(workspace):
    assert workspace.pending() == EVERYTHING
    assert workspace.events() == []


def test_one_core_starts_each_service_once_and_runs_one_at_a_time(measured):
    assert measured.first_run.code == 0, measured.first_run.text
    assert_one_start_per_service(measured, "ar", "dflash", "ddtree-b8")
    assert measured.living_servers() == []


def test_four_cores_run_no_two_services_or_cells_at_once(workspace):
    workspace.configure(two_services())
    assert workspace.run(cores=4).code == 0
    assert_one_start_per_service(workspace, "ar", "dflash")


def test_a_server_gets_no_thread_count_from_snakemake(measured):
    assert {event["omp"] for event in measured.events()} == {None}


def test_a_finished_campaign_has_nothing_to_do_after_a_reboot(finished):
    finished.reboot()
    assert "Nothing to be done" in finished.snakemake("-n", "report/bench.pdf").text


def test_a_deleted_result_is_measured_again_and_nothing_else(finished):
    finished.reboot()
    finished.result("tp1-dflash.short").unlink()
    assert finished.pending() == ONE_CELL
    assert finished.run().code == 0
    assert finished.starts() == ["dflash"]
    assert finished.pending() == {}


def test_a_forced_result_is_measured_again_and_nothing_else(finished):
    assert finished.pending("--forcerun", "results/small/tp1-dflash.short.json") == ONE_CELL


def test_another_budget_measures_that_method_again(finished):
    campaign = small_campaign()
    campaign["methods"]["ddtree-b8"]["budget"] = 9
    finished.configure(campaign)
    assert finished.pending() == ONE_CELL | {"measure": 2}
    finished.configure(small_campaign())
    assert finished.pending() == {}


def test_another_prompt_measures_everything_again(finished):
    prompts = finished.path / "prompts.yaml"
    prompts.write_text(prompts.read_text().replace("0 a measured", "another"))
    assert finished.pending() == EVERYTHING


def test_other_limits_measure_nothing_again(finished):
    campaign = small_campaign()
    campaign["limits"]["ready_s"] = 11
    finished.configure(campaign)
    assert finished.pending() == {}


def test_comments_in_scripts_rerun_only_what_reads_them(finished):
    for name in ("stage", "start", "measure"):
        with (finished.path / f"scripts/{name}.py").open("a") as script:
            script.write("# a comment\n")
    assert finished.pending() == {}
    with (finished.path / "scripts/summarise.py").open("a") as script:
        script.write("# a comment\n")
    assert finished.pending() == REPORT_ONLY


def test_services_start_in_the_plans_random_order(measured):
    plan = Plan(load_campaign(small_campaign(), "small"), measured.path)
    assert [f"tp1-{method}" for method in measured.starts()] == list(plan.service_order)
    stored = {cell: json.loads(measured.result(cell).read_text())["order_index"] for cell in plan.cells}
    assert stored == plan.order


def test_models_take_turns_session_by_session(workspace):
    campaign = small_campaign() | {"sessions": 2}
    campaign["methods"] = {"ar": campaign["methods"]["ar"]}
    campaign["workloads"] = {"short": campaign["workloads"]["short"]}
    campaign["models"]["twin"] = campaign["models"]["tiny"]
    workspace.configure(campaign)
    assert workspace.run().code == 0
    plan = Plan(load_campaign(campaign, "small"), workspace.path)
    results = {cell: json.loads(workspace.result(cell).read_text()) for cell in plan.cells}
    assert sorted(results, key=lambda cell: results[cell]["started_at"]) == list(plan.order)


def test_a_campaign_file_replaces_the_default_one(workspace):
    (workspace.path / "other.yaml").write_text((workspace.path / "config/config.yaml").read_text())
    campaign = small_campaign()
    campaign["methods"]["only-here"] = {"algorithm": "ar"}
    workspace.configure(campaign)
    assert workspace.pending("--configfile", "other.yaml") == EVERYTHING


def test_several_campaign_files_are_merged_in_order(workspace):
    for name, value in (("first", 9), ("second", 5)):
        (workspace.path / f"{name}.yaml").write_text(
            f"methods: {{more-{name}: {{algorithm: ddtree, budget: {value}}}}}"
        )
    files = ("config/config.yaml", "first.yaml", "second.yaml")
    assert workspace.pending("--configfile", *files)["start"] == 5


def test_a_thousand_cells_are_planned_in_seconds(workspace):
    campaign = small_campaign()
    campaign["methods"] = {f"ddtree-b{n}": {"algorithm": "ddtree", "budget": n} for n in range(1, 101)}
    short = campaign["workloads"]["short"]
    campaign["workloads"] = {f"short-{n}": short | {"max_tokens": n} for n in range(1, 11)}
    workspace.configure(campaign)
    before_s = cpu_time_of_children_s()
    assert workspace.pending()["measure"] == 1000
    assert cpu_time_of_children_s() - before_s < 10  # 3 s on a quiet host, twice that on a busy one


def cpu_time_of_children_s():
    """Of the commands that have ended; unlike the clock, it does not count what else the host does."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
