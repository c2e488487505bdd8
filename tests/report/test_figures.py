"""What the figures plot: the summary's numbers at their places, and a word where there is none."""

import re

import pytest
from synthetic import Shape, campaign_values, write_campaign
from test_summarise import find

from draftbench.report.plots.acceptance import accepted_tokens, budget_curve, by_prompt_type
from draftbench.report.plots.agentic import by_turn
from draftbench.report.plots.load import by_concurrency, by_tp
from draftbench.report.plots.speed import by_scenario, by_workload, headline
from draftbench.report.summarise import summarise

TABLE = re.compile(r"table \{%\n((?:\S+ \S+\n)+)\}")
BAR = re.compile(r"\(axis cs:(\S+),(\S+)\) rectangle \(axis cs:(\S+),(\S+)\);")


def lines(body):
    """The lines of every panel, each a list of (x, y)."""
    panels = body.split("\\begin{axis}")[1:]
    return [
        [[tuple(map(float, point.split())) for point in table.splitlines()] for table in TABLE.findall(panel)]
        for panel in panels
    ]


def ticks(body):
    """Names of the ticks of the x axis of the first panel."""
    (names,) = re.findall(r"xticklabels=\{\s*\{(.*?)\}\s*\},?\n", body, re.DOTALL)[:1]
    return re.split(r"\},\s*\{", names.replace("{}", ""))


def approx(points):
    return pytest.approx(points, rel=1e-4)


def loads(summary, method, field):
    return [getattr(row, field) for row in summary.loads if row.method == method]


def test_a_closed_loop_is_drawn_by_what_all_get_by_what_each_gets_and_one_against_the_other(summarised):
    summary = summarised(budgets=())
    left, right = by_concurrency(summary)
    total, single = lines(left.body)
    first_token, trade = lines(right.body)
    assert ticks(left.body) == ["1", "2", "4", "8"]
    for place, method in enumerate(("ar", "dflash")):
        speeds, each = loads(summary, method, "tok_per_s"), loads(summary, method, "request_tok_per_s")
        waits = loads(summary, method, "ttft_median_s")
        assert [y for _, y in total[place]] == approx(speeds)
        assert [x for x, _ in total[place]] == [0, 1, 2, 3]
        assert [y for _, y in single[place]] == approx(each)
        assert [y for _, y in first_token[place]] == approx([1000 * wait for wait in waits])
        assert trade[place] == [approx(pair) for pair in zip(each, speeds, strict=True)]
    assert "a point for each of 1, 2, 4, 8 in flight" in right.caption


def test_a_load_without_a_number_is_a_gap_with_its_word(summarised):
    shape = Shape(failures={"tp1-dflash.concurrency-2": ("oom", "x")})
    left, _ = by_concurrency(summarised(shape, is_partial=True, budgets=()))
    total = lines(left.body)[0]
    assert [[x for x, _ in line] for line in total] == [[0, 1, 2, 3], [0], [2, 3]]
    assert "{DFlash OOM}" in left.body


def test_loads_of_one_concurrency_or_without_a_number_have_no_figure(summarised):
    two = {"concurrency-1": {"methods": []}, "concurrency-2": {"methods": []}}
    assert len(list(by_concurrency(summarised(budgets=(), only=two)))) == 2
    one = two | {"concurrency-4": {"methods": []}}
    assert list(by_concurrency(summarised(budgets=(), only=one))) == []
    failures = {f"tp1-{m}.concurrency-{n}": ("oom", "x") for m in ("ar", "dflash") for n in (1, 2, 4, 8)}
    assert list(by_concurrency(summarised(Shape(failures=failures), is_partial=True, budgets=()))) == []


@pytest.fixture
def sizes(summarised):
    """A summary of two TP sizes."""
    return summarised(budgets=(8, 16), tps=(1, 2))


