"""What of a campaign nothing has been run of yet: a partial report names it once and shows no rows for it."""

from draftbench.report.plots.base import methods_of, settings
from draftbench.report.prose import joined, setting_title
from draftbench.report.summary import Setting, Summary


def unmeasured_sentence(summary: Summary) -> str | None:
    """Settings without a result, and methods without one at the others; None where there are none."""
    measured = settings(summary)
    planned = dict.fromkeys((row.model, row.tp) for row in summary.cells)
    names = [setting_title(summary, setting) for setting in planned if setting not in measured]
    for setting in measured:
        labels = _unmeasured_labels(summary, setting)
        if labels:
            title = setting_title(summary, setting)
            names.append(joined(labels) + (f" for {title}" if title else ""))
    return f"Not measured yet: {'; '.join(names)}." if names else None


def _unmeasured_labels(summary: Summary, setting: Setting) -> list[str]:
    planned = {row.method for row in summary.cells if (row.model, row.tp) == setting}
    measured = methods_of(summary, setting)
    missing = [method for method in summary.methods if method.name in planned and method not in measured]
    return [method.label for method in missing]
