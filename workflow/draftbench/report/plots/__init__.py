"""The report's figures, each from the summary's rows, one or none for each model and TP size."""

from collections.abc import Callable, Iterator

from draftbench.report.plots import acceptance, agentic, load, speed
from draftbench.report.plots.base import Plot
from draftbench.report.summary import Summary

ALL: tuple[Callable[[Summary], Iterator[Plot]], ...] = (
    speed.headline,
    speed.by_workload,
    acceptance.budget_curve,
    acceptance.accepted_tokens,
    acceptance.by_prompt_type,
    agentic.by_turn,
    speed.by_scenario,
    load.by_concurrency,
    load.by_tp,
)
