import atexit
import os
import re
import sys
from pathlib import Path

from draftbench import host
from draftbench.adaptive import asks_for_more, groups
from draftbench.campaign_file import read_campaign
from draftbench.client.code_hash import client_sha256
from draftbench.errors import DraftbenchError
from draftbench.plan import Plan, stored_spec
from draftbench.run import Run
from draftbench.steps import result_path

try:
    CAMPAIGN = read_campaign(
        [Path(os.path.relpath(name)) for name in workflow.configfiles], config
    )
    PLAN = Plan(CAMPAIGN)
    SPECS = PLAN.specs
    # A token of something that dies with the host or a process is valid in the run that made it and in no other.
    TOKENS = str(host.session_directory())
except DraftbenchError as error:
    sys.exit(f"error: {error}")

NAME = CAMPAIGN.campaign
RESULTS_DIR = f"results/{NAME}"
BUILD = f"report/build/{NAME}"
ASKED_HALF_WIDTH = CAMPAIGN.adaptive and CAMPAIGN.adaptive.half_width
VERDICTS = f"{BUILD}/sessions/{ASKED_HALF_WIDTH}"
GROUPS = {group.name: group for group in groups(CAMPAIGN)}
MODELS = list(CAMPAIGN.models)
# Scaled down to --cores, whatever they are: a job with this many threads runs alone.
ALL_CORES = 4096
# Cells before starts drain a service before the next starts; a model is staged when its service is next.
# Judges before starts, so that all that ask for a session share its starts.
MEASURE_PRIORITY, JUDGE_PRIORITY = 4_000_000, 3_000_000
START_PRIORITY = 2_000_000
REPORT_RULES = [
    f"{step}{kind}"
    for step in ("summarise", "figures", "typeset")
    for kind in ("", "_partial")
]
RUN = Run(PLAN, Path(TOKENS))

os.makedirs(RESULTS_DIR, exist_ok=True)
host.activate_environment()


wildcard_constraints:
    model="|".join(MODELS),
    service="|".join(PLAN.services),
    workload="|".join(CAMPAIGN.workloads),
    group="|".join(map(re.escape, GROUPS)) or "none",
    session=r"\d+",


def begin_run():
    """Take the host's lock and check what can be checked; a refusal ends everything here, in one sentence."""
    atexit.register(end_run)  # Snakemake calls no hook after an error of its own
    pending = {job.rule.name for job in workflow.dag.needrun_jobs()}
    try:
        RUN.begin(
            needs_services=not pending.isdisjoint({"stage", "start", "measure"}),
            needs_tex=not pending.isdisjoint({"typeset", "typeset_partial"}),
            only_reports=pending <= {"all", *REPORT_RULES},
        )
    except DraftbenchError as error:
        sys.exit(f"error: {error}")


def end_run():
    """Stop the service; the second call does nothing."""
    try:
        RUN.end()
    except DraftbenchError as error:
        sys.exit(f"error: {error}")


def results_of(cells):
    """The files of cells."""
    return [str(result_path(CAMPAIGN, cell.name)) for cell in cells]


def judged_results(wildcards):
    """What a judge looks at: all that the group has measured until the session."""
    return results_of(GROUPS[wildcards.group].between(1, int(wildcards.session)))


def further_results(group):
    """An input function: the verdicts on a group, and the results that they ask for.

    Verdicts are read where they lie, and void while a result that they are about is not of the present spec.
    `checkpoints.judge.get` would not do: while it waits for a verdict, Snakemake sees no other reason to run a job.
    """

    def files(_wildcards):
        verdicts, session = [], CAMPAIGN.sessions
        while session < CAMPAIGN.session_limit:
            verdicts.append(f"{VERDICTS}/{group.name}.{session}.json")
            measured = [is_measured(cell.name) for cell in group.between(1, session)]
            if not all(measured) or not asks_for_more(Path(verdicts[-1])):
                break
            session += 1
        return verdicts + results_of(group.between(CAMPAIGN.sessions + 1, session))

    return files


# What the report needs: the cells of the campaign's own sessions, and what the data ask for beyond them.
RESULTS = results_of(
    c for c in PLAN.cells.values() if c.service.session <= CAMPAIGN.sessions
)
FURTHER_RESULTS = [further_results(group) for group in GROUPS.values()]


def cell_name(wildcards):
    """The cell that a result's file name names."""
    return f"{wildcards.service}.{wildcards.workload}"


def cell_spec(wildcards):
    """Everything that decides what the cell measures, as the one param that triggers a rerun."""
    return SPECS[cell_name(wildcards)]


def is_pending(cell):
    """Its result is missing, was measured under another spec, or is asked for again."""
    path, asked = str(result_path(CAMPAIGN, cell)), workflow.dag_settings
    if asked.forceall or {path, "measure"} & set(asked.forcerun):
        return True
    if asked.forcetargets and path in asked.targets:
        return True
    return not is_measured(cell)


def is_measured(cell):
    """Its result is there and was measured under its present spec."""
    return stored_spec(result_path(CAMPAIGN, cell)) == SPECS[cell]


def service_token(wildcards):
    """Only a pending cell needs its service: an edge from a finished one would re-run it at every start."""
    return (
        f"{TOKENS}/{wildcards.service}.ready"
        if is_pending(cell_name(wildcards))
        else []
    )


def model_token(wildcards):
    """A service needs its model staged."""
    return f"{TOKENS}/{PLAN.services[wildcards.service].model}.staged"


def stage_priority(wildcards):
    """A model right before its first service: in a session's turn, not after all sessions of the others."""
    first = min(
        PLAN.service_order[s.name]
        for s in PLAN.services.values()
        if s.model == wildcards.model
    )
    return START_PRIORITY - first


def start_priority(wildcards):
    """Services in the campaign's seeded random order."""
    return START_PRIORITY - PLAN.service_order[wildcards.service]


def measure_priority(wildcards):
    """Cells in the campaign's seeded random order."""
    return MEASURE_PRIORITY - PLAN.order[cell_name(wildcards)]


def library(*packages):
    """The sources of parts of the library, as inputs of the rules whose output they decide."""
    root = Path("workflow/draftbench")
    return [
        str(path)
        for package in packages
        for path in sorted((root / package).rglob("*.py"))
    ]


def report_templates():
    """The report's LaTeX sources."""
    root = Path("report")
    found = [
        path for suffix in ("tex", "bib", "sty") for path in root.rglob(f"*.{suffix}")
    ]
    return sorted(
        str(path) for path in found if "build" not in path.relative_to(root).parts
    )
