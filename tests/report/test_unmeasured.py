"""A partial report names what has not been run, and shows no tables of dashes for it."""

from pathlib import Path

import pytest
from synthetic import Shape, campaign_values

from draftbench.config import Campaign, cells
from draftbench.report.draw import FigureList, draw_figures
from draftbench.report.plots.load import by_concurrency, by_tp
from draftbench.report.plots.speed import by_scenario
from draftbench.report.typeset import render
from draftbench.report.view import View

TEMPLATES = Path(__file__).resolve().parents[2] / "report"
MODELS = ("large", "small")
NO_FIGURES = FigureList(figures=[])


def cells_of(model):
    campaign = Campaign.model_validate(campaign_values(budgets=(), models=MODELS))
    return [cell for cell in cells(campaign) if cell.service.model == model]


@pytest.fixture
def unmeasured(summarised):
    """Only the second model has been run, but for one cell."""
    missing = frozenset(cell.name for cell in cells_of("large")) | {"small-tp1-dflash.concurrency-8"}
    return summarised(Shape(missing=missing), is_partial=True, budgets=(), models=MODELS)


def test_a_model_without_a_result_is_named_and_has_no_tables(unmeasured):
    view = View(unmeasured, NO_FIGURES)
    assert view.settings == [("small", 1)]
    source = render(unmeasured, NO_FIGURES, TEMPLATES)
    assert source.count("Not measured yet: large.") == 5
    assert "Latency in ms,{} small" in source
    assert "Latency in ms,{} large" not in source
    assert "Concurrency,{} large" not in source


def test_a_method_without_a_result_is_named_and_has_no_rows(summarised):
    missing = frozenset(
        cell.name
        for cell in cells(Campaign.model_validate(campaign_values(budgets=(8, 16), tps=(1, 4))))
        if cell.service.method == "ddtree-b8" or cell.service.name == "tp1-ddtree-b16"
    )
    summary = summarised(Shape(missing=missing), is_partial=True, budgets=(8, 16), tps=(1, 4))
    view = View(summary, NO_FIGURES)
    assert view.unmeasured_sentence() == (
        "Not measured yet: DDTree-8 and DDTree-16 for TP\u00a01; DDTree-8 for TP\u00a04."
    )
    assert [method.label for method in view.methods_of(("small", 1), "single")] == ["AR", "DFlash"]
    assert [row.method for row in view.overall(("small", 4))] == ["ddtree-b16", "dflash"]
    assert {row.method for row in summary.loads} == {"ar", "dflash", "ddtree-b16"}
    assert "DDTree-8 &" not in render(summary, NO_FIGURES, TEMPLATES).replace("{}", "")


def test_a_method_that_was_run_in_other_workloads_only_is_named_where_it_is_missing(summarised):
    planned = cells(Campaign.model_validate(campaign_values(budgets=(8,))))
    kinds = ("agentic", "concurrency")
    missing = frozenset(
        cell.name
        for cell in planned
        if cell.service.method == "ddtree-b8" and cell.workload.startswith(kinds)
    )
    summary = summarised(Shape(missing=missing), is_partial=True, budgets=(8,))
    view = View(summary, NO_FIGURES)
    assert view.unmeasured_sentence() is view.unmeasured_sentence("single") is None
    for kind in kinds:
        assert view.unmeasured_sentence(kind) == "Not measured yet: DDTree-8."
        assert [method.label for method in view.methods_of(("small", 1), kind)] == ["AR", "DFlash"]
    assert {row.method for row in view.loads_of(("small", 1))} == {"ar", "dflash"}
    for plot in (*by_scenario(summary), *by_concurrency(summary)):
        assert "DFlash" in plot.body
        assert "DDTree" not in plot.body
    source = render(summary, NO_FIGURES, TEMPLATES).replace("{}", "")
    assert source.count("Not measured yet: DDTree-8.") == len(kinds)
    assert "DDTree-8" in source


def test_a_setting_of_which_a_kind_was_not_run_is_named_there(summarised):
    planned = cells(Campaign.model_validate(campaign_values(budgets=(), tps=(1, 2))))
    missing = frozenset(
        cell.name for cell in planned if cell.service.tp == 2 and cell.workload.startswith("concurrency")
    )
    view = View(summarised(Shape(missing=missing), is_partial=True, budgets=(), tps=(1, 2)), NO_FIGURES)
    assert view.unmeasured_sentence("concurrency") == "Not measured yet: TP\u00a02."
    assert view.unmeasured_sentence("agentic") is None


def test_loads_that_nobody_ran_have_no_table_of_marks(summarised):
    planned = list(cells(Campaign.model_validate(campaign_values(budgets=()))))
    loads = frozenset(cell.name for cell in planned if cell.workload.startswith("concurrency"))
    none = View(summarised(Shape(missing=loads), is_partial=True, budgets=()), NO_FIGURES)
    some = loads - {"tp1-ar.concurrency-1"}
    one = View(summarised(Shape(missing=some), is_partial=True, budgets=()), NO_FIGURES)
    assert none.loads_of(("small", 1)) == []
    assert [row.method for row in one.loads_of(("small", 1))] == ["ar"] * 4


