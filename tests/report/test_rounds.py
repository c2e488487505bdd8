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


LOOP = list(range(10)) * 2
"""Its first repeated 8-gram begins at its tenth token."""


def make_rounds(*tokens, output_ids=LOOP):
    """A record whose chunks after the first are rounds."""
    times = tuple(1.0 + place for place in range(len(tokens)))
    return make_record(times=times, tokens=tokens, num_rounds=len(tokens) - 1, output_ids=output_ids)


def test_tau_before_repetition_counts_the_rounds_up_to_it_and_the_last_in_part():
    exact = make_rounds(1, 4, 5, 10)  # 9 tokens in two rounds
    across = make_rounds(1, 6, 12, 1)  # 9 tokens in one round and a quarter
    assert rounds.pooled_tau_before_repetition([exact]) == pytest.approx(9 / 2)
    assert rounds.pooled_tau_before_repetition([across]) == pytest.approx(9 / 1.25)
    assert rounds.pooled_tau_before_repetition([exact, across]) == pytest.approx(18 / 3.25)


def test_tau_before_repetition_is_tau_where_nothing_is_repeated():
    record = make_rounds(1, 3, 6, output_ids=list(range(10)))
    assert rounds.pooled_tau_before_repetition([record]) == pytest.approx(9 / 2)


def test_tau_before_repetition_is_unknown_where_a_chunk_is_no_round():
    known = make_rounds(1, 9, 10)
    merged = make_rounds(1, 9, 10).model_copy(update={"num_rounds": 3})
    late = make_rounds(3, 7, 10)
    assert rounds.pooled_tau_before_repetition([known, merged]) is None
    assert rounds.pooled_tau_before_repetition([known, late]) is None
    assert rounds.pooled_tau_before_repetition([make_rounds(1, 9, 10, output_ids=None)]) is None
    assert rounds.pooled_tau_before_repetition([make_rounds(1, output_ids=[7])]) is None
    assert rounds.pooled_tau_before_repetition([]) is None


def test_a_table_of_rounds_is_of_one_setting_with_the_mean_step(summarised):
    """A method that lacks a session is compared with a step of AR over fewer sessions."""
    shape = Shape(missing=frozenset({"tp2-dflash.short", "tp2-dflash.long", "tp2-dflash.very-long"}))
    only = {f"{kind}-{name}": {"methods": []} for kind, name in OTHERS}
    summary = summarised(shape, is_partial=True, budgets=(8,), tps=(1, 2), sessions=2, only=only)
    own = {r.method: r for r in summary.round_times if (r.tp, r.workload) == (2, "long")}
    assert [row.num_sessions for row in own.values()] == [1, 2]
    both = rounds.timed_methods(summary, ("small", 2))
    (row,) = [row for row in rounds.round_rows(summary, ("small", 2), both) if row.workload == "long"]
    assert row.by_method == own
    assert own["dflash"].step_s != own["ddtree-b8"].step_s
    assert row.step_s == pytest.approx((own["dflash"].step_s + own["ddtree-b8"].step_s) / 2)
    names = [row.workload for row in rounds.round_rows(summary, ("small", 1), both)]
    assert names == ["short", "long", "very-long"]


def test_a_table_of_rounds_has_the_workloads_at_which_one_of_its_methods_is_timed(summarised):
    shape = Shape(missing=frozenset({"tp1-ddtree-b8.long"}))
    only = {f"{kind}-{name}": {"methods": []} for kind, name in OTHERS}
    summary = summarised(shape, is_partial=True, budgets=(8,), only=only)
    line, tree = rounds.timed_methods(summary, ("small", 1))
    rows = {
        name: rounds.round_rows(summary, ("small", 1), [method])
        for name, method in (("line", line), ("tree", tree))
    }
    assert [row.workload for row in rows["line"]] == ["short", "long", "very-long"]
    assert [row.workload for row in rows["tree"]] == ["short", "very-long"]
    assert all(set(row.by_method) == {"ddtree-b8"} for row in rows["tree"])


def test_a_table_of_rounds_has_the_methods_that_are_timed_at_its_setting(summarised):
    gone = frozenset(f"tp2-dflash.{name}" for name in ("short", "long", "very-long"))
    only = {f"{kind}-{name}": {"methods": []} for kind, name in OTHERS}
    summary = summarised(Shape(missing=gone), is_partial=True, budgets=(8,), tps=(1, 2), only=only)
    names = [[m.name for m in rounds.timed_methods(summary, ("small", tp))] for tp in (1, 2)]
    assert names == [["dflash", "ddtree-b8"], ["ddtree-b8"]]
