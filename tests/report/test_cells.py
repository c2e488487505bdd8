"""Rows of the cell table: numbers, marks and reasons."""

import json
import math
from statistics import mean, median

import pytest
from synthetic import Shape, campaign_values, make_result, write_campaign
from test_summarise import find

from draftbench.config import Campaign, cells
from draftbench.report.cells import mark_of, message_of, method_info
from draftbench.report.load import LoadedCell
from draftbench.report.summarise import summarise


@pytest.fixture
def campaign(tmp_path):
    """Files of AR and DFlash; the three paths."""
    return write_campaign(tmp_path / "c", campaign_values(budgets=()))


def read(campaign, cell):
    return json.loads((campaign[2] / f"{cell}.json").read_text())


def rewrite(campaign, cell, change):
    result = read(campaign, cell)
    change(result)
    (campaign[2] / f"{cell}.json").write_text(json.dumps(result))


def summary_of(campaign, tmp_path):
    return summarise(*campaign, tmp_path / "build")


def test_a_row_has_the_totals_and_medians_of_its_requests(campaign, tmp_path):
    row = find(summary_of(campaign, tmp_path).cells, cell="tp1-dflash.agentic-pipeline")
    requests = read(campaign, row.cell)["requests"]
    tokens = [r["num_output_tokens"] for r in requests]
    times = [r["e2e_s"] for r in requests]
    ttft = [r["ttft_s"] for r in requests]
    assert (row.model, row.tp, row.method, row.session) == ("small", 1, "dflash", 1)
    assert (row.workload, row.kind, row.concurrency) == ("agentic-pipeline", "agentic", None)
    assert (row.state, row.mark, row.message) == ("ok", None, None)
    assert (row.num_attempted, row.num_ok, row.num_failed, row.num_short, row.num_invalid) == (5, 5, 0, 0, 0)
    assert row.output_tokens == sum(tokens)
    assert row.tok_per_s == pytest.approx(sum(tokens) / math.fsum(times))
    assert row.request_tok_per_s == pytest.approx(median(n / s for n, s in zip(tokens, times, strict=True)))
    assert (row.ttft_median_s, row.ttft_max_s) == pytest.approx((median(ttft), max(ttft)))
    assert (row.ttft_p90_s, row.ttft_p99_s, row.steady_tok_per_s) == (None, None, None)
    assert row.tpot_median_s == pytest.approx(median(r["tpot_s"] for r in requests))
    assert row.e2e_median_s == pytest.approx(median(times))
    assert row.num_rounds == sum(r["num_rounds"] for r in requests)
    assert row.num_cached_tokens == 80 + 160 + 240 + 320
    accepted = sum(r["num_accepted_tokens"] for r in requests)
    assert row.tau == pytest.approx((accepted + row.num_rounds) / row.num_rounds)
    result = read(campaign, row.cell)
    assert (row.order_index, row.started_at, row.ended_at) == tuple(
        result[key] for key in ("order_index", "started_at", "ended_at")
    )


def test_the_speed_of_concurrent_requests_is_over_the_time_of_all(campaign, tmp_path):
    row = find(summary_of(campaign, tmp_path).cells, cell="tp1-ar.concurrency-4")
    requests = read(campaign, row.cell)["requests"]
    span_s = max(r["last_token_s"] for r in requests) - min(r["send_s"] for r in requests)
    assert row.concurrency == 4
    assert row.tok_per_s == pytest.approx(sum(r["num_output_tokens"] for r in requests) / span_s)
    assert row.request_tok_per_s < row.steady_tok_per_s


def test_a_request_without_a_number_leaves_the_median_to_the_others(campaign, tmp_path):
    rewrite(campaign, "tp1-ar.long", lambda result: result["requests"][0].update(tpot_s=None))
    row = find(summary_of(campaign, tmp_path).cells, cell="tp1-ar.long")
    others = read(campaign, "tp1-ar.long")["requests"][1:]
    assert row.tpot_median_s == pytest.approx(median(r["tpot_s"] for r in others))


