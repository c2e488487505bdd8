import re

import pytest
from synthetic import Shape, campaign_values, write_campaign

from draftbench.report import precision, prose
from draftbench.report.budgets import budget_sentence
from draftbench.report.recommend import overview_sentence, recommendation
from draftbench.report.summarise import summarise
from draftbench.report.summary import Comparison, Evidence
from draftbench.report.tex import percent

SETTING = ("small", 1)


def with_overall(summary, **evidence):
    """The summary with one comparison over all single requests, of DFlash."""
    values = {
        "ratio": 1.5,
        "low": 1.2,
        "high": 1.9,
        "verdict": "faster",
        "num_sessions": 3,
        "unit": "prompt",
        "num_units": 5,
        "num_requests": 45,
        "num_tokens": 900,
        "per_unit": [1.3, 1.7],
        "per_session": [1.4, 1.5, 1.6],
        "half_width": 0.2,
    }
    row = Comparison(
        model="small",
        tp=1,
        method="dflash",
        reference="ar",
        workload=None,
        workloads=["short", "long", "very-long"],
        evidence=Evidence(**(values | evidence)),
        mark=None,
        reason=None,
        num_excluded_sessions=0,
        num_split_sessions=0,
    )
    return summary.model_copy(update={"comparisons": [row]})


@pytest.fixture
def summary(summarised):
    return summarised(budgets=(8,))


def test_a_faster_method_is_recommended_with_its_interval_and_n(summary):
    said = recommendation(with_overall(summary), SETTING)
    assert "1.50 times AR’s output speed (95\u00a0% interval 1.20 to 1.90; n = 3 sessions, 5 prompts" in said
    assert said.endswith("Deploy DFlash for single requests.")


def test_a_gain_that_repetition_alone_gives_is_not_recommended(summary):
    said = recommendation(repeating(summary, before="cannot tell"), SETTING)
    assert "the gain of DFlash does not hold: 1.10 (0.90 to 1.30, cannot tell)" in said
    assert said.endswith("Deploy it only where outputs repeat themselves as much as these.")
    assert "Deploy DFlash" not in said


def test_a_gain_that_is_there_before_repetition_is_recommended_with_it(summary):
    said = recommendation(repeating(summary, before="faster"), SETTING)
    assert said.endswith(
        "DFlash is faster also before its or AR’s output first repeats itself: 1.10 (0.90 to 1.30, faster). "
        "Deploy DFlash for single requests."
    )


def repeating(summary, before, **evidence):
    """Outputs are loops; before them the one comparison has another verdict."""
    known = with_overall(summary)
    cells = [row.model_copy(update={"repeated_8gram_share": 0.6}) for row in known.cells]
    values = {"ratio": 1.1, "low": 0.9, "high": 1.3, "verdict": before, **evidence}
    return known.model_copy(
        update={"cells": cells, "before_repetition": with_overall(summary, **values).comparisons}
    )


def test_what_is_left_before_repetition_stands_beside_a_ratio_of_loops_without_advice_too(summary):
    looping = repeating(summary, before="within one session", low=None, high=None)
    (known,) = looping.comparisons
    (quick,) = with_overall(summary, ratio=1.8, low=None, high=None, verdict="within one session").comparisons
    alone = recommendation(looping.model_copy(update={"comparisons": [quick]}), SETTING)
    assert "Before its or AR’s output first repeats itself it is 1.10. This is an observation" in alone
    quick = quick.model_copy(update={"method": "ddtree-b8"})
    both = recommendation(looping.model_copy(update={"comparisons": [known, quick]}), SETTING)
    assert both.endswith("Before its or AR’s output first repeats itself it is 1.10.")
    little = with_overall(summary).model_copy(update={"comparisons": [quick, known]})
    assert "repeats itself" not in recommendation(little, SETTING)


