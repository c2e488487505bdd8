"""The notes below figures and tables."""

import re
from pathlib import Path

from synthetic import Shape

from draftbench.report.draw import FigureList, draw_figures
from draftbench.report.notes import bold_note, figure_note, signs, table_note
from draftbench.report.plots.agentic import by_turn
from draftbench.report.plots.load import by_concurrency
from draftbench.report.plots.speed import by_workload
from draftbench.report.summary import Comparison, Evidence
from draftbench.report.typeset import render
from draftbench.report.view import View

TEMPLATES = Path(__file__).resolve().parents[2] / "report"


def test_a_session_that_has_not_been_run_is_not_called_failed(summarised):
    shape = Shape(missing=frozenset({"tp1-dflash-s2.long"}))
    summary = summarised(shape, is_partial=True, sessions=3)
    (row,) = [row for row in summary.comparisons if (row.method, row.workload) == ("dflash", "long")]
    (figure,) = by_workload(summary)
    assert r"{long\textdagger{}}" in figure.body
    assert r"{short}" in figure.body
    assert "\u2020: fewer sessions than planned, the others failed or were not run." in table_note([row])


def test_no_table_or_figure_has_a_sign_that_its_caption_does_not_explain(summarised, tmp_path):
    """Where a session spans two machines and another is missing, in every kind of workload."""
    shape = Shape(
        missing=frozenset({"tp1-ddtree-b8-s2.long"}), boots={"tp1-dflash": "one", "tp1-ddtree-b8": "another"}
    )
    summary = summarised(shape, is_partial=True, sessions=2, budgets=(8,))
    (tmp_path / "summary.json").write_text(summary.model_dump_json())
    figures = draw_figures(tmp_path / "summary.json", tmp_path / "figures")
    source = render(summary, figures, TEMPLATES)
    for entry in figures.figures:
        fragment = (tmp_path / "figures" / f"{entry.name}.tex").read_text()
        source = source.replace(f"\\input{{figures/{entry.name}.tex}}", fragment)
    floats = re.findall(r"\\begin\{(table|figure|longtable)\}(.*?)\\end\{\1\}", source, re.DOTALL)
    num_signs = 0
    for _, body in floats:
        for sign in (r"\textdagger{}", r"\textdaggerdbl{}"):
            if sign in body:
                num_signs += 1
                assert f"{sign}:" in body, body
    assert num_signs > 8


def test_beside_a_ratio_of_fewer_sessions_bold_is_not_called_the_highest(summarised):
    shape = Shape(missing=frozenset({"tp1-dflash-s2.long"}), slow_methods=frozenset({"ddtree-b8"}))
    summary = summarised(shape, is_partial=True, sessions=2, budgets=(8,))
    view = View(summary, FigureList(figures=[]))
    column = view.comparisons_of(("small", 1), ["long"])
    assert [row.method for row in column if view.is_best(("small", 1), row.method, "long")] == ["ddtree-b8"]
    assert max(column, key=lambda row: row.evidence.ratio).method == "dflash"
    assert bold_note(column) == "Bold: highest of the column without a \u2020."
    assert bold_note(view.comparisons_of(("small", 1), ["short"])) == "Bold: highest of the column."
    assert bold_note([row for row in column if row.num_excluded_sessions]) == ""


def test_curves_of_two_machines_say_so_in_their_captions(summarised):
    shape = Shape(boots={"tp1-dflash": "another"})
    of_two, of_one = summarised(shape, budgets=()), summarised(budgets=())
    said = "DFlash in a session ran on another machine than AR, of the same kind"
    for make in (by_concurrency, by_turn):
        assert all(said in figure.caption for figure in make(of_two))
        assert not any(said in figure.caption for figure in make(of_one))


def test_the_range_of_the_sessions_stands_below_a_median_of_several(summarised):
    summary = summarised(sessions=3, budgets=(), only={"very-long": {"sessions": [1]}})
    view = View(summary, FigureList(figures=[]))
    cells = [row for row in summary.cells if (row.method, row.workload) == ("ar", "short")]
    medians = [row.ttft_median_s for row in cells]
    ranges = view.ranges_of_ttft(("small", 1), ["short", "very-long"])
    assert ranges["ar"] == [(min(medians), max(medians)), None]
    assert list(ranges) == ["ar", "dflash"]
    assert view.ranges_of_ttft(("small", 1), ["very-long"]) == {}
    said = "below in small type the TTFT of the fastest and the slowest session"
    assert said in render(summary, FigureList(figures=[]), TEMPLATES)
    assert said not in render(summarised(budgets=()), FigureList(figures=[]), TEMPLATES)


def evidence(num_sessions=3, num_units=5, **facts):
    values = {
        "ratio": 1.5,
        "low": 1.2,
        "high": 1.9,
        "verdict": "faster",
        "num_sessions": num_sessions,
        "unit": "prompt",
        "num_units": num_units,
        "num_requests": 15,
        "num_tokens": 300,
        "per_unit": [1.4, 1.6],
        "per_session": [1.5],
        "half_width": 0.2,
    }
    return Evidence(**values | facts)


def row(known, *, mark=None, num_excluded=0, num_split=0):
    return Comparison(
        model="small",
        tp=1,
        method="dflash",
        reference="ar",
        workload="long",
        workloads=["long"],
        evidence=known,
        mark=mark,
        reason=None,
        num_excluded_sessions=num_excluded,
        num_split_sessions=num_split,
    )


def test_a_note_names_n_and_only_the_signs_that_occur():
    assert table_note([row(evidence())]) == (
        "n = 3 sessions, 5 prompts each. Brackets: 95\u00a0% intervals over sessions and prompts."
    )
    rows = [
        row(evidence(2, 4, low=None, high=None), num_excluded=1),
        row(evidence(3, 5), num_split=1),
        row(None, mark="OOM"),
    ]
    assert table_note(rows) == (
        "n = 2 to 3 sessions, 4 to 5 prompts each. Brackets: 95\u00a0% intervals over sessions and prompts. "
        "One session has no interval. "
        "\u2020: fewer sessions than planned, the others failed or were not run. "
        "\u2021: in a session AR ran on another machine of the same kind. "
        "Words in red: no number, see the appendix."
    )
    assert table_note([row(None, mark="OOM")]) == "Words in red: no number, see the appendix."
    assert table_note([]) == ""


def test_a_figure_s_note_names_dots_where_there_are_several():
    single = evidence(1, 1, low=None, high=None, per_unit=[1.5], unit="run")
    assert (
        figure_note([row(single)]) == "n = 1 session, 1 run a bar. One session has no interval. Dashed: AR."
    )
    assert "Dots: single prompts. Dashed: AR." in figure_note([row(evidence()), row(None, mark="OOM")])


def test_signs_tell_a_left_out_session_from_one_on_two_machines():
    assert signs([row(evidence())]) == ""
    assert signs([row(evidence(), num_excluded=1)]) == "\u2020"
    assert signs([row(evidence()), row(evidence(), num_split=2)]) == "\u2021"
    assert signs([row(evidence(), num_excluded=1, num_split=1)]) == "\u2020\u2021"
