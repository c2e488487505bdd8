"""What a round costs beside a step of the baseline, workload by workload."""

from dataclasses import dataclass

from draftbench.report.summary import MethodInfo, RoundTime, Summary

Setting = tuple[str, int]


@dataclass(frozen=True)
class RoundRow:
    """Durations at one workload.

    Attributes:
        workload: its name.
        by_method: method -> its round beside a step of AR.
    """

    workload: str
    by_method: dict[str, RoundTime]

    @property
    def step_s(self) -> float:
        """AR's step; where methods have other sessions in common with it, the mean over methods."""
        steps = [row.step_s for row in self.by_method.values()]
        return sum(steps) / len(steps)


def round_rows(summary: Summary, setting: Setting) -> list[RoundRow]:
    """A row for each workload at which rounds are timed, in the campaign's order."""
    found: dict[str, dict[str, RoundTime]] = {workload.name: {} for workload in summary.workloads}
    for row in summary.round_times:
        if (row.model, row.tp) == setting:
            found[row.workload][row.method] = row
    return [RoundRow(name, by_method) for name, by_method in found.items() if by_method]


def timed_methods(summary: Summary, setting: Setting) -> list[MethodInfo]:
    """The methods whose rounds are timed at a setting, in the campaign's order."""
    timed = {row.method for row in summary.round_times if (row.model, row.tp) == setting}
    return [method for method in summary.methods if method.name in timed]
