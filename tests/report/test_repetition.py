"""Outputs that repeat themselves are said to, and their speedup is given up to there."""

import json
import re
from pathlib import Path

import pytest
from synthetic import Shape, campaign_values, write_campaign
from test_figures import lines
from test_summarise import find

from draftbench.report.budgets import budget_before_sentence, over_line_sentence
from draftbench.report.compare import comparisons_with_line
from draftbench.report.draw import FigureList
from draftbench.report.group import CellIndex
from draftbench.report.plots.acceptance import budget_curve
from draftbench.report.plots.speed import by_workload, headline
from draftbench.report.prose import ratio_words
from draftbench.report.repetition import (
    MUCH_REPETITION,
    before_repetition,
    repeated_share,
    repeats_at_all,
    repeats_much,
    repetition_overview,
    repetition_sentence,
)
from draftbench.report.results import load_results
from draftbench.report.summarise import summarise
from draftbench.report.tex import percent
from draftbench.report.typeset import render

SETTING = ("small", 1)
TEMPLATES = Path(__file__).resolve().parents[2] / "report"
BEGIN = {"ar": 50, "dflash": 30}  # where the long outputs begin to repeat their first tokens


def rewrite(results, workload, change):
    for method in BEGIN:
        path = results / f"tp1-{method}.{workload}.json"
        result = json.loads(path.read_text())
        for request in result["requests"]:
            change(request, method)
        path.write_text(json.dumps(result))


@pytest.fixture
def campaign(tmp_path):
    """A short and a long workload, AR and DFlash, of which nothing repeats yet; the three paths."""
    values = campaign_values(budgets=())
    values["workloads"] = {name: values["workloads"][name] for name in ("short", "long", "concurrency-8")}
    return write_campaign(tmp_path / "c", values)


@pytest.fixture
def looping(campaign, tmp_path):
    """The summary with loops in the long outputs."""

    def loop(request, method):
        ids = request["output_ids"]
        request["output_ids"] = (ids[: BEGIN[method]] + ids[:10] * 10)[: len(ids)]

    rewrite(campaign[2], "long", loop)
    return summarise(*campaign, tmp_path / "build")


def seconds_to(results, method, num_tokens):
    """Until so many tokens had arrived, all long requests together."""
    total = 0.0
    for request in json.loads((results / f"tp1-{method}.long.json").read_text())["requests"]:
        arrived = 0
        for chunk in request["chunks"]:
            arrived += chunk["num_tokens"]
            if arrived >= num_tokens:
                total += chunk["time_s"] - request["send_s"]
                break
    return total


def test_the_speedup_before_repetition_is_of_the_tokens_before_either_output_repeats(campaign, looping):
    evidence = find(looping.before_repetition, method="dflash", workload="long").evidence
    expected = seconds_to(campaign[2], "ar", 30) / seconds_to(campaign[2], "dflash", 30)
    assert evidence.ratio == pytest.approx(expected)
    assert (evidence.num_tokens, evidence.num_requests) == (5 * 30, 5)
    assert evidence.ratio != pytest.approx(
        find(looping.comparisons, method="dflash", workload="long").evidence.ratio
    )


def test_concurrent_requests_have_no_speedup_before_repetition(looping):
    assert {row.workload for row in looping.before_repetition} == {None, "short", "long"}


def test_much_repetition_is_told_with_its_shares_and_the_workload_with_the_least(looping):
    said = repetition_sentence(looping, SETTING)
    shares = [repeated_share(looping, SETTING, method, "long") for method in ("ar", "dflash")]
    assert min(shares) > MUCH_REPETITION
    assert f"AR 0\u00a0% in short, {percent(shares[0])} in long" in said
    assert f"DFlash 0\u00a0% in short, {percent(shares[1])} in long" in said
    assert "says more about loops than about text" in said
    assert "Replies run on to the length asked" in said
    short = find(looping.comparisons, method="dflash", workload="short")
    assert said.endswith(f"short repeats least; in all of it: DFlash {ratio_words(short)}.")
    before = find(looping.before_repetition, method="dflash", workload=None)
    length = before.evidence.num_tokens / before.evidence.num_requests
    assert f"prefill included: on average {length:.0f} a request with DFlash." in said
    assert "and 0\u00a0% in concurrency workloads; " in said
    assert "Outputs repeat themselves in here" in repetition_overview(looping, [SETTING], ["here"])


