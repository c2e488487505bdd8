"""How many sessions an adaptive campaign's results ask for, in the judge and in the report."""

import json
import re
from pathlib import Path

import pytest
from synthetic import Shape, campaign_values, write_campaign

from draftbench.adaptive import asks_for_more, groups
from draftbench.config import Campaign, cells
from draftbench.errors import ReportError
from draftbench.report import precision
from draftbench.report.draw import FigureList
from draftbench.report.results import load_results
from draftbench.report.sessions import judge
from draftbench.report.summarise import summarise
from draftbench.report.typeset import render

ROOT = Path(__file__).resolve().parents[2]
SESSIONS, LIMIT = 2, 4
WORKLOADS = ("short", "long", "concurrency-2")


def adaptive_values(half_width, **changes):
    """Three workloads, two groups."""
    values = campaign_values(budgets=(8,), sessions=SESSIONS)
    values["workloads"] = {name: values["workloads"][name] for name in WORKLOADS}
    return values | {"adaptive": {"half_width": half_width, "max_sessions": LIMIT}} | changes


def write(directory, values, *, upto, shape=None):
    """A campaign's files with the results of the first sessions: `upto` of each group's first workload."""
    campaign = Campaign.model_validate(values)
    last = {name: upto[group.workloads[0]] for group in groups(campaign) for name in group.workloads}
    late = {cell.name for cell in cells(campaign) if cell.service.session > last.get(cell.workload, 99)}
    shape = shape or Shape()
    shape.missing = shape.missing | frozenset(late)
    return write_campaign(directory, values, shape)


def judged(paths, tmp_path, group, session):
    return judge(*paths, tmp_path / "verdict.json", group_name=group, session=session)


def half_widths(tmp_path, group):
    """Of the group's widest interval after each session that can be judged."""
    paths = write_campaign(tmp_path / "all", adaptive_values(0.05))
    return {
        session: judged(paths, tmp_path, group, session).half_width for session in range(SESSIONS, LIMIT + 1)
    }


@pytest.mark.parametrize("group", ["tp1.short", "tp1.concurrency-2"])
def test_another_session_is_asked_for_exactly_while_an_interval_is_wider_than_asked(tmp_path, group):
    width = half_widths(tmp_path, group)[SESSIONS]
    for asked, is_enough in ((width * 1.01, True), (width * 0.99, False)):
        paths = write_campaign(tmp_path / f"asked-{is_enough}", adaptive_values(asked))
        found = judged(paths, tmp_path, group, SESSIONS)
        assert (found.half_width, found.needs_more) == (width, not is_enough)
        assert asks_for_more(tmp_path / "verdict.json") is not is_enough
    assert not asks_for_more(tmp_path / "no-verdict.json")


def test_the_judge_sees_the_widest_of_the_intervals_that_the_report_prints(tmp_path):
    paths = write_campaign(tmp_path / "c", adaptive_values(0.9))
    found = judged(paths, tmp_path, "tp1.short", SESSIONS)
    rows = [
        row
        for row in summarise(*paths, tmp_path / "build").comparisons
        if row.workload in (None, "short", "long")
    ]
    assert {row.method for row in rows} == {"dflash", "ddtree-b8"}
    assert found.half_width == max(row.evidence.half_width for row in rows)


def test_a_session_without_a_number_leaves_the_interval_open(tmp_path):
    shape = Shape(violations={"tp1-dflash-s2.long": ["server-restarted"]})
    paths = write_campaign(tmp_path / "c", adaptive_values(0.9), shape)
    found = judged(paths, tmp_path, "tp1.short", 2)
    assert (found.half_width, found.needs_more) == (None, True)
    assert judged(paths, tmp_path, "tp1.short", 3).half_width is not None


def test_a_missing_result_is_not_judged(tmp_path):
    paths = write_campaign(
        tmp_path / "c", adaptive_values(0.05), Shape(missing=frozenset({"tp1-dflash-s2.long"}))
    )
    with pytest.raises(ReportError, match=r"got none for tp1-dflash-s2\.long; delete"):
        judged(paths, tmp_path, "tp1.short", 2)


def test_a_result_of_another_spec_is_not_judged(tmp_path):
    campaign_json, specs_json, results = write_campaign(tmp_path / "c", adaptive_values(0.05))
    specs = json.loads(specs_json.read_text())
    specs["tp1-ar.short"]["seed"] = 8
    specs_json.write_text(json.dumps(specs))
    with pytest.raises(ReportError, match=r"got none for tp1-ar\.short; delete"):
        judged((campaign_json, specs_json, results), tmp_path, "tp1.short", 2)


def test_an_unknown_group_is_refused_with_the_known_ones(tmp_path):
    paths = write_campaign(tmp_path / "c", adaptive_values(0.05))
    with pytest.raises(ReportError, match=r"tp1\.short, tp1\.concurrency-2\), got tp1\.long"):
        judged(paths, tmp_path, "tp1.long", 2)


