"""Numbers pooled over the sessions and cells of a workload: loads, turns, acceptance."""

import json
import math
from statistics import mean, median

import pytest
from synthetic import Shape, campaign_values, write_campaign
from test_summarise import find

from draftbench.report.summarise import summarise

SESSIONS = ("", "-s2")


@pytest.fixture
def campaign(tmp_path):
    """Files of AR and DFlash in two sessions; the three paths."""
    return write_campaign(tmp_path / "c", campaign_values(budgets=(), sessions=2))


def requests_of(campaign, service, workload):
    """The requests of every session, a list for each."""
    names = [f"{service}{session}.{workload}.json" for session in SESSIONS]
    return [json.loads((campaign[2] / name).read_text())["requests"] for name in names]


def rewrite(path, change):
    result = json.loads(path.read_text())
    change(result["requests"])
    path.write_text(json.dumps(result))


def test_the_speed_of_a_load_is_its_tokens_over_the_time_of_all_requests_together(campaign, tmp_path):
    summary = summarise(*campaign, tmp_path / "build")
    row = find(summary.loads, method="dflash", workload="concurrency-4")
    sessions = requests_of(campaign, "tp1-dflash", "concurrency-4")
    requests = [request for session in sessions for request in session]
    span_s = sum(max(r["last_token_s"] for r in s) - min(r["send_s"] for r in s) for s in sessions)
    assert (row.concurrency, row.num_sessions, row.num_requests, row.mark) == (4, 2, 16, None)
    assert row.tok_per_s == pytest.approx(sum(r["num_output_tokens"] for r in requests) / span_s)
    assert row.request_tok_per_s == pytest.approx(
        median(r["num_output_tokens"] / r["e2e_s"] for r in requests)
    )
    assert row.ttft_median_s == pytest.approx(median(r["ttft_s"] for r in requests))
    steady = [
        c.steady_tok_per_s for c in summary.cells if (c.method, c.workload) == (row.method, row.workload)
    ]
    assert row.steady_tok_per_s == pytest.approx(mean(steady))


def test_a_load_has_no_steady_speed_where_a_session_has_none(campaign, tmp_path):
    def one_after_the_other(requests):
        for place, request in enumerate(requests):
            shift_s = 100.0 * place - request["send_s"]
            for key in ("send_s", "first_token_s", "last_token_s", "end_s"):
                request[key] += shift_s
            for chunk in request["chunks"]:
                chunk["time_s"] += shift_s

    rewrite(campaign[2] / "tp1-ar-s2.concurrency-4.json", one_after_the_other)
    row = find(summarise(*campaign, tmp_path / "build").loads, method="ar", workload="concurrency-4")
    assert (row.num_sessions, row.steady_tok_per_s) == (2, None)


def test_a_load_without_a_whole_cell_has_a_mark_and_one_in_a_later_session_a_number(summarised):
    failures = {f"tp1-dflash{session}.concurrency-8": ("oom", "x") for session in SESSIONS}
    only = {"concurrency-4": {"sessions": [2]}}
    summary = summarised(Shape(failures=failures), is_partial=True, budgets=(), sessions=2, only=only)
    failed = find(summary.loads, method="dflash", workload="concurrency-8")
    assert (failed.num_sessions, failed.tok_per_s, failed.mark) == (0, None, "OOM")
    late = find(summary.loads, method="dflash", workload="concurrency-4")
    assert (late.num_sessions, late.mark) == (1, None)


def test_a_load_that_a_method_is_not_planned_for_has_no_row(summarised):
    summary = summarised(budgets=(), only={"concurrency-8": {"methods": ["ar"]}})
    assert [row.method for row in summary.loads if row.workload == "concurrency-8"] == ["ar"]