def test_the_table_of_speeds_shows_shares_and_the_speedup_before(looping):
    source = render(looping, FigureList(figures=[]), TEMPLATES)
    ratio = before_repetition(looping, SETTING, "dflash", "long").evidence.ratio
    share = repeated_share(looping, SETTING, "dflash", "long")
    assert f"{share * 100:.0f}~\\% & {ratio:.2f}" in source
    assert r"\item[Repetition]" in source


def test_text_that_repeats_little_has_no_caveat(campaign, tmp_path):
    summary = summarise(*campaign, tmp_path / "build")
    assert repetition_sentence(summary, SETTING) is None
    assert repetition_overview(summary, [SETTING], ["here"]) is None
    assert r"\item[Repetition]" not in render(summary, FigureList(figures=[]), TEMPLATES)


def test_without_token_ids_the_speedup_before_repetition_is_not_known(campaign, tmp_path):
    rewrite(campaign[2], "long", lambda request, _: request.update(output_ids=None))
    summary = summarise(*campaign, tmp_path / "build")
    assert find(summary.before_repetition, method="dflash", workload="long").mark == "no ids"
    assert before_repetition(summary, SETTING, "dflash", "long") is None
    assert before_repetition(summary, SETTING, "dflash", "short") is not None


def test_bars_are_crossed_at_the_speedup_before_repetition(looping, summarised):
    """A bar alone would show the loops; bars of text without them have no line."""
    said = "Line across a bar: the speedup up to the first repeated 8-gram"
    for make in (headline, by_workload):
        (figure,) = make(looping)
        assert said in figure.caption
        (plain,) = make(summarised(budgets=()))
        assert said not in plain.caption
    ratio = before_repetition(looping, SETTING, "dflash", "long").evidence.ratio
    (figure,) = by_workload(looping)
    heights = {float(y) for y in re.findall(r"^\S+ ([\d.]+)$", figure.body, re.MULTILINE)}
    assert any(height == pytest.approx(ratio, rel=1e-3) for height in heights)


def test_a_tree_is_paired_with_the_line_in_the_sessions_of_both(summarised):
    """The quotient of their speedups over AR is of other sessions, where one has more of them."""
    shape = Shape(missing=frozenset({"tp1-ddtree-b8-s2.long"}), boots={"tp1-dflash": "another"})
    summary = summarised(shape, is_partial=True, sessions=2, budgets=(8,))
    (row,) = summary.over_line
    cells = {
        (cell.method, cell.workload): cell
        for cell in summary.cells
        if cell.session == 1 and cell.workload in row.workloads
    }
    seconds = {
        method: sum(
            cells[method, name].output_tokens / cells[method, name].tok_per_s for name in row.workloads
        )
        for method in ("dflash", "ddtree-b8")
    }
    assert row.evidence.ratio == pytest.approx(seconds["dflash"] / seconds["ddtree-b8"])
    assert (row.method, row.evidence.num_sessions, row.num_split_sessions) == ("ddtree-b8", 1, 1)
    said = over_line_sentence(summary, SETTING)
    assert f"DDTree-8 has {row.evidence.ratio:.2f} times its speed (single prompts" in said
    assert said.endswith("on another machine of the same kind in 1 session).")


@pytest.mark.parametrize("faulty", ["dflash", "ddtree-b8"])
def test_a_method_whose_text_is_faulty_is_not_paired(tmp_path, faulty):
    paths = write_campaign(tmp_path / "c", campaign_values(budgets=(8,)))
    row = find(summarise(*paths, tmp_path / "build").exactness, method=faulty, kind="single")
    loaded = load_results(*paths, is_partial=False, client_sha256=None)
    index = CellIndex.of(loaded.campaign, loaded.cells)
    with_fault = [row.model_copy(update={"num_faults": 1})]
    assert len(comparisons_with_line(index, [row], 7, is_whole=True)) == 1
    assert comparisons_with_line(index, with_fault, 7, is_whole=True) == []


