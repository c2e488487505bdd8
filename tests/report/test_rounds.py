"""Durations of rounds and steps: known answers."""

import pytest
from synthetic import Shape
from tests.client.make_records import make_record

from draftbench.report import rounds

OTHERS = [("agentic", name) for name in ("calculator", "pipeline")]
OTHERS += [("concurrency", n) for n in (1, 2, 4, 8)]


def test_the_time_of_a_round_is_that_between_the_chunks_over_the_rounds():
    one = make_record(times=(1.0, 1.3, 1.5), tokens=(1, 4, 2), num_rounds=2)
    other = make_record(times=(5.0, 6.0), tokens=(1, 9), num_rounds=1)
    assert rounds.pooled_round_s([one, other]) == pytest.approx(1.5 / 3)
    assert rounds.pooled_step_s([one, other]) == pytest.approx(1.5 / 15)


def test_the_time_of_a_round_is_unknown_where_the_first_chunk_held_a_round():
    merged = make_record(times=(1.0, 1.5), tokens=(5, 2), num_rounds=2)
    assert rounds.pooled_round_s([merged]) is None
    assert rounds.pooled_round_s([make_record(num_rounds=None)]) is None
    assert rounds.pooled_round_s([]) is None
    assert rounds.pooled_step_s([make_record(times=(1.0,), tokens=(1,))]) is None


def test_steps_are_unknown_where_the_server_does_not_count_tokens_by_chunk():
    known = make_record(times=(1.0, 1.5), tokens=(1, 2))
    uncounted = make_record(times=(1.0, 1.5), tokens=(1, 1), has_chunk_counts=False)
    assert rounds.pooled_step_s([known]) == pytest.approx(0.25)
    assert rounds.pooled_step_s([known, uncounted]) is None
    assert rounds.pooled_step_s([known, make_record(times=(), tokens=())]) is None
    counted = make_record(times=(1.0, 1.5), tokens=(1, 2), num_rounds=1)
    assert rounds.pooled_round_s([counted, make_record(num_rounds=1, has_chunk_counts=False)]) is None


def test_a_table_of_rounds_is_of_one_setting_with_the_mean_step(summarised):
    """A method that lacks a session is compared with a step of AR over fewer sessions."""
    shape = Shape(missing=frozenset({"tp2-dflash.short", "tp2-dflash.long", "tp2-dflash.very-long"}))
    only = {f"{kind}-{name}": {"methods": []} for kind, name in OTHERS}
    summary = summarised(shape, is_partial=True, budgets=(8,), tps=(1, 2), sessions=2, only=only)
    own = {r.method: r for r in summary.round_times if (r.tp, r.workload) == (2, "long")}
    assert [row.num_sessions for row in own.values()] == [1, 2]
    (row,) = [row for row in rounds.round_rows(summary, ("small", 2)) if row.workload == "long"]
    assert row.by_method == own
    assert own["dflash"].step_s != own["ddtree-b8"].step_s
    assert row.step_s == pytest.approx((own["dflash"].step_s + own["ddtree-b8"].step_s) / 2)
    assert [row.workload for row in rounds.round_rows(summary, ("small", 1))] == [
        "short",
        "long",
        "very-long",
    ]


def test_a_table_of_rounds_has_the_methods_that_are_timed_at_its_setting(summarised):
    gone = frozenset(f"tp2-dflash.{name}" for name in ("short", "long", "very-long"))
    only = {f"{kind}-{name}": {"methods": []} for kind, name in OTHERS}
    summary = summarised(Shape(missing=gone), is_partial=True, budgets=(8,), tps=(1, 2), only=only)
    names = [[m.name for m in rounds.timed_methods(summary, ("small", tp))] for tp in (1, 2)]
    assert names == [["dflash", "ddtree-b8"], ["ddtree-b8"]]