def render_sessions(summary):
    """The LaTeX of the paragraph on sessions, with its table."""
    text = render(summary, FigureList(figures=[]), ROOT / "report")
    return text[text.index("\\paragraph{Sessions.}") : text.index("\\paragraph{Outputs.}")]


def test_the_report_says_how_many_sessions_each_group_got_and_why_no_more(tmp_path):
    widths = half_widths(tmp_path, "tp1.short")
    loads = half_widths(tmp_path / "loads", "tp1.concurrency-2")
    asked = 1.001 * widths[2]
    assert all(
        width > asked for width in loads.values()
    )  # else the made-up numbers do not tell the two apart
    paths = write(tmp_path / "c", adaptive_values(asked), upto={"short": 2, "concurrency-2": LIMIT})
    summary = summarise(*paths, tmp_path / "build")
    assert [(g.workloads, g.num_sessions, g.state) for g in summary.adaptive] == [
        (["short", "long"], 2, "reached"),
        (["concurrency-2"], LIMIT, "limit"),
    ]
    assert [g.half_width for g in summary.adaptive] == [widths[2], loads[LIMIT]]
    together = next(r for r in summary.comparisons if r.method == "dflash" and r.workload is None)
    assert (together.workloads, together.evidence.num_sessions) == (["short", "long"], 2)
    load = next(r for r in summary.comparisons if r.method == "dflash" and r.workload == "concurrency-2")
    assert load.evidence.num_sessions == LIMIT
    said = precision.stopping_paragraph(summary)
    assert "Of 2 rows, as narrow as asked: 1; stopped by the limit of 4 sessions: 1." in said
    assert "were started 2 to 4 times" in precision.interval_paragraph(summary)
    row = re.compile(r"^(?:short|concurrency).* & (\d) & .* & (.*) \\\\$", re.MULTILINE)
    rows = row.findall(render_sessions(summary))
    assert [(number, re.sub(r"\\failed{(.*)}", r"\1", ended)) for number, ended in rows] == [
        ("2", "as narrow as asked"),
        ("4", "the limit of 4 sessions"),
    ]


def test_a_report_without_the_sessions_that_the_data_ask_for_is_refused(tmp_path):
    paths = write(tmp_path / "c", adaptive_values(1e-6), upto={"short": 3, "concurrency-2": 2})
    with pytest.raises(ReportError, match=r"got none for tp1-ar-s3\.concurrency-2, .* run the same command"):
        load_results(*paths)


def test_a_partial_report_calls_a_group_without_its_last_session_unfinished(tmp_path):
    paths = write(tmp_path / "c", adaptive_values(1e-6), upto={"short": 3, "concurrency-2": LIMIT})
    summary = summarise(*paths, tmp_path / "build", is_partial=True)
    assert [(g.num_sessions, g.state) for g in summary.adaptive] == [(4, "unfinished"), (4, "limit")]
    holes = {row.cell for row in summary.cells if row.mark == "n/r"}
    assert holes == {f"tp1-{m}-s4.{w}" for m in ("ar", "dflash", "ddtree-b8") for w in ("short", "long")}


def test_results_beyond_the_session_that_was_enough_are_named_and_not_used(tmp_path):
    asked = 1.01 * half_widths(tmp_path, "tp1.short")[2]
    paths = write(tmp_path / "c", adaptive_values(asked), upto={"short": 3, "concurrency-2": LIMIT})
    loaded = load_results(*paths)
    assert loaded.adaptive[0].num_sessions == 2
    assert "tp1-ar-s3.short.json" in loaded.unplanned_files
    assert not any(c.plan.workload == "short" and c.plan.service.session == 3 for c in loaded.cells)


def test_a_reason_beside_a_cell_that_nobody_asked_for_is_no_news(tmp_path):
    asked = 1.01 * half_widths(tmp_path, "tp1.short")[2]
    shape = Shape(failures={"tp1-dflash-s3.short": ("crash", "a service that did not start")})
    paths = write(
        tmp_path / "c", adaptive_values(asked), upto={"short": 2, "concurrency-2": LIMIT}, shape=shape
    )
    assert load_results(*paths).unplanned_files == []


def test_a_group_with_a_result_of_another_spec_is_unfinished(tmp_path):
    campaign_json, specs_json, results = write_campaign(tmp_path / "c", adaptive_values(0.9))
    specs = json.loads(specs_json.read_text())
    specs["tp1-ar-s2.short"]["seed"] = 8
    specs_json.write_text(json.dumps(specs))
    loaded = load_results(campaign_json, specs_json, results, is_partial=True)
    singles = loaded.adaptive[0]
    assert (singles.num_sessions, singles.half_width, singles.state) == (2, None, "unfinished")