def test_another_method_that_is_ahead_before_repetition_is_named(summary):
    looping = repeating(summary, before="faster")
    (own,) = looping.before_repetition

    def said(ratio, **update):
        values = {"ratio": ratio, **update}
        other = own.model_copy(
            update={"method": "ddtree-b8", "evidence": own.evidence.model_copy(update=values)}
        )
        (tree,) = with_overall(summary, ratio=1.2).comparisons
        rows = [*looping.comparisons, tree.model_copy(update={"method": "ddtree-b8"})]
        update = {"comparisons": rows, "before_repetition": [own, other]}
        return recommendation(looping.model_copy(update=update), SETTING)

    ahead = "Up to there DDTree-8 has the highest ratio, 1.20 (0.90 to 1.30, faster). Deploy DFlash"
    assert ahead in said(1.2)
    assert "Up to there" not in said(1.1)
    assert "has the highest ratio, 1.20 in one session. Deploy" in said(1.2, low=None, high=None)
    little = with_overall(summary).model_copy(update={"before_repetition": looping.before_repetition})
    assert "Up to there" not in recommendation(little, SETTING)


def test_a_ratio_across_two_machines_says_so(summarised):
    shape = Shape(boots={"tp1-dflash-s2": "another"})
    dflash = {row.workload: row for row in summarised(shape, sessions=2, budgets=()).comparisons}
    assert {row.num_split_sessions for row in dflash.values()} == {1}
    said = prose.verdict_sentence(summarised(shape, sessions=2, budgets=()), dflash["long"])
    assert "10 requests; AR on another machine of the same kind in 1 session)" in said


def test_a_slower_method_is_not_recommended(summary):
    slower = with_overall(summary, ratio=0.7, low=0.6, high=0.8, verdict="slower")
    said = recommendation(slower, SETTING)
    assert "DFlash is slower than AR" in said
    assert "Stay with AR" in said


def test_an_interval_over_1_supports_no_change(summary):
    said = recommendation(with_overall(summary, ratio=1.1, low=0.9, high=1.3, verdict="cannot tell"), SETTING)
    assert "the data cannot tell" in said
    assert "Nothing supports a change yet" in said
    assert "Deploy" not in said


def test_one_session_gives_an_observation_and_no_recommendation(summary):
    said = recommendation(summary, SETTING)
    assert "in the one session measured" in said
    assert "within one session, so no interval" in said
    assert "not a recommendation" in said
    assert "Deploy" not in said


def test_beside_a_method_of_one_session_stands_the_best_that_has_an_interval(summary):
    (known,) = with_overall(summary).comparisons
    (quick,) = with_overall(summary, ratio=1.8, low=None, high=None, verdict="within one session").comparisons
    quick = quick.model_copy(update={"method": "ddtree-b8"})
    said = recommendation(summary.model_copy(update={"comparisons": [known, quick]}), SETTING)
    assert said.startswith("DDTree-8 reached 1.80 times AR’s output speed in the one session measured")
    assert "Of the methods with an interval: DFlash is faster than AR: 1.50 times" in said


def test_without_a_number_the_reasons_stand_in_its_place(summarised):
    failures = {
        f"tp1-{m}.{w}": ("oom", "x") for m in ("dflash", "ddtree-b8") for w in ("short", "long", "very-long")
    }
    said = recommendation(summarised(Shape(failures=failures), is_partial=True, budgets=(8,)), SETTING)
    assert said == (
        "No method could be compared with AR (DFlash: OOM, DDTree-8: OOM). "
        "Stay with AR until the cells are measured."
    )


def test_methods_whose_intervals_overlap_the_best_are_named(summarised):
    said = recommendation(summarised(sessions=3), SETTING)
    assert "Its interval overlaps with that of DDTree-" in said


def test_a_gain_that_is_gone_under_load_is_said_to_be_gone(summarised):
    said = prose.load_sentence(summarised(sessions=3), SETTING)
    assert said.startswith("The ratio of DDTree-")
    assert "at 8 requests in flight" in said


def test_equal_texts_are_told_with_the_baseline_s_own(summarised):
    said = prose.exactness_sentence(summarised(repeats=2, budgets=(8,)), SETTING)
    assert said.startswith("All 164 compared outputs of the drafting methods equal AR’s token for token.")
    assert said.endswith("AR against its own repeats: 25 of 25.")


