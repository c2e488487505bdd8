"""What of a campaign nothing has been run of yet: a partial report names it and shows no rows for it."""

from draftbench.report.plots.base import methods_of, settings
from draftbench.report.prose import joined, setting_title
from draftbench.report.summary import Kind, Setting, Summary


def unmeasured_sentence(summary: Summary, kind: Kind | None = None) -> str | None:
    """Settings without a result, and methods without one at the others; None where there are none.

    `kind`: in workloads of a kind; None: in any.
    """
    planned = dict.fromkeys((row.model, row.tp) for row in summary.cells if kind in (None, row.kind))
    measured = [setting for setting in settings(summary) if methods_of(summary, setting, kind)]
    names = [setting_title(summary, setting) for setting in planned if setting not in measured]
    for setting in measured:
        labels = _unmeasured_labels(summary, setting, kind)
        if labels:
            title = setting_title(summary, setting)
            names.append(joined(labels) + (f" for {title}" if title else ""))
    return f"Not measured yet: {'; '.join(names)}." if names else None


def _unmeasured_labels(summary: Summary, setting: Setting, kind: Kind | None) -> list[str]:
    planned = {
        row.method for row in summary.cells if (row.model, row.tp) == setting and kind in (None, row.kind)
    }
    measured = methods_of(summary, setting, kind)
    missing = [method for method in summary.methods if method.name in planned and method not in measured]
    return [method.label for method in missing]