def test_every_setting_has_figures_of_its_own_numbers(sizes):
    for place, tp in enumerate((1, 2)):
        for make in (by_concurrency, budget_curve, accepted_tokens, by_prompt_type, headline, by_workload):
            plots = list(make(sizes))
            own = plots[place * len(plots) // 2 : (place + 1) * len(plots) // 2]
            assert all(f", TP\u00a0{tp}" in plot.caption for plot in own)
    total = lines(list(by_concurrency(sizes))[2].body)[0]
    rows = [row.tok_per_s for row in sizes.loads if (row.tp, row.method) == (2, "ar")]
    assert [y for _, y in total[0]] == approx(rows)
    types = next(by_prompt_type(sizes))
    rows = [r for r in sizes.acceptance if (r.tp, r.method) == (1, "dflash") and r.prompt_type]
    tops = [float(top) for _, _, _, top in BAR.findall(types.body)]
    assert tops[::3] == approx([row.tau for row in rows])


def test_speed_and_speedup_by_tp_size_are_over_the_workloads_of_all(sizes):
    (plot,) = by_tp(sizes)
    speeds, ratios = lines(plot.body)
    assert ticks(plot.body) == ["1", "2"]
    names = ("short", "long", "very-long")
    for place, method in enumerate(("ar", "dflash", "ddtree-b8", "ddtree-b16")):
        rows = {tp: [find(sizes.cells, tp=tp, method=method, workload=w) for w in names] for tp in (1, 2)}
        expected = [
            sum(row.output_tokens for row in rows[tp])
            / sum(row.output_tokens / row.tok_per_s for row in rows[tp])
            for tp in (1, 2)
        ]
        assert [y for _, y in speeds[place]] == approx(expected)
    reference, *drafting = ratios
    assert {y for _, y in reference} == {1.0}
    for place, method in enumerate(("dflash", "ddtree-b8", "ddtree-b16")):
        rows = [row for row in sizes.comparisons if (row.method, row.workload) == (method, None)]
        assert [y for _, y in drafting[place]] == approx([row.evidence.ratio for row in rows])


def test_one_tp_size_and_sizes_without_a_common_workload_have_no_figure_of_several(summarised):
    assert list(by_tp(summarised(budgets=()))) == []
    apart = {"short": {"tp": [1]}, "long": {"tp": [2]}, "very-long": {"methods": []}}
    assert list(by_tp(summarised(budgets=(), tps=(1, 2), only=apart))) == []
    without_single = {name: {"methods": []} for name in ("short", "long", "very-long")}
    assert list(by_tp(summarised(budgets=(), tps=(1, 2), only=without_single))) == []


def test_speed_and_tau_are_drawn_against_the_budget_with_the_block_as_a_level(summarised):
    summary = summarised(budgets=(16, 8, 32))
    (plot,) = budget_curve(summary)
    assert ticks(plot.body) == ["8", "16", "32"]
    ratios = {r.method: r.evidence.ratio for r in summary.comparisons if r.workload is None}
    taus = {row.method: row.tau for row in summary.acceptance if row.prompt_type is None}
    for (reference, level, line), values in zip(lines(plot.body), (ratios, taus), strict=True):
        assert {y for _, y in reference} == {1.0}
        assert [y for _, y in level] == approx([values["dflash"]] * 2)
        assert [y for _, y in line] == approx([values[f"ddtree-b{n}"] for n in (8, 16, 32)])


def test_a_budget_without_a_number_is_a_gap_with_its_word_and_one_budget_is_no_curve(summarised):
    failures = {f"tp1-ddtree-b8.{w}": ("oom", "x") for w in ("short", "long", "very-long")}
    three = summarised(Shape(failures=failures), is_partial=True, budgets=(8, 16, 32))
    (plot,) = budget_curve(three)
    _, _, line = lines(plot.body)[0]
    assert [x for x, _ in line] == [1, 2]
    assert "{DDTree OOM}" in plot.body
    two = summarised(Shape(failures=failures), is_partial=True, budgets=(8, 16))
    assert list(budget_curve(two)) == []


def test_rounds_are_drawn_by_what_they_keep_exactly_and_at_least(summarised):
    summary = summarised(budgets=(8,))
    (plot,) = accepted_tokens(summary)
    rows = [find(summary.acceptance, method=m, prompt_type=None) for m in ("dflash", "ddtree-b8")]
    deepest = max(place for row in rows for place, rounds in enumerate(row.histogram) if rounds)
    assert ticks(plot.body) == [str(place) for place in range(deepest + 1)]
    exactly, at_least = lines(plot.body)
    for row, one, other in zip(rows, exactly, at_least, strict=True):
        shares = [rounds / row.num_rounds for rounds in row.histogram] + [0.0] * deepest
        shares = shares[: deepest + 1]
        assert [y for _, y in one] == pytest.approx(shares, abs=1e-5)
        assert [y for _, y in other] == pytest.approx(
            [sum(shares[place:]) for place in range(deepest + 1)], abs=1e-5
        )
    assert plot.caption.endswith(
        f"All single requests together; n rounds: DFlash {rows[0].num_rounds}, DDTree-8 {rows[1].num_rounds}."
    )


def test_tau_stands_by_type_of_prompt_where_there_are_several(summarised, tmp_path):
    summary = summarised(budgets=())
    (plot,) = by_prompt_type(summary)
    kinds = sorted({row.prompt_type for row in summary.acceptance if row.prompt_type})
    assert ticks(plot.body) == kinds
    taus = [find(summary.acceptance, method="dflash", prompt_type=kind).tau for kind in kinds]
    assert [float(top) for _, _, _, top in BAR.findall(plot.body)] == approx(taus)
    alone = summary.model_copy(
        update={"acceptance": [r for r in summary.acceptance if r.prompt_type in (None, "code")]}
    )
    assert list(by_prompt_type(alone)) == []


def test_a_conversation_is_drawn_turn_by_turn(summarised):
    summary = summarised(budgets=())
    calculator, pipeline = by_turn(summary)
    assert calculator.caption.startswith("agentic-calculator: ")
    assert calculator.caption.endswith("; n = 1 request a point.")
    first_token, speed = lines(pipeline.body)
    for place, method in enumerate(("ar", "dflash")):
        rows = [r for r in summary.turns if (r.method, r.workload) == (method, "agentic-pipeline")]
        assert [y for _, y in first_token[place]] == approx([1000 * row.ttft_median_s for row in rows])
        assert [y for _, y in speed[place]] == approx([row.tok_per_s for row in rows])
    assert ticks(pipeline.body) == ["1", "2", "3", "4", "5"]


def test_bars_have_the_ratio_its_interval_and_a_dot_for_each_prompt(summarised):
    summary = summarised(budgets=(), sessions=2)
    (plot,) = headline(summary)
    evidence = find(summary.comparisons, method="dflash", workload=None).evidence
    assert [float(end) for _, _, end, _ in BAR.findall(plot.body)] == approx([evidence.ratio])
    whisker, dots, reference = lines(plot.body)[0]
    assert [x for x, _ in whisker] == approx([evidence.low, evidence.high])
    assert [x for x, _ in dots] == approx(evidence.per_unit)
    assert {x for x, _ in reference} == {1.0}
    assert plot.caption == (
        "Speedup over autoregressive decoding, all single requests together, best first. n = 2 sessions, "
        "5 prompts a bar. Whiskers: 95\u00a0% intervals over sessions and prompts. Dots: single prompts. "
        "Dashed: AR."
    )


def test_the_best_bar_comes_first_and_one_without_a_number_last_with_its_word(summarised):
    shape = Shape(
        slow_methods=frozenset({"ddtree-b8"}),
        failures={f"tp1-dflash.{w}": ("oom", "x") for w in ("short", "long", "very-long")},
    )
    (plot,) = headline(summarised(shape, is_partial=True, budgets=(8, 16)))
    (names,) = re.findall(r"yticklabels=\{\{(.*)\}\}", plot.body)
    assert names.replace("{}", "").split("},{") == ["DDTree-16", "DDTree-8", "DFlash"]
    assert "{OOM}" in plot.body
    assert plot.caption.endswith(
        "One session has no interval. Dots: single prompts. Dashed: AR. "
        "Words in red: no number, see the appendix."
    )


def test_bars_stand_by_workload_and_by_scenario_with_the_word_of_a_hole(tmp_path):
    values = campaign_values(budgets=()) | {"only": {"very-long": {"methods": ["ar"]}}}
    shape = Shape(failures={"tp1-dflash.long": ("timeout", "x")})
    summary = summarise(*write_campaign(tmp_path / "c", values, shape), tmp_path / "build", is_partial=True)
    (plot,) = by_workload(summary)
    assert ticks(plot.body) == ["short", "long"]
    assert "{timeout}" in plot.body
    ratio = find(summary.comparisons, method="dflash", workload="short").evidence.ratio
    assert [float(top) for _, _, _, top in BAR.findall(plot.body)] == approx([ratio])
    (scenarios,) = by_scenario(summary)
    assert scenarios.section == "agentic"
    assert ticks(scenarios.body) == ["agentic-calculator", "agentic-pipeline"]
    assert "Dots: single turns." in scenarios.caption


def test_a_method_that_a_workload_is_not_planned_for_says_so(summarised):
    (plot,) = by_workload(summarised(budgets=(8,), only={"long": {"methods": ["ar", "dflash"]}}))
    assert "{not planned}" in plot.body
