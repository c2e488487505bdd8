"""What the templates ask of a summary: lookups and cells of tables, bound to one summary."""

from collections.abc import Sequence

from draftbench.report import best, loads, precision, prose, recommend, rounds
from draftbench.report.draw import FigureEntry, FigureList
from draftbench.report.environment import main_facts
from draftbench.report.measures import pooled_tok_per_s, present
from draftbench.report.notes import signs, table_note
from draftbench.report.plots.base import loads_of, methods_of, settings
from draftbench.report.repetition import (
    before_repetition,
    repeated_share,
    repeats_at_all,
    repeats_much,
    repetition_overview,
    repetition_sentence,
)
from draftbench.report.replicas import replica_sentence, replicas, shape_text
from draftbench.report.summary import (
    Acceptance,
    AdaptiveGroup,
    CellRow,
    Comparison,
    Exactness,
    Kind,
    LoadPoint,
    MethodInfo,
    ModelInfo,
    RoundTime,
    Setting,
    Summary,
    TurnPoint,
)
from draftbench.report.tex import DASH, Raw, count, number, significant, tex
from draftbench.report.unmeasured import unmeasured_sentence
from draftbench.stats.quantiles import median


class View:
    """A summary with the figures drawn from it; every method is a function of the templates.

    Attributes:
        summary: the numbers.
        settings: (model, TP) pairs with a result or a recorded failure, in the campaign's order.
    """

    def __init__(self, summary: Summary, figures: FigureList) -> None:
        self.summary = summary
        self.settings = settings(summary)
        self._figures = figures.figures
        self._labels = {method.name: method.label for method in summary.methods}
        self._comparisons = {
            ((row.model, row.tp), row.method, row.workload): row for row in summary.comparisons
        }

    def figures_of(self, section: str) -> list[FigureEntry]:
        """The figures of a section."""
        return [figure for figure in self._figures if figure.section == section]

    def label(self, method: str) -> str:
        """A method's name in the report."""
        return self._labels[method]

    def setting_name(self, setting: Setting) -> str:
        """`, TP 4` and the like; empty in a campaign with one setting."""
        return prose.setting_name(self.summary, setting)

    def setting_title(self, setting: Setting) -> str:
        """The same as a heading."""
        return prose.setting_title(self.summary, setting)

    def unmeasured_sentence(self, kind: Kind | None = None) -> str | None:
        """Which settings and methods stand nowhere else, because nothing of them has been run."""
        return unmeasured_sentence(self.summary, kind)

    def methods_of(self, setting: Setting, kind: Kind) -> list[MethodInfo]:
        """The methods that a setting's tables of a kind have rows for."""
        return methods_of(self.summary, setting, kind)

    def timed_methods(self, setting: Setting) -> list[MethodInfo]:
        """The methods whose rounds are timed at a setting."""
        return rounds.timed_methods(self.summary, setting)

    def round_times_of(self, setting: Setting, methods: Sequence[MethodInfo]) -> list[RoundTime]:
        """All durations of some methods at a setting."""
        names = {method.name for method in methods}
        return [
            row for row in self.summary.round_times if (row.model, row.tp) == setting and row.method in names
        ]

    def round_rows(self, setting: Setting, methods: Sequence[MethodInfo]) -> list[rounds.RoundRow]:
        """What a round of some methods costs, a row for each workload."""
        return rounds.round_rows(self.summary, setting, methods)

    def replicas(self) -> list[str]:
        """Names of the cost-scaled replicas."""
        return replicas(self.summary)

    def replica_sentence(self, model: str) -> str | None:
        """What a replica is; None for a model that is none."""
        return replica_sentence(self.summary, model)

    def shape_text(self, model: ModelInfo) -> str:
        """The shape whose cost a replica has."""
        return shape_text(model)

    def recommendation(self, setting: Setting) -> str:
        """Which method to deploy."""
        return recommend.recommendation(self.summary, setting)

    def load_sentence(self, setting: Setting) -> str | None:
        """What is left of the gain under load."""
        said = prose.load_sentence(self.summary, setting)
        waits = loads.waits_sentence(self.summary, setting, self.overall(setting)[0].method) if said else ""
        return f"{said} {waits}".strip() if said else None

    def exactness_sentence(self, setting: Setting) -> str | None:
        """Whether texts are equal."""
        return prose.exactness_sentence(self.summary, setting)

    def repetition_sentence(self, setting: Setting) -> str | None:
        """How much the outputs of a setting repeat themselves, where that is much."""
        return repetition_sentence(self.summary, setting)

    def repetition_overview(self) -> str | None:
        """Of which settings that is said."""
        names = [self.setting_title(setting) for setting in self.settings]
        return repetition_overview(self.summary, self.settings, names)

    def repeats_much(self) -> bool:
        """Whether the outputs of any setting repeat themselves much."""
        return any(repeats_much(self.summary, setting) for setting in self.settings)

    def repeats_at_all(self, setting: Setting) -> bool:
        """See `repetition.repeats_at_all`."""
        return repeats_at_all(self.summary, setting)

    def repeated_share(self, setting: Setting, method: str, workload: str) -> float | None:
        """Share of repeated 8-grams in the outputs of a method."""
        return repeated_share(self.summary, setting, method, workload)

    def before_repetition(self, setting: Setting, method: str, workload: str | None) -> Comparison | None:
        """The comparison over the tokens before repetition."""
        return before_repetition(self.summary, setting, method, workload)

    def coverage_sentence(self) -> str:
        """How much of the campaign is behind the numbers."""
        return prose.coverage_sentence(self.summary)

    def interval_paragraph(self) -> str:
        """What the campaign's number of sessions lets the report say."""
        return precision.interval_paragraph(self.summary)

    def stopping_paragraph(self) -> str:
        """How the data decided on the number of sessions."""
        return precision.stopping_paragraph(self.summary)

    def stopped_by(self, group: AdaptiveGroup) -> str:
        """Why a group has no further session."""
        return precision.stopped_by(self.summary, group)

    def widest(self, group: AdaptiveGroup) -> str:
        """Half width of a group's widest interval."""
        return precision.plus_minus(group.half_width)

    def overall(self, setting: Setting) -> list[Comparison]:
        """Comparisons over all single requests, best first."""
        return prose.overall(self.summary, setting)

    def ranking_sentence(self, setting: Setting) -> str:
        """All methods in one sentence, best first."""
        return prose.ranking_sentence(self.summary, setting)

    def split_sentence(self, setting: Setting, workloads: Sequence[str]) -> str:
        """Which methods ran on other machines than AR."""
        return prose.split_sentence(self.summary, setting, workloads)

    def workload_sentences(self, setting: Setting, workloads: Sequence[str]) -> list[str]:
        """The best method of each workload in words."""
        return [
            sentence
            for workload in workloads
            if (sentence := prose.workload_sentence(self.summary, setting, workload))
        ]

    def together(self, rows: Sequence[Comparison | Acceptance]) -> str:
        """What rows over several workloads cover."""
        return prose.together(self.summary, rows)

    def signs(self, row: Comparison) -> str:
        """The signs behind its number."""
        return signs([row])

    def comparison(self, setting: Setting, method: str, workload: str | None) -> Comparison | None:
        """One comparison; None where none was planned."""
        return self._comparisons.get((setting, method, workload))

    def comparisons_of(self, setting: Setting, workloads: Sequence[str]) -> list[Comparison]:
        """The comparisons of some workloads."""
        return [
            row
            for (place, _, workload), row in self._comparisons.items()
            if place == setting and workload in workloads
        ]

    def is_best(self, setting: Setting, method: str, workload: str | None) -> bool:
        """Whether a method has the highest speedup of its column; a number from fewer sessions never is."""
        rows = [
            row
            for (place, _, name), row in self._comparisons.items()
            if (place, name) == (setting, workload) and row.evidence and not row.num_excluded_sessions
        ]
        best = max(rows, key=lambda row: row.evidence.ratio if row.evidence else 0.0, default=None)
        return best is not None and best.method == method

    def spread_title(self, rows: Sequence[Comparison]) -> str:
        """Heading of the column that `spread` fills."""
        has_interval = any(row.evidence and row.evidence.low is not None for row in rows)
        return "95\u00a0% interval" if has_interval else "Interval"

    def spread(self, row: Comparison) -> str:
        """Interval; without one the range of the prompts within the session, which is none."""
        evidence = row.evidence
        if evidence is None:
            return DASH
        if evidence.low is not None:
            return f"{number(evidence.low)} to {number(evidence.high)}"
        return f"none; {evidence.unit}s {number(min(evidence.per_unit))} to {number(max(evidence.per_unit))}"

    def best_rows(self) -> list[best.Best]:
        """The fastest method of every setting that compares any."""
        return best.best_rows(self.summary, self.settings)

    def loaded(self, row: best.Best) -> str:
        """Its ratio under load, or the word in its place."""
        return best.loaded(row)

    def doubts_sentence(self) -> str:
        """Which doubts how many cells carry."""
        return prose.doubts_sentence(self.summary)

    def is_doubtful(self) -> bool:
        """Whether most cells carry doubts."""
        return prose.is_doubtful(self.summary)

    def overview_sentence(self) -> str:
        """The fastest methods of all settings in one sentence."""
        return recommend.overview_sentence([row.single for row in self.best_rows()])

    def tau_of(self, row: Comparison) -> float | None:
        """Emitted tokens per round of a method over the same workloads."""
        found = self._acceptance(row.model, row.tp, row.method)
        return found.tau if found else None

    def equal_outputs(self, row: Comparison) -> str:
        """`14 of 15` outputs of single requests, with what the others are."""
        rows = [
            exact
            for exact in self.summary.exactness
            if (exact.model, exact.tp, exact.method) == (row.model, row.tp, row.method)
            and exact.kind == "single"
        ]
        compared = sum(exact.num_compared for exact in rows)
        if not compared:
            return DASH
        parts = [f"{sum(exact.num_equal for exact in rows)} of {compared}"]
        ties, faults = sum(e.num_ties for e in rows), sum(e.num_faults for e in rows)
        parts += [count(ties, "tie")] if ties else []
        parts += [count(faults, "fault")] if faults else []
        return ", ".join(parts)

    def parted_at(self, row: Exactness) -> str:
        """Earliest and median position of the first difference."""
        if row.first_position is None:
            return DASH
        return f"{row.first_position} / {number(row.median_position, 0)}"

    def workloads_of(self, kind: str) -> list[str]:
        """Names of the workloads of a kind."""
        return [workload.name for workload in self.summary.workloads if workload.kind == kind]

    def speed_cell(self, setting: Setting, method: str, workload: str) -> Raw:
        """Output speed of a method over the sessions of a workload, or the first mark."""
        rows = self.cells_of(setting, method, workload)
        speed = pooled_tok_per_s(rows)
        if speed is not None:
            return Raw(tex(significant(speed)) + self.doubt_sign(setting, method, workload))
        mark = next((row.mark for row in rows if row.mark), None)
        return Raw(f"\\failed{{{tex(mark)}}}" if mark else f"\\textcolor{{quiet}}{{{tex(DASH)}}}")

    def doubt_sign(self, setting: Setting, method: str, workload: str) -> Raw:
        """A raised asterisk where a cell behind a number carries a doubt."""
        rows = self.cells_of(setting, method, workload)
        return Raw(r"\rlap{\textsuperscript{*}}" if any(doubts_of(row) for row in rows) else "")

    def acceptance_rows(self) -> list[Acceptance]:
        """Acceptance of the drafting methods over all single requests."""
        return [
            row
            for row in self.summary.acceptance
            if row.prompt_type is None and row.method != self.summary.baseline and row.num_rounds
        ]

    def acceptance_note(self) -> str:
        """The note of the speedups beside it."""
        rows = [self.comparison((row.model, row.tp), row.method, None) for row in self.acceptance_rows()]
        return table_note([row for row in rows if row is not None])

    def turns_of(self, setting: Setting, workload: str) -> dict[int, dict[str, TurnPoint]]:
        """Turn -> method -> its point, in a scenario at a setting."""
        found: dict[int, dict[str, TurnPoint]] = {}
        for row in self.summary.turns:
            if ((row.model, row.tp), row.workload) == (setting, workload):
                found.setdefault(row.turn, {})[row.method] = row
        return dict(sorted(found.items()))

    def cells_of(self, setting: Setting, method: str, workload: str) -> list[CellRow]:
        """The cells of all sessions."""
        place = (setting, method, workload)
        return [row for row in self.summary.cells if ((row.model, row.tp), row.method, row.workload) == place]

    def cells_with_a_record(self) -> list[CellRow]:
        """The cells with a result or a recorded failure."""
        return [row for row in self.summary.cells if row.state != "not run"]

    def cells_not_run(self) -> list[tuple[str, list[str]]]:
        """Services with the workloads of which there is neither a result nor a failure."""
        found: dict[str, list[str]] = {}
        for row in self.summary.cells:
            if row.state == "not run":
                found.setdefault(row.cell.removesuffix(f".{row.workload}"), []).append(row.workload)
        return list(found.items())

    def loads_of(self, setting: Setting) -> list[LoadPoint]:
        """The rows of a setting's table of loads."""
        return loads_of(self.summary, setting)

    def median_of(self, setting: Setting, method: str, workload: str, field: str) -> float | None:
        """Median over sessions of a cell's own median, such as `ttft_median_s`."""
        return median(present(getattr(row, field) for row in self.cells_of(setting, method, workload)))

    def ranges_of_ttft(
        self, setting: Setting, workloads: Sequence[str]
    ) -> dict[str, list[tuple[float, float] | None]]:
        """Method -> median TTFT of its fastest and slowest session of each workload, if any has several."""
        found = {}
        for method in self.methods_of(setting, "single"):
            cells = [self.cells_of(setting, method.name, workload) for workload in workloads]
            values = [present(row.ttft_median_s for row in rows) for rows in cells]
            ranges = [(min(known), max(known)) if len(known) > 1 else None for known in values]
            if any(ranges):
                found[method.name] = ranges
        return found

    def cell_name(self, row: CellRow) -> str:
        """A cell with a sign for its doubts."""
        return f"{row.cell}*" if doubts_of(row) else row.cell

    def doubts(self) -> list[tuple[str, str]]:
        """The doubts about every cell that has any."""
        return [(row.cell, "; ".join(doubts)) for row in self.summary.cells if (doubts := doubts_of(row))]

    def has_quantiles(self) -> bool:
        """Whether any cell has enough requests for a p90."""
        return any(row.ttft_p90_s is not None for row in self.summary.cells)

    def main_environment(self) -> list[list[str]]:
        """The part of the environment that the setup table shows."""
        return main_facts(self.summary.environment, self.summary.environment_differences)

    def stale_sentence(self) -> str:
        """Which results other client code measured."""
        stale = self.summary.stale_cells
        num_results = sum(row.state not in ("not run", "cell failed") for row in self.summary.cells)
        which = f"all {num_results} results" if len(stale) == num_results else ", ".join(stale)
        return f"Measured by other client code than today’s: {which}." if stale else ""

    def _acceptance(self, model: str, tp: int, method: str) -> Acceptance | None:
        return next(
            (
                row
                for row in self.summary.acceptance
                if (row.model, row.tp, row.method, row.prompt_type) == (model, tp, method, None)
            ),
            None,
        )


def doubts_of(row: CellRow) -> list[str]:
    """Flags and problems in the server's log."""
    return [*row.flags, *(f"log: {problem}" for problem in row.problems)]
