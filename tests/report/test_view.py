"""Cells of the report's tables."""

import pytest
from synthetic import Shape
from test_notes import evidence, row
from test_sentences import texts

from draftbench.report.draw import FigureEntry, FigureList
from draftbench.report.view import View

SETTING = ("small", 1)


def view_of(summary, **changes):
    return View(summary.model_copy(update=changes), FigureList(figures=[]))


@pytest.fixture
def summary(summarised):
    return summarised(budgets=(8,))


def rows_of(**ratios):
    """Comparisons on `long` by method; None for one without a number."""
    found = []
    for method, ratio in ratios.items():
        made = row(evidence(ratio=ratio) if ratio else None, mark=None if ratio else "OOM")
        found.append(made.model_copy(update={"method": method}))
    return found


def test_the_highest_number_of_a_column_is_the_best_unless_it_is_of_fewer_sessions(summary):
    rows = rows_of(dflash=1.5, tree=1.9, failed=None)
    view = view_of(summary, comparisons=rows)
    assert [view.is_best(SETTING, r.method, "long") for r in rows] == [False, True, False]
    fewer = rows[1].model_copy(update={"num_excluded_sessions": 1})
    view = view_of(summary, comparisons=[rows[0], fewer, rows[2]])
    assert [view.is_best(SETTING, r.method, "long") for r in rows] == [True, False, False]
    assert not view.is_best(SETTING, "dflash", "short")
    assert not view_of(summary, comparisons=rows[2:]).is_best(SETTING, "failed", "long")


def test_a_column_of_intervals_says_where_there_is_none(summary):
    view = view_of(summary)
    one = row(evidence(1, low=None, high=None))
    assert view.spread(row(evidence())) == "1.20 to 1.90"
    assert view.spread(one) == "none; prompts 1.40 to 1.60"
    assert view.spread(row(None, mark="OOM")) == "\u2013"
    assert view.spread_title([row(None, mark="OOM"), one, row(evidence())]) == "95\u00a0% interval"
    assert view.spread_title([row(None, mark="OOM"), one]) == "Interval"


def test_equal_outputs_are_those_of_single_requests_with_what_the_others_are(summary):
    others = [
        texts("dflash", 5, faults=5).model_copy(update={"kind": "agentic"}),
        texts("ddtree-b8", 6, faults=4),
    ]
    whole = row(evidence())

    def said(*rows):
        return view_of(summary, exactness=[*rows, *others]).equal_outputs(whole)

    assert said(texts("dflash", 10)) == "10 of 10"
    assert said(texts("dflash", 7, ties=2, faults=1)) == "7 of 10, 2 ties, 1 fault"
    assert said(texts("dflash", 9, ties=1)) == "9 of 10, 1 tie"
    assert said() == "\u2013"


def test_where_outputs_part_is_told_earliest_first(summary):
    view = view_of(summary)
    assert view.parted_at(texts("dflash", 7)) == "4 / 6"
    equal = texts("dflash", 10).model_copy(update={"first_position": None, "median_position": None})
    assert view.parted_at(equal) == "\u2013"


def test_a_speed_is_pooled_over_sessions_or_the_first_mark_stands_there(summarised):
    shape = Shape(
        missing=frozenset({"tp1-dflash-s2.long"}),
        failures={f"tp1-dflash{session}.short": ("oom", "x") for session in ("", "-s2")},
        flags={"tp1-ar-s2.long": ["hot"]},
    )
    summary = summarised(shape, is_partial=True, budgets=(), sessions=2)
    view = view_of(summary)
    cells = view.cells_of(SETTING, "ar", "long")
    assert [cell.cell for cell in cells] == ["tp1-ar.long", "tp1-ar-s2.long"]
    speed = sum(c.output_tokens for c in cells) / sum(c.output_tokens / c.tok_per_s for c in cells)
    assert view.speed_cell(SETTING, "ar", "long") == f"{speed:.1f}" + r"\rlap{\textsuperscript{*}}"
    (only, _) = view.cells_of(SETTING, "dflash", "long")
    assert view.speed_cell(SETTING, "dflash", "long") == f"{only.tok_per_s:.1f}"
    assert view.speed_cell(SETTING, "dflash", "short") == r"\failed{OOM}"
    assert view.speed_cell(SETTING, "dflash", "nothing") == r"\textcolor{quiet}{\textendash{}}"
    assert view.median_of(SETTING, "ar", "long", "e2e_median_s") == pytest.approx(
        sum(cell.e2e_median_s for cell in cells) / 2
    )
    assert view.median_of(SETTING, "dflash", "short", "e2e_median_s") is None


