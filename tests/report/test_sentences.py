"""Sentences from known numbers, word for word; tests/report/test_prose.py has those from results."""

import pytest
from synthetic import Shape, campaign_values, write_campaign
from test_prose import SETTING, with_overall

from draftbench.report import precision, prose
from draftbench.report.best import best_rows, loaded
from draftbench.report.budgets import budget_sentence
from draftbench.report.recommend import overview_sentence, recommendation
from draftbench.report.summarise import summarise
from draftbench.report.summary import AdaptiveGroup, Exactness

ONE_SESSION = {"low": None, "high": None, "verdict": "within one session", "num_sessions": 1}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A summary whose comparisons and texts the tests replace: AR, DFlash, DDTree-8 and DDTree-16."""
    directory = tmp_path_factory.mktemp("plain")
    paths = write_campaign(directory / "c", campaign_values(budgets=(8, 16, 32)))
    return summarise(*paths, directory / "build")


def comparison(plain, method="dflash", workload=None, mark=None, **evidence):
    """A comparison of a method, as `with_overall` has it for DFlash."""
    (row,) = with_overall(plain, **evidence).comparisons
    update = {"method": method, "workload": workload}
    update |= {"workloads": [workload]} if workload else {}
    update |= {"evidence": None, "mark": mark, "reason": "a reason"} if mark else {}
    return row.model_copy(update=update)


def having(plain, *rows):
    return plain.model_copy(update={"comparisons": list(rows)})


def test_an_interval_or_the_range_of_the_prompts_is_told_and_one_run_has_neither(plain):
    def said(**facts):
        return prose.interval(comparison(plain, **facts).evidence)

    assert said() == "95\u00a0% interval 1.20 to 1.90"
    assert said(**ONE_SESSION) == "single prompts 1.30 to 1.70 within one session, so no interval"
    assert said(**ONE_SESSION, per_unit=[1.5]) == "no interval"


def test_n_names_prompts_or_turns_and_a_run_only_by_its_session(plain):
    def said(**facts):
        return prose.sample_size(comparison(plain, **facts).evidence)

    assert said() == "n = 3 sessions, 5 prompts, 45 requests"
    assert said(unit="turn", num_units=1, num_requests=1) == "n = 3 sessions, 1 turn, 1 request"
    assert said(unit="run", num_units=1) == "n = 3 sessions, 45 requests"


def test_a_comparison_without_a_number_has_its_mark_and_reason(plain):
    row = comparison(plain, mark="OOM")
    assert prose.verdict_sentence(plain, row) == "DFlash has no speedup (OOM: a reason)."


def test_the_best_comes_first_and_one_without_a_number_last(plain):
    rows = (
        comparison(plain, mark="OOM"),
        comparison(plain, "ddtree-b8", ratio=0.7),
        comparison(plain, "ddtree-b16", ratio=1.6),
        comparison(plain, "ddtree-b32", "long", ratio=9.0),
    )
    ordered = prose.overall(having(plain, *rows), SETTING)
    assert [row.method for row in ordered] == ["ddtree-b16", "ddtree-b8", "dflash"]


def test_rivals_are_those_whose_interval_reaches_the_best_one_s(plain):
    def said(high):
        rival = comparison(plain, "ddtree-b8", ratio=1.1, low=1.0, high=high)
        alone = comparison(plain, "ddtree-b16", ratio=1.0, **ONE_SESSION)
        return recommendation(having(plain, comparison(plain), rival, alone), SETTING)

    overlap = "Its interval overlaps with that of DDTree-8, so their order is open. "
    assert overlap in said(1.2)
    assert "overlaps" not in said(1.19)


def test_a_method_that_is_faster_is_recommended_also_where_the_data_cannot_tell_the_best_one(plain):
    wide = comparison(plain, "ddtree-b8", ratio=2.0, low=0.8, high=5.0, verdict="cannot tell")
    said = recommendation(having(plain, wide, comparison(plain)), SETTING)
    assert said.startswith("Whether DDTree-8 is faster than AR the data cannot tell: 2.00 times")
    assert "so their order is open. DFlash is faster than AR: 1.50 times" in said
    assert said.endswith(" Deploy DFlash for single requests.")


def test_a_better_known_method_is_not_told_where_the_best_is_known_or_none_is(plain):
    for rows in (
        [comparison(plain), comparison(plain, "ddtree-b8", ratio=1.4)],
        [comparison(plain, **ONE_SESSION), comparison(plain, "ddtree-b8", ratio=1.4, **ONE_SESSION)],
    ):
        assert "Of the methods with an interval" not in recommendation(having(plain, *rows), SETTING)


def test_without_a_baseline_or_a_comparison_nothing_is_recommended(plain):
    without = plain.model_copy(update={"baseline": None})
    assert recommendation(without, SETTING).startswith("The campaign has no autoregressive method")
    assert recommendation(having(plain), SETTING) == (
        "The campaign compares no drafting method on single requests."
    )


def test_settings_of_one_session_are_no_recommendation_together_either(plain):
    one, known = comparison(plain, **ONE_SESSION), comparison(plain, verdict="slower")
    assert overview_sentence([one, known]) == (
        "Of 2 settings (model and TP size) the fastest drafting method is slower than AR in 1 and known "
        "within one session only in 1. This is an observation, not a recommendation: another start of the "
        "services may differ. Measure 3 or more sessions before deciding."
    )
    assert overview_sentence([known]).endswith("the fastest drafting method is slower than AR in 1.")
    assert overview_sentence([]) == "The campaign compares no drafting method on single requests."


LOADS = {"concurrency-1": 1.8, "concurrency-2": 1.5, "concurrency-4": 1.2, "concurrency-8": 1.1}


@pytest.mark.parametrize(
    ("verdict", "end"),
    [
        ("faster", "it is still faster than AR there"),
        ("slower", "it is slower than AR there"),
        ("cannot tell", "there the data cannot tell it from AR"),
        ("within one session", "the last from one session, so without an interval"),
    ],
)
def test_under_load_the_last_verdict_is_told(plain, verdict, end):
    rows = [comparison(plain, workload=name, ratio=ratio) for name, ratio in LOADS.items()]
    rows[-1] = comparison(plain, workload="concurrency-8", ratio=1.1, verdict=verdict)
    other = comparison(plain, "ddtree-b8", "concurrency-8", ratio=1.4)
    summary = having(plain, *reversed(rows), other, comparison(plain))
    assert prose.load_sentence(summary, SETTING) == (
        "The ratio of DFlash to AR in total output speed is 1.80 at 1, 1.50 at 2, 1.20 at 4, 1.10 at 8 "
        f"requests in flight; {end}."
    )


def test_loads_that_are_all_of_one_session_are_told_so(plain):
    rows = [comparison(plain, workload=name, **ONE_SESSION) for name in LOADS]
    said = prose.load_sentence(having(plain, comparison(plain), *rows), SETTING)
    assert said.endswith(" in flight; each from one session, so without intervals.")


def test_a_load_of_one_request_is_not_several(plain):
    rows = [comparison(plain), comparison(plain, workload="concurrency-1", ratio=1.8)]
    said = prose.load_sentence(having(plain, *rows), SETTING)
    assert said.endswith(" is 1.80 at 1 request in flight; it is still faster than AR there.")


def test_a_load_on_another_machine_and_one_without_a_number_are_told_so(plain):
    split = comparison(plain, workload="concurrency-4", ratio=1.2).model_copy(
        update={"num_split_sessions": 1}
    )
    failed = comparison(plain, workload="concurrency-8", mark="OOM")
    said = prose.load_sentence(having(plain, comparison(plain), split, failed), SETTING)
    assert said.endswith(
        "is 1.20 at 4 requests in flight; it is still faster than AR there. "
        "AR ran on another machine of the same kind."
    )
    assert prose.load_sentence(having(plain, comparison(plain), failed), SETTING) is None
    assert prose.load_sentence(having(plain, comparison(plain, mark="OOM")), SETTING) is None


def test_what_is_left_under_load_is_of_the_highest_concurrency_that_is_compared(plain):
    def said(*rows):
        (row,) = best_rows(having(plain, *rows), [SETTING])
        return loaded(row)

    rows = [comparison(plain, workload=name, ratio=ratio) for name, ratio in LOADS.items()]
    other = comparison(plain, "ddtree-b8", "concurrency-8", ratio=1.4)
    assert said(comparison(plain), *rows[:3], other) == "1.20 at 4 in flight"
    assert said(comparison(plain), comparison(plain, workload="concurrency-8", mark="OOM"), *rows[:2]) == (
        "OOM at 8 in flight"
    )
    assert said(comparison(plain), other) == "\u2013"
    assert best_rows(having(plain, *rows), [SETTING]) == []


def test_the_highest_row_of_a_workload_is_told_or_that_there_is_none(plain):
    rows = [
        comparison(plain, "dflash", "long", ratio=1.2),
        comparison(plain, "ddtree-b8", "long", ratio=1.7, verdict="faster"),
        comparison(plain, "ddtree-b16", "long", mark="OOM"),
        comparison(plain, "dflash", "short", ratio=1.9),
        comparison(plain, "dflash", "very-long", mark="n/r"),
    ]
    summary = having(plain, *rows)
    assert prose.workload_sentence(summary, SETTING, "long").startswith(
        "In long the highest ratio: DDTree-8 is faster than AR: 1.70 times"
    )
    assert prose.workload_sentence(summary, SETTING, "very-long") == (
        "In very-long no method could be compared with AR."
    )
    assert prose.workload_sentence(summary, SETTING, "agentic-pipeline") is None


@pytest.mark.parametrize(
    ("ratios", "place"),
    [
        ((1.9, 1.5, 1.2), "8 nodes (the smallest) with 1.90"),
        ((1.5, 1.9, 1.2), "16 nodes (in the middle) with 1.90"),
        ((1.2, 1.5, 1.9), "32 nodes (the largest) with 1.90"),
    ],
)
def test_the_best_budget_is_the_smallest_the_largest_or_in_the_middle(plain, ratios, place):
    rows = [comparison(plain, f"ddtree-b{n}", ratio=r) for n, r in zip((8, 16, 32), ratios, strict=True)]
    summary = having(plain, comparison(plain, ratio=1.4), *rows)
    assert budget_sentence(summary, SETTING) == (
        f"Of the budgets 8, 16 and 32 the fastest is {place} times AR’s speed; DFlash reaches 1.40."
    )


def test_budgets_without_a_number_are_not_counted(plain):
    rows = [comparison(plain, "ddtree-b8", mark="OOM"), comparison(plain, "ddtree-b16", ratio=1.6)]
    said = budget_sentence(having(plain, *rows), SETTING)
    assert said == "The one budget, 16 nodes, reaches 1.60 times AR’s speed."
    assert budget_sentence(having(plain, rows[0]), SETTING) == "No tree method has a speedup."


def test_all_methods_are_ranked_with_what_their_order_is_worth(plain):
    rows = [
        comparison(plain, ratio=1.4, low=0.9, verdict="cannot tell", num_units=4),
        comparison(plain, "ddtree-b8", ratio=1.6, **ONE_SESSION),
        comparison(plain, "ddtree-b16", mark="OOM"),
    ]
    assert prose.ranking_sentence(having(plain, *rows), SETTING) == (
        "Speedup over AR, all single requests together: DDTree-8 1.60 and DFlash 1.40 (0.90 to 1.90, cannot "
        "tell) (n = 1 to 3 sessions, 4 to 5 prompts each). Within one session this order is an observation "
        "without an interval. Without a number: DDTree-16 (OOM)."
    )
    assert prose.ranking_sentence(having(plain, rows[1]), SETTING).endswith(
        "Within one session this is an observation without an interval."
    )
    assert prose.ranking_sentence(having(plain, comparison(plain)), SETTING) == (
        "Speedup over AR, all single requests together: DFlash 1.50 (1.20 to 1.90, faster) "
        "(n = 3 sessions, 5 prompts each)."
    )
    assert prose.ranking_sentence(having(plain, rows[2]), SETTING) == "No method has a speedup."


def texts(method, num_equal, *, ties=0, faults=0, unmeasured=0, gap=None, is_baseline=False):
    """Ten outputs of a method against the baseline's."""
    return Exactness(
        model="small",
        tp=1,
        method=method,
        kind="single",
        num_compared=10,
        num_prompts=5,
        num_equal=num_equal,
        num_tokens=100,
        num_compared_tokens=10 * num_equal,
        num_ties=ties,
        largest_tie_gap=gap,
        tie_limit=None if gap is None else 2 * gap,
        near_tie_share=None,
        num_faults=faults,
        num_unmeasured=unmeasured,
        first_position=4,
        median_position=6.0,
        is_baseline=is_baseline,
    )