def test_a_turn_is_pooled_over_sessions(campaign, tmp_path):
    summary = summarise(*campaign, tmp_path / "build")
    sessions = requests_of(campaign, "tp1-dflash", "agentic-pipeline")
    third = [request for session in sessions for request in session if request["turn"] == 3]
    row = find(summary.turns, method="dflash", workload="agentic-pipeline", turn=3)
    assert row.num_requests == len(third) == 2
    assert row.ttft_median_s == pytest.approx(median(r["ttft_s"] for r in third))
    assert row.tok_per_s == pytest.approx(2 * 48 / math.fsum(r["e2e_s"] for r in third))
    assert row.prompt_tokens_median == 60 + 80 * 3
    assert row.cached_share == pytest.approx(160 / 300)
    turns = [r.turn for r in summary.turns if (r.method, r.workload) == ("dflash", "agentic-pipeline")]
    assert turns == [1, 2, 3, 4, 5]


def test_the_share_of_a_prompt_that_was_kept_is_unknown_where_one_request_does_not_tell(campaign, tmp_path):
    rewrite(
        campaign[2] / "tp1-ar-s2.agentic-pipeline.json",
        lambda requests: requests[2].update(num_cached_tokens=None),
    )
    summary = summarise(*campaign, tmp_path / "build")
    assert find(summary.turns, method="ar", workload="agentic-pipeline", turn=3).cached_share is None
    assert find(summary.turns, method="ar", workload="agentic-pipeline", turn=2).cached_share is not None


def test_acceptance_is_told_of_all_prompts_and_of_every_type(campaign, tmp_path):
    summary = summarise(*campaign, tmp_path / "build")
    requests = [
        request
        for workload in ("short", "long", "very-long")
        for session in requests_of(campaign, "tp1-dflash", workload)
        for request in session
    ]
    for kind in (None, "code", "prose"):
        row = find(summary.acceptance, method="dflash", prompt_type=kind)
        own = [request for request in requests if kind in (None, request["prompt_type"])]
        assert row.num_rounds == sum(request["num_rounds"] for request in own)
        accepted = sum(request["num_accepted_tokens"] for request in own)
        assert row.tau == pytest.approx((accepted + row.num_rounds) / row.num_rounds)
        assert sum(kept * rounds for kept, rounds in enumerate(row.histogram)) == accepted
        assert row.proposed_per_round == pytest.approx(15)
        assert row.tau_before_repetition == pytest.approx(row.tau)  # nothing is repeated here
    baseline = find(summary.acceptance, method="ar", prompt_type=None)
    assert (baseline.tau, baseline.num_rounds, baseline.histogram) == (1.0, 0, None)
    assert baseline.proposed_per_round is baseline.tau_before_repetition is None


def test_one_request_without_a_histogram_or_a_count_leaves_no_whole_one(campaign, tmp_path):
    unknown = {"accept_histogram": None, "num_proposed_tokens": None}
    rewrite(campaign[2] / "tp1-dflash.long.json", lambda requests: requests[0].update(unknown))
    summary = summarise(*campaign, tmp_path / "build")
    row = find(summary.acceptance, method="dflash", prompt_type=None)
    assert (row.histogram, row.proposed_per_round) == (None, None)
    assert row.tau is not None
    other = find(summary.acceptance, method="dflash", prompt_type="mathematics")
    assert other.histogram is not None


def test_rounds_are_timed_over_the_sessions_that_the_baseline_has_too(summarised):
    both = {"budgets": (), "sessions": 2}
    shape = Shape(missing=frozenset({"tp1-dflash-s2.long"}), violations={"tp1-ar.short": ["cache-warm"]})
    summary = summarised(shape, is_partial=True, **both)
    rows = {row.workload: row.num_sessions for row in summary.round_times}
    assert (rows["short"], rows["long"], rows["very-long"]) == (1, 1, 2)
    assert {row.method for row in summary.round_times} == {"dflash"}


def test_without_single_requests_nothing_is_summed_over_them(summarised):
    only = {name: {"methods": []} for name in ("short", "long", "very-long")}
    summary = summarised(budgets=(), only=only)
    assert summary.acceptance == []
    assert None not in {row.workload for row in summary.comparisons}
    assert summary.comparisons
