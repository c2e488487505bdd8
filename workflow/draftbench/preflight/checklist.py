"""All checks of a campaign: every problem in one list, none found later."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from draftbench.config import Campaign
from draftbench.errors import ConfigError, DraftbenchError
from draftbench.preflight.campaign import (
    check_context,
    check_interpreter,
    check_launches,
    check_models,
    check_port,
    check_prompts,
    check_room,
    check_tex,
)
from draftbench.preflight.forecast import clock_note, hours_note
from draftbench.preflight.gpus import check_gpu_memory, check_gpus
from draftbench.preflight.sglang import check_environment, check_tensor_parallel
from draftbench.preflight.units import check_systemd

logger = logging.getLogger(__name__)
Check = Callable[[Campaign], str | None]


@dataclass
class Findings:
    """What the checks found, in their order.

    Attributes:
        notes: lines worth reading, of checks that passed.
        problems: sentences, each of which stands in the way of a run.
    """

    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def run_checks(campaign: Campaign, checks: Iterable[tuple[str, Check]]) -> Findings:
    """Run all of them, whatever they find."""
    findings = Findings()
    for name, check in checks:
        try:
            note = check(campaign)
        except DraftbenchError as error:
            if str(error) not in findings.problems:  # two checks can meet the same obstacle
                findings.problems.append(str(error))
        else:
            findings.notes.append(f"{name}: {note or 'ok'}")
    return findings


def service_checks(campaign: Campaign) -> Iterator[tuple[str, Check]]:
    """What must be right before a service is started."""
    yield "prompts", check_prompts
    yield "models", check_models
    yield "room", check_room
    yield "context", check_context
    yield "interpreter", check_interpreter
    yield "launch lines", check_launches
    yield "port", check_port
    yield "systemd", check_systemd
    engine = campaign.engine
    if engine.kind == "sglang":
        yield "tensor parallelism", lambda campaign: check_tensor_parallel(campaign, engine)
        yield "GPUs", lambda campaign: check_gpus(campaign, engine)
        yield "GPU memory", lambda campaign: check_gpu_memory(campaign, engine)
        yield "SGLang's environment", lambda campaign: check_environment(campaign, engine)
    yield "clock", clock_note
    yield "time", hours_note


def report_checks() -> Iterator[tuple[str, Check]]:
    """What must be right before a report is typeset."""
    yield "TeX", check_tex


def require_ready(campaign: Campaign, *, needs_services: bool, needs_tex: bool) -> None:
    """Check all that a run needs, before anything runs.

    Raises:
        ConfigError: something is not right; one sentence for each problem.
    """
    checks = [*(service_checks(campaign) if needs_services else ()), *(report_checks() if needs_tex else ())]
    findings = run_checks(campaign, checks)
    for note in findings.notes:
        logger.info("%s", note)
    if findings.problems:
        raise ConfigError(listed(findings.problems))


def listed(problems: list[str]) -> str:
    """One sentence as it is, several with their numbers, a line each."""
    if len(problems) == 1:
        return problems[0]
    lines = [f"{number}. {problem}" for number, problem in enumerate(problems, start=1)]
    return "\n".join([f"{len(problems)} problems", *lines])
