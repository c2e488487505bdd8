"""The notes below figures and tables."""

from synthetic import Shape

from draftbench.report.notes import table_note
from draftbench.report.plots.speed import by_workload


def test_a_session_that_has_not_been_run_is_not_called_failed(summarised):
    shape = Shape(missing=frozenset({"tp1-dflash-s2.long"}))
    summary = summarised(shape, is_partial=True, sessions=3)
    (row,) = [row for row in summary.comparisons if (row.method, row.workload) == ("dflash", "long")]
    (figure,) = by_workload(summary)
    assert r"{long\textdagger{}}" in figure.body
    assert r"{short}" in figure.body
    assert "\u2020: fewer sessions than planned, the others failed or were not run." in table_note([row])