def test_of_two_linear_blocks_the_first_that_was_measured_is_named(summarised):
    second = {"dflash-8": {"algorithm": "dflash", "block_size": 8}}
    both = summarised(budgets=(8,), extra_methods=second)
    assert over_line_sentence(both, SETTING).startswith("Paired with DFlash itself, DDTree-8 has ")
    first = frozenset(row.cell for row in both.cells if row.method == "dflash")
    alone = summarised(Shape(missing=first), is_partial=True, budgets=(8,), extra_methods=second)
    assert over_line_sentence(alone, SETTING).startswith("Paired with dflash-8 itself, DDTree-8 has ")


RATIOS_BEFORE = {"dflash": 1.1, "ddtree-b8": 1.2, "ddtree-b16": 1.3, "ddtree-b32": 1.4}


@pytest.fixture
def trees(summarised):
    """Loops in the long outputs of three budgets, the largest ahead before them."""
    summary = with_shares(summarised(budgets=(8, 16, 32)), {"long": 0.5})
    rows = [
        row.model_copy(
            update={"evidence": row.evidence.model_copy(update={"ratio": RATIOS_BEFORE[row.method]})}
        )
        for row in summary.before_repetition
    ]
    return summary.model_copy(update={"before_repetition": rows})


def test_the_best_budget_before_repetition_is_told(trees, summarised):
    said = budget_before_sentence(trees, SETTING)
    assert said == (
        "Up to the first repeated 8-gram of either output it is 32 nodes (the largest) with 1.40."
    )
    assert said.replace("8-gram", "8-{}gram") in render(trees, FigureList(figures=[]), TEMPLATES)
    assert budget_before_sentence(with_shares(trees, {}), SETTING) == ""
    assert budget_before_sentence(with_shares(summarised(budgets=(8,)), {"long": 0.5}), SETTING) == ""


def test_speed_and_tau_before_repetition_are_drawn_against_the_budget(trees):
    accepted = [
        row.model_copy(update={"tau_before_repetition": 2.0 + place})
        for place, row in enumerate(trees.acceptance)
    ]
    trees = trees.model_copy(update={"acceptance": accepted})
    taus = {row.method: row.tau_before_repetition for row in accepted if row.prompt_type is None}
    (plot,) = budget_curve(trees)
    assert "Before repetition: up to the first repeated 8-gram" in plot.caption
    names = ("ddtree-b8", "ddtree-b16", "ddtree-b32")
    for body, values in zip(lines(plot.body), (RATIOS_BEFORE, taus), strict=True):
        _, _, level, _, line = body
        assert [y for _, y in level] == pytest.approx([values["dflash"]] * 2)
        assert [y for _, y in line] == pytest.approx([values[name] for name in names])
    (plain,) = budget_curve(with_shares(trees, {}))
    assert "before repetition" not in plain.body
    assert "Before repetition" not in plain.caption


def test_tau_before_repetition_has_a_column_where_much_is_repeated(trees):
    accepted = [row.model_copy(update={"tau_before_repetition": 7.25}) for row in trees.acceptance]
    trees = trees.model_copy(update={"acceptance": accepted})
    assert render(trees, FigureList(figures=[]), TEMPLATES).count("& 7.25 &") == 4
    assert "7.25" not in render(with_shares(trees, {}), FigureList(figures=[]), TEMPLATES)


def test_a_missing_line_leaves_no_pairing(summarised):
    summary = summarised(budgets=(8,))
    assert len(summary.over_line) == len(summary.over_line_before_repetition) == 1
    no_line = frozenset(row.cell for row in summary.cells if row.method == "dflash")
    missing = summarised(Shape(missing=no_line), is_partial=True, budgets=(8,))
    assert missing.over_line == []
    assert over_line_sentence(missing, SETTING) == ""


def with_shares(summary, shares):
    """The summary with the share of repeated 8-grams by workload; 0 elsewhere."""
    cells = [
        row.model_copy(update={"repeated_8gram_share": shares.get(row.workload, 0.0)})
        for row in summary.cells
    ]
    return summary.model_copy(update={"cells": cells})


def test_only_more_than_a_fifth_is_much_and_only_of_single_requests(summarised):
    summary = summarised(budgets=())
    for share, is_much in ((0.2, False), (0.201, True)):
        assert repeats_much(with_shares(summary, {"long": share}), SETTING) is is_much
    loads = with_shares(summary, {"agentic-pipeline": 0.9, "concurrency-8": 0.9})
    assert not repeats_much(loads, SETTING)
    assert not repeats_at_all(loads, SETTING)
    assert repeats_at_all(with_shares(summary, {"long": 0.001}), SETTING)
    assert not repeats_much(with_shares(summary, {"long": 0.9}), ("small", 2))


