"""Further sessions where the intervals are still wide: which cells get them together, what a judge wrote.

A group holds the cells of a model at a TP size, of one workload or of all single-request workloads, as the
report sums these. All its methods get the next session, AR with them, so that every number stays paired.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from draftbench.config import Campaign, Cell, cells, setting_name
from draftbench.records import StrictModel


@dataclass(frozen=True)
class Group:
    """Cells that get their sessions together.

    Attributes:
        name: `<setting>.<first workload>`.
        model, tp: the setting.
        workloads: in the campaign's order.
        cells: of all sessions that there may be.
    """

    name: str
    model: str
    tp: int
    workloads: tuple[str, ...]
    cells: tuple[Cell, ...]

    def between(self, first: int, last: int) -> list[Cell]:
        """The cells of the sessions `first` to `last`, both included."""
        return [cell for cell in self.cells if first <= cell.service.session <= last]


class Verdict(StrictModel):
    """What a judge found after a session.

    Attributes:
        group, num_sessions: what was judged.
        half_width: of the widest interval, relative; None where a comparison has none yet.
        needs_more: whether it is wider than asked.
    """

    group: str
    num_sessions: int
    half_width: float | None
    needs_more: bool


def groups(campaign: Campaign) -> Iterator[Group]:
    """Every group whose number of sessions the data decide, in the file's order; none without `adaptive`."""
    adaptive = campaign.adaptive_workloads
    single = [name for name in adaptive if campaign.workloads[name].kind == "single"]
    found: dict[tuple[str, int, str], list[Cell]] = {}
    for cell in cells(campaign):
        if cell.workload in adaptive:
            family = single[0] if cell.workload in single else cell.workload
            found.setdefault((cell.service.model, cell.service.tp, family), []).append(cell)
    for (model, tp, _), members in found.items():
        workloads = tuple(dict.fromkeys(cell.workload for cell in members))
        name = f"{setting_name(campaign, model, tp)}.{workloads[0]}"
        yield Group(name, model, tp, workloads, tuple(members))


def asks_for_more(path: Path) -> bool:
    """What a judge's file says; no where there is none."""
    return path.exists() and Verdict.model_validate_json(path.read_bytes()).needs_more