def test_texts_that_part_are_counted_by_their_kind_beside_the_baseline_s_own(plain):
    rows = [
        texts("ar", 9, ties=1, is_baseline=True),
        texts("dflash", 7, ties=2, faults=1, gap=0.125),
        texts("ddtree-b8", 8, ties=1, unmeasured=1, gap=0.25),
    ]
    summary = plain.model_copy(update={"exactness": rows})
    assert prose.exactness_sentence(summary, SETTING) == (
        "15 of 20 compared outputs of the drafting methods equal AR’s token for token (75\u00a0%). Parted "
        "from it: 3 at a tie within the number format’s resolution (the two logits at most 0.250 apart; "
        "up to 0.500 counts as a tie), 1 by more than rounding, which is a fault, 1 where the target’s "
        "logit gap was not measured. Nothing is compared after that: 75\u00a0% of the tokens are. AR against "
        "its own repeats: 9 of 10."
    )
    assert prose.exactness_sentence(summary, ("small", 2)) is None
    own = plain.model_copy(update={"exactness": rows[:1]})
    assert prose.exactness_sentence(own, SETTING) is None


def test_the_kinds_of_cells_without_a_number_are_listed(summarised):
    shape = Shape(
        missing=frozenset({"tp1-ar.short"}),
        failures={"tp1-ar.long": ("oom", "x"), "tp1-ar.very-long": ("oom", "x")},
        violations={"tp1-dflash.short": ["cache-warm"]},
    )
    some = summarised(shape, is_partial=True, budgets=())
    assert prose.coverage_sentence(some) == (
        "14 of 18 cells are complete; without a number are 1 void by a broken rule, 2 that failed as a "
        "whole, 1 not run. 99 of 99 requests are ok."
    )
    one = summarised(Shape(failed_requests={"tp1-ar.long": (2, "reset")}), budgets=())
    assert prose.coverage_sentence(one) == (
        "17 of 18 cells are complete; without a number is 1 with failed requests. 112 of 114 requests are ok."
    )