def test_texts_that_part_without_a_measured_gap_are_told_so(summarised):
    shape = Shape(diverging_methods=frozenset({"dflash"}))
    summary = summarised(shape, budgets=(8,))
    said = prose.exactness_sentence(summary, SETTING)
    assert "where the target’s logit gap was not measured" in said
    rows = [row for row in summary.exactness if row.method == "dflash"]
    others = [row for row in summary.exactness if row.method == "ddtree-b8"]
    half = sum(row.num_compared_tokens for row in rows)
    whole = sum(row.num_tokens for row in others)
    assert half < sum(row.num_tokens for row in rows)
    share = (half + whole) / (whole + sum(row.num_tokens for row in rows))
    assert f"Nothing is compared after that: {percent(share)} of the tokens are." in said
    assert "AR was not repeated" in said


def test_incomplete_cells_are_counted_by_their_kind(summarised):
    shape = Shape(
        missing=frozenset({"tp1-ar.short"}), failed_requests={"tp1-dflash.long": (2, "connection reset")}
    )
    said = prose.coverage_sentence(summarised(shape, is_partial=True, budgets=(8,)))
    assert said.startswith(
        "25 of 27 cells are complete; without a number are 1 with failed requests, 1 not run."
    )


def test_the_best_budget_is_placed_among_the_others(summarised):
    said = budget_sentence(summarised(budgets=(8, 16, 64)), SETTING)
    assert "Of the budgets 8, 16 and 64 the fastest is" in said
    assert "DFlash reaches" in said


def test_one_budget_is_not_called_the_best(summary):
    assert budget_sentence(summary, SETTING).startswith("The one budget, 8 nodes, reaches")


def test_the_best_methods_of_several_settings_are_counted_by_verdict(summary):
    def best(verdict):
        return with_overall(summary, verdict=verdict).comparisons[0]

    without = best("faster").model_copy(update={"evidence": None, "mark": "OOM"})
    said = overview_sentence([best("faster"), best("faster"), best("cannot tell"), without])
    assert said == (
        "Of 4 settings (model and TP size) the fastest drafting method is faster than AR in 2, "
        "not to be told from AR in 1 and without a number in 1."
    )


def test_several_settings_are_told_apart_and_one_is_not_named(summarised, summary):
    several = summarised(tps=(1, 4), models=("small", "large"), budgets=(8,))
    assert prose.setting_name(several, ("large", 4)) == ", large, TP\u00a04"
    assert prose.setting_name(summary, SETTING) == ""


def test_intervals_and_comparisons_without_one_are_counted_apart(tmp_path):
    values = campaign_values(budgets=(), sessions=3) | {"only": {"very-long": {"sessions": [1]}}}
    values["workloads"] = {name: values["workloads"][name] for name in ("short", "very-long")}
    said = precision.interval_paragraph(
        summarise(*write_campaign(tmp_path / "c", values), tmp_path / "build")
    )
    assert said.startswith("The services were started 3 times. ")
    assert re.search(r"Of 2 intervals \d (is|are) wider than ±\xa05\xa0%", said)
    assert "1 comparison from one session is without an interval." in said


def test_starts_that_have_not_been_made_are_called_planned(summarised):
    shape = Shape(missing=frozenset({"tp1-ar-s3.short"}))
    said = precision.interval_paragraph(summarised(shape, is_partial=True, budgets=(8,), sessions=3))
    assert said.startswith("By the plan the services are started 3 times; not all of it has been run.")


def test_one_cell_carries_a_doubt_and_several_carry_theirs(summarised):
    one = summarised(Shape(flags={"tp1-ar.short": ["hot"]}), budgets=())
    two = summarised(Shape(flags={"tp1-ar.short": ["hot"], "tp1-ar.long": ["hot"]}), budgets=())
    assert prose.doubts_sentence(one) == "1 cell of 18 carries doubts: hot (1); see appendix B."
    assert prose.doubts_sentence(two) == "2 cells of 18 carry doubts: hot (2); see appendix B."
