"""Cells of a campaign by model, TP size, method, workload and session."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from draftbench.config import Campaign
from draftbench.records import CellResult, RequestRecord
from draftbench.report.cells import is_whole
from draftbench.report.load import LoadedCell


class Setting(NamedTuple):
    """Where methods are compared with each other: same model, same TP size."""

    model: str
    tp: int


class PairKey(NamedTuple):
    """What makes two requests of different cells the same question."""

    prompt_id: str
    turn: int
    repeat: int
    occurrence: int


@dataclass(frozen=True)
class CellIndex:
    """Loaded cells, found by what they are.

    Attributes:
        campaign: the plan.
        by_key: (setting, method, workload, session) -> cell.
    """

    campaign: Campaign
    by_key: dict[tuple[Setting, str, str, int], LoadedCell]

    @classmethod
    def of(cls, campaign: Campaign, cells: Iterable[LoadedCell]) -> "CellIndex":
        """Index of some cells of a campaign."""
        by_key = {}
        for cell in cells:
            service = cell.plan.service
            setting = Setting(service.model, service.tp)
            by_key[setting, service.method, cell.plan.workload, service.session] = cell
        return cls(campaign, by_key)

    @property
    def settings(self) -> list[Setting]:
        """Every setting with a cell, in the campaign's order."""
        return list(dict.fromkeys(key[0] for key in self.by_key))

    @property
    def baseline(self) -> str | None:
        """The campaign's autoregressive method; None where there is none."""
        return self.campaign.baseline

    def methods(self, setting: Setting) -> list[str]:
        """Names of the methods with a result or a recorded failure there, in the campaign's order."""
        recorded = {
            key[1]
            for key, cell in self.by_key.items()
            if key[0] == setting and (cell.result is not None or cell.failure is not None)
        }
        return [name for name in self.campaign.methods if name in recorded]

    def workloads(self, kind: str) -> list[str]:
        """Names of the workloads of a kind, in the campaign's order."""
        return [name for name, workload in self.campaign.workloads.items() if workload.kind == kind]

    def together(self, setting: Setting, method: str) -> tuple[str, ...]:
        """The single-request workloads with the most sessions; others would leave those without a sum."""
        planned = Counter(key[2] for key in self.by_key if key[:2] == (setting, method))
        singles = [name for name in self.workloads("single") if planned[name]]
        most = max((planned[name] for name in singles), default=0)
        return tuple(name for name in singles if planned[name] == most)

    def find(self, setting: Setting, method: str, workload: str, session: int) -> LoadedCell | None:
        """A planned cell, or None."""
        return self.by_key.get((setting, method, workload, session))

    def sessions(self) -> range:
        """Numbers of the sessions."""
        return range(1, self.campaign.session_limit + 1)

    def whole_results(self, setting: Setting, method: str, workload: str) -> Iterator[CellResult]:
        """Results whose numbers may be used, by session."""
        for session in self.sessions():
            cell = self.find(setting, method, workload, session)
            if cell is not None and cell.result is not None and is_whole(cell.result):
                yield cell.result


def pair_requests(result: CellResult) -> dict[PairKey, RequestRecord]:
    """The requests of a cell by what they ask; a question asked again in a repeat counts up."""
    seen: dict[tuple[str, int, int], int] = {}
    pairs = {}
    for request in sorted(result.requests, key=lambda request: request.request_id):
        question = (request.prompt_id, request.turn, request.repeat)
        seen[question] = seen.get(question, -1) + 1
        pairs[PairKey(*question, seen[question])] = request
    return pairs