def test_a_request_without_a_count_leaves_no_total(campaign, tmp_path):
    rewrite(campaign, "tp1-dflash.long", lambda result: result["requests"][0].update(num_rounds=None))
    row = find(summary_of(campaign, tmp_path).cells, cell="tp1-dflash.long")
    assert row.num_rounds is None


def test_the_share_of_repetition_is_the_mean_of_the_outputs_that_have_one(campaign, tmp_path):
    def loop(result):
        result["requests"][0]["output_ids"] = [1, 2, 3] * 32
        result["requests"][1]["output_ids"] = None

    rewrite(campaign, "tp1-ar.long", loop)
    row = find(summary_of(campaign, tmp_path).cells, cell="tp1-ar.long")
    assert row.repeated_8gram_share == pytest.approx(mean([1 - 3 / 89, 0, 0, 0]))


def test_problems_in_the_log_stand_in_the_row(campaign, tmp_path):
    rewrite(campaign, "tp1-ar.long", lambda result: result["journal"].update(problems=["log-xid"]))
    summary = summary_of(campaign, tmp_path)
    assert {row.cell: row.problems for row in summary.cells if row.problems} == {"tp1-ar.long": ["log-xid"]}


def loaded(shape):
    planned = Campaign.model_validate(campaign_values(budgets=()))
    cell = next(iter(cells(planned)))
    return LoadedCell(cell, make_result(planned, cell, shape), None)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"error": "reset", "violations": ["gap-negative"]}, "reset"),
        ({"violations": ["gap-negative", "rounds-missing"]}, "gap-negative, rounds-missing"),
        ({}, "invalid"),
    ],
)
def test_the_first_bad_request_is_behind_a_mark_with_the_most_that_it_tells(facts, message):
    cell = loaded(Shape(violations={"tp1-ar.short": ["requests-invalid"]}))
    bad = cell.result.requests[1].model_copy(update={"status": "invalid", **facts})
    requests = [cell.result.requests[0], bad, *cell.result.requests[2:]]
    result = cell.result.model_copy(update={"requests": requests, "num_ok": 4})
    assert message_of(LoadedCell(cell.plan, result, None)) == message
    assert mark_of(LoadedCell(cell.plan, result, None)) == "4/5 ok"


def test_broken_rules_are_behind_a_mark_where_every_request_is_ok():
    cell = loaded(Shape(violations={"tp1-ar.short": ["cache-warm", "log-xid"]}))
    assert (mark_of(cell), message_of(cell)) == ("void", "cache-warm; log-xid")


def test_a_reason_is_its_own_mark_but_for_memory(summarised):
    failures = {"tp1-ar.short": ("oom", "no memory"), "tp1-ar.long": ("timeout", "not ready")}
    shape = Shape(missing=frozenset({"tp1-dflash.long"}), failures=failures)
    rows = {row.cell: row for row in summarised(shape, is_partial=True, budgets=()).cells if row.mark}
    assert {name: (row.state, row.mark, row.message) for name, row in rows.items()} == {
        "tp1-ar.short": ("cell failed", "OOM", "no memory"),
        "tp1-ar.long": ("cell failed", "timeout", "not ready"),
        "tp1-dflash.long": ("not run", "n/r", "no result and no record of a failure"),
    }


def test_a_method_with_a_name_of_its_own_keeps_it():
    values = campaign_values(budgets=(8,), extra_methods={"wide": {"algorithm": "ddtree", "budget": 64}})
    planned = Campaign.model_validate(values)
    labels = [method_info(name, planned).label for name in planned.methods]
    assert labels == ["AR", "DFlash", "DDTree-8", "wide"]
    assert method_info("wide", planned).budget == 64


def test_a_service_without_a_log_has_no_problems_in_it(campaign, tmp_path):
    rewrite(campaign, "tp1-ar.long", lambda result: result.update(journal=None))
    assert find(summary_of(campaign, tmp_path).cells, cell="tp1-ar.long").problems == []