def test_doubts_are_a_cell_s_flags_and_the_problems_in_its_log(summary):
    cells = [
        summary.cells[0].model_copy(update={"flags": ["hot"], "problems": ["log-xid"]}),
        summary.cells[1].model_copy(update={"problems": ["log-xid"]}),
        *summary.cells[2:],
    ]
    view = view_of(summary, cells=cells)
    names = [cell.cell for cell in cells]
    assert view.doubts() == [(names[0], "hot; log: log-xid"), (names[1], "log: log-xid")]
    assert [view.cell_name(cell) for cell in cells[:3]] == [f"{names[0]}*", f"{names[1]}*", names[2]]


def test_acceptance_and_tau_are_of_the_drafting_methods_over_all_prompts(summary):
    view = view_of(summary)
    rows = view.acceptance_rows()
    assert [(r.method, r.prompt_type) for r in rows] == [("dflash", None), ("ddtree-b8", None)]
    (best, _) = view.overall(SETTING)
    assert view.tau_of(best) == next(r.tau for r in rows if r.method == best.method)
    unknown = [r.model_copy(update={"num_rounds": 0}) for r in summary.acceptance]
    assert view_of(summary, acceptance=unknown).acceptance_rows() == []
    assert view_of(summary, acceptance=[]).tau_of(best) is None


def test_tables_are_of_their_own_setting(summarised):
    summary = summarised(budgets=(), tps=(1, 2))
    view = view_of(summary)
    for setting in view.settings:
        assert {(r.model, r.tp) for r in view.loads_of(setting)} == {setting}
        rows = view.comparisons_of(setting, ["short", "long"])
        assert [(r.model, r.tp, r.workload) for r in rows] == [(*setting, "short"), (*setting, "long")]
        turns = view.turns_of(setting, "agentic-pipeline")
        assert list(turns) == [1, 2, 3, 4, 5]
        assert {(p.tp, p.workload) for by_method in turns.values() for p in by_method.values()} == {
            (setting[1], "agentic-pipeline")
        }
        assert {tuple(by_method) for by_method in turns.values()} == {("ar", "dflash")}
        assert view.tau_of(rows[0]) == view.acceptance_rows()[view.settings.index(setting)].tau


def test_quantiles_are_told_of_where_any_cell_has_one(summary):
    assert not view_of(summary).has_quantiles()
    cells = [summary.cells[0].model_copy(update={"ttft_p90_s": 0.1}), *summary.cells[1:]]
    assert view_of(summary, cells=cells).has_quantiles()


def test_figures_stand_in_their_sections(summary):
    names = [("a", "speed"), ("b", "load"), ("c", "speed")]
    entries = [FigureEntry(name=name, section=section, caption="") for name, section in names]
    view = View(summary, FigureList(figures=entries))
    assert [figure.name for figure in view.figures_of("speed")] == ["a", "c"]


def test_the_best_method_of_every_workload_is_told_where_there_is_one(summary):
    view = view_of(summary)
    said = view.workload_sentences(SETTING, ["short", "nothing", "long"])
    assert [sentence.split(" the highest")[0] for sentence in said] == ["In short", "In long"]
    assert view.workloads_of("agentic") == ["agentic-calculator", "agentic-pipeline"]