def test_a_complete_campaign_is_said_to_be_and_doubts_stand_behind_it(summarised):
    flags = {"tp1-ar.short": ["cold"], "tp1-ar.long": ["hot: 90 C", "hot: 91 C"], "tp1-dflash.long": ["hot"]}
    assert prose.coverage_sentence(summarised(budgets=())) == (
        "All 18 cells are complete: 114 of 114 requests are ok."
    )
    assert prose.coverage_sentence(summarised(Shape(flags=flags), budgets=())).endswith(
        "requests are ok. 3 cells of 18 carry doubts: hot (2), cold (1); see appendix B."
    )


def test_a_report_is_doubtful_where_more_than_half_of_its_cells_are(plain):
    def doubtful(num_flagged):
        counts = plain.counts.model_copy(update={"num_cells": 18, "num_flagged_cells": num_flagged})
        return prose.is_doubtful(plain.model_copy(update={"counts": counts}))

    assert not doubtful(9)
    assert doubtful(10)


def test_workloads_that_are_not_all_are_named(plain):
    assert prose.all_or_some(plain, {"short", "long", "very-long", "other"}) == "all single requests together"
    assert (
        prose.all_or_some(plain, {"short", "very-long"}) == "single requests of short and very-long together"
    )


def test_one_session_is_said_to_be_one(plain):
    said = precision.interval_paragraph(plain)
    assert said.startswith("The services were started once, so the numbers hold within one session")