def test_a_table_calls_no_output_free_of_repetition_because_nothing_is_compared(summarised):
    summary = with_shares(summarised(budgets=()), {"long": 0.5})
    alone = summary.model_copy(update={"baseline": None, "comparisons": [], "before_repetition": []})
    source = render(alone, FigureList(figures=[]), TEMPLATES)
    assert "No output holds an 8-{}gram twice" not in source
    assert source.count("50~\\%") == 2
    assert "No output holds" in render(with_shares(alone, {}), FigureList(figures=[]), TEMPLATES)


def test_shares_of_scenarios_and_loads_are_told_as_a_range(summarised):
    shares = {"long": 0.5, "agentic-pipeline": 0.3, "agentic-calculator": 0.1, "concurrency-8": None}
    said = repetition_sentence(with_shares(summarised(budgets=()), shares), SETTING)
    assert (
        "AR 0\u00a0% in short, 50\u00a0% in long, 0\u00a0% in very-long, 10\u00a0% to 30\u00a0% in agentic "
        "workloads and 0\u00a0% in concurrency workloads; DFlash 0\u00a0% in short"
    ) in said


@pytest.mark.parametrize(("run_on", "is_said"), [((), False), (("short",), True)])
def test_replies_run_on_where_any_single_request_is_not_ended_by_the_model(summarised, run_on, is_said):
    summary = with_shares(summarised(budgets=()), {"long": 0.5})
    workloads = [
        row.model_copy(update={"ignore_eos": row.kind != "single" or row.name in run_on})
        for row in summary.workloads
    ]
    said = repetition_sentence(summary.model_copy(update={"workloads": workloads}), SETTING)
    assert ("Replies run on" in said) is is_said


def test_a_speedup_before_repetition_that_nobody_knows_is_said_to_be_unknown(summarised):
    summary = with_shares(summarised(budgets=()), {"long": 0.5})
    said = repetition_sentence(summary.model_copy(update={"before_repetition": []}), SETTING)
    assert "Speedups before the first repetition are not known." in said


def test_the_caveat_is_of_the_methods_that_the_summary_speaks_of(summarised):
    """The one with the highest number, of all and of those with an interval; here two of three."""
    summary = with_shares(summarised(budgets=(8, 16), sessions=2), {"long": 0.5})
    ratios = {"dflash": (1.2, None), "ddtree-b8": (1.1, 1.0), "ddtree-b16": (1.05, 1.0)}
    rows = []
    for row in summary.comparisons:
        ratio, low = ratios[row.method]
        known = row.evidence.model_copy(update={"ratio": ratio, "low": low, "high": low})
        rows.append(row.model_copy(update={"evidence": known}))
    said = repetition_sentence(summary.model_copy(update={"comparisons": rows}), SETTING)
    assert "AR 0" in said
    assert "; DFlash 0" in said
    assert "; DDTree-8 0" in said
    assert "DDTree-16" not in said


def test_the_workload_that_repeats_least_is_judged_by_the_method_that_repeats_most(summarised):
    shares = {"dflash": {"short": 0.1, "long": 0.3}, "ddtree-b8": {"short": 0.5, "long": 0.2}}
    summary = summarised(budgets=(8,), only={"very-long": {"methods": []}})
    rows = []
    for row in summary.comparisons:  # the best of all is one method, of the long requests the other
        ratio = 1.9 if (row.method == "dflash") == (row.workload == "long") else 1.5
        known = row.evidence.model_copy(update={"ratio": ratio})
        rows.append(row.model_copy(update={"evidence": known}))
    cells = [
        row.model_copy(update={"repeated_8gram_share": shares.get(row.method, {}).get(row.workload, 0.0)})
        for row in summary.cells
    ]
    said = repetition_sentence(summary.model_copy(update={"cells": cells, "comparisons": rows}), SETTING)
    assert said.endswith("long repeats least; in all of it: DFlash 1.90 and DDTree-8 1.50.")