def test_a_method_that_failed_everywhere_keeps_its_rows(summarised):
    planned = cells(Campaign.model_validate(campaign_values(budgets=(8,))))
    failures = {c.name: ("oom", "out of memory") for c in planned if c.service.method == "ddtree-b8"}
    summary = summarised(Shape(failures=failures), is_partial=True, budgets=(8,))
    view = View(summary, NO_FIGURES)
    assert view.unmeasured_sentence() is None
    assert [row.mark for row in view.overall(("small", 1))] == [None, "OOM"]


def test_the_scaling_figure_is_of_workloads_that_all_sizes_have(summarised):
    """A workload that fewer sessions have, and one size has not yet, must not move the others' points."""
    values = {"budgets": (), "tps": (1, 2), "sessions": 2}
    only = {"very-long": {"sessions": [1]}}
    longest = [f"tp{tp}-{method}.very-long" for tp in (1, 2) for method in ("ar", "dflash")]
    (some,) = by_tp(summarised(Shape(missing=frozenset(longest[:2])), is_partial=True, only=only, **values))
    (none,) = by_tp(summarised(Shape(missing=frozenset(longest)), is_partial=True, only=only, **values))
    assert some == none
    assert some.caption.startswith("Single requests of short and long together by tensor-parallel size:")


def test_settings_that_compare_nothing_have_no_table_of_the_fastest(summarised):
    summary = summarised(budgets=(), tps=(1, 2, 4))
    captions = [
        "The fastest method of each setting" in render(shown, NO_FIGURES, TEMPLATES)
        for shown in (summary, summary.model_copy(update={"baseline": None, "comparisons": []}))
    ]
    assert captions == [True, False]


def test_cells_that_were_not_run_are_listed_by_service(unmeasured):
    workloads = [cell.workload for cell in cells_of("large") if cell.service.method == "ar"]
    listed = View(unmeasured, NO_FIGURES).cells_not_run()
    assert listed == [
        ("large-tp1-ar", workloads),
        ("large-tp1-dflash", workloads),
        ("small-tp1-dflash", ["concurrency-8"]),
    ]
    shown = {row.cell for row in View(unmeasured, NO_FIGURES).cells_with_a_record()}
    assert shown == {cell.name for cell in cells_of("small")} - {"small-tp1-dflash.concurrency-8"}


def test_a_model_whose_cells_failed_keeps_its_place_with_the_reasons(summarised):
    failures = {cell.name: ("oom", "out of memory") for cell in cells_of("large")}
    summary = summarised(Shape(failures=failures), is_partial=True, budgets=(), models=MODELS)
    assert View(summary, NO_FIGURES).settings == [("large", 1), ("small", 1)]
    source = render(summary, NO_FIGURES, TEMPLATES)
    assert "Not measured yet" not in source
    assert source.count("out of memory") >= len(failures)


def test_the_first_measured_model_has_its_figure_in_the_summary(unmeasured, tmp_path):
    (tmp_path / "summary.json").write_text(unmeasured.model_dump_json())
    figures = draw_figures(tmp_path / "summary.json", tmp_path / "figures").figures
    (headline,) = [figure for figure in figures if figure.name.startswith("headline")]
    assert headline.section == "summary"
    assert "small" in headline.caption


def test_results_of_other_client_code_are_counted_where_they_are_all(summarised):
    summary = summarised(budgets=())
    names = [row.cell for row in summary.cells]
    some = View(summary.model_copy(update={"stale_cells": names[:2]}), NO_FIGURES)
    every = View(summary.model_copy(update={"stale_cells": names}), NO_FIGURES)
    assert View(summary, NO_FIGURES).stale_sentence() == ""
    assert some.stale_sentence().endswith(f"today’s: {names[0]}, {names[1]}.")
    assert every.stale_sentence().endswith("today’s: all 18 results.")


def test_a_method_that_is_not_planned_at_a_size_is_not_called_unmeasured_there(summarised):
    only = {name: {"methods": ["ar", "dflash"]} for name in ("long", "very-long")}
    planned = cells(Campaign.model_validate(campaign_values(budgets=(8,), tps=(1, 2)) | {"only": only}))
    gone = frozenset(c.name for c in planned if c.workload not in only and c.service.tp == 1)
    others = {"short": {"methods": ["ddtree-b8"], "tp": [2]}}
    others |= {f"agentic-{name}": {"methods": []} for name in ("calculator", "pipeline")}
    others |= {f"concurrency-{n}": {"methods": []} for n in (1, 2, 4, 8)}
    summary = summarised(Shape(missing=gone), is_partial=True, budgets=(8,), tps=(1, 2), only=only | others)
    assert View(summary, NO_FIGURES).unmeasured_sentence() is None