def sessions(plain, half_widths, **changes):
    rows = [comparison(plain, half_width=width) for width in half_widths]
    return having(plain, *rows, comparison(plain, mark="OOM")).model_copy(
        update={"sessions": 3, "max_sessions": 3, **changes}
    )


MORE = (
    " A higher number of sessions in the campaign file measures only the new sessions; it narrows what "
    "differs between starts. What differs between prompts takes more prompts."
)


@pytest.mark.parametrize(
    ("half_widths", "said"),
    [
        ([0.05, 0.01], "Of 2 intervals 0 are wider than ±\u00a05\u00a0%."),
        ([0.06], "Of 1 interval 1 is wider than ±\u00a05\u00a0%." + MORE),
        (
            [0.06, 0.07, 0.01, None, None],
            "Of 3 intervals 2 are wider than ±\u00a05\u00a0%. "
            "2 comparisons from one session are without an interval." + MORE,
        ),
        (
            [0.01, None],
            "Of 1 interval 0 are wider than ±\u00a05\u00a0%. "
            "1 comparison from one session is without an interval." + MORE,
        ),
    ],
)
def test_wide_intervals_are_counted_with_what_narrows_them(plain, half_widths, said):
    paragraph = precision.interval_paragraph(sessions(plain, half_widths))
    assert paragraph.startswith("The services were started 3 times. Intervals are 95\u00a0%")
    assert paragraph.endswith("picked as the best of several. " + said)


def test_a_half_width_has_a_decimal_where_it_is_no_whole_percentage():
    assert precision.plus_minus(0.05) == "±\u00a05\u00a0%"
    assert precision.plus_minus(0.025) == "±\u00a02.5\u00a0%"
    assert precision.plus_minus(None) == "\u2013"


def group(state):
    return AdaptiveGroup(
        model="small", tp=1, workloads=["short"], num_sessions=3, half_width=0.1, state=state
    )


def test_an_adaptive_campaign_says_how_its_groups_ended(plain):
    groups = [group("reached"), group("limit"), group("unfinished"), group("limit")]
    summary = sessions(plain, [0.06], adaptive=groups, max_sessions=5)
    said = precision.stopping_paragraph(summary)
    assert said.startswith("After session 3 and every later one, ")
    assert "wider than ±\u00a05\u00a0%, up to session 5. " in said
    assert "Of 4 rows, as narrow as asked: 1; stopped by the limit of 5 sessions: 2; unfinished: 1. " in said
    assert [precision.stopped_by(summary, each) for each in groups[:3]] == [
        "as narrow as asked",
        "the limit of 5 sessions",
        "a result is missing",
    ]
    paragraph = precision.interval_paragraph(summary)
    assert paragraph.startswith(
        "The services were started 3 to 5 times, as often as the intervals asked for. "
    )
    assert "A higher max_sessions in the campaign file" in paragraph
