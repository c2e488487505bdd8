"""One invocation of Snakemake: alone on the host, checked before anything runs, nothing left running."""

import contextlib
import os
import shutil
from pathlib import Path

from draftbench import host
from draftbench.client.prompts import check_disjoint, load_prompts, load_scenario
from draftbench.config import AgenticWorkload, Campaign
from draftbench.errors import ConfigError
from draftbench.plan import Plan
from draftbench.servers.guards import refuse_taken_port
from draftbench.servers.lifecycle import ServiceKeeper
from draftbench.staging.fit import require_fit
from draftbench.staging.place import campaign_root, config_folder, require_campaign_room, sources
from draftbench.staging.sources import require_source
from draftbench.steps import write_session

# The TeX programs and the file without which the report cannot be typeset.
TEX_PROGRAMS = ("pdflatex", "kpsewhich")


class Run:
    """Holds the host's lock from `begin` to the end of the process.

    Args:
        plan: of the campaign.
        session: the run's directory.
    """

    def __init__(self, plan: Plan, session: Path) -> None:
        self.plan = plan
        self.session = session
        self._held = contextlib.ExitStack()
        self._pid: int | None = None  # of the process that holds the lock; forks inherit this object

    def begin(self, *, needs_services: bool, needs_tex: bool) -> None:
        """Take the lock, check everything that can be checked now, and write the session's files.

        Args:
            needs_services: a cell will be measured.
            needs_tex: the report will be typeset.

        Raises:
            DraftbenchError: another run is under way, or the campaign cannot be run here.
        """
        self._held.enter_context(host.exclusive(host.host_lock_path(), "runs a campaign"))
        self._pid = os.getpid()
        for old in self.session.parent.glob("*"):
            shutil.rmtree(old)
        if needs_services:
            check_campaign(self.plan.campaign)
        if needs_tex:
            check_tex()
        write_session(self.session, self.plan)

    def end(self) -> None:
        """Stop the service, remove the tokens, drop the lock; nothing in a process without the lock.

        Raises:
            ServerError: a service could not be stopped.
        """
        if self._pid != os.getpid():
            return
        self._pid = None
        with self._held:
            try:
                ServiceKeeper(self.plan.campaign).end()
            finally:
                shutil.rmtree(self.session, ignore_errors=True)


def check_campaign(campaign: Campaign) -> None:
    """Everything that can be known before the first service starts.

    Raises:
        DraftbenchError: what is wrong, in one sentence.
    """
    check_prompts(campaign)
    check_models(campaign)
    require_campaign_room(campaign)
    check_port(campaign)


def check_prompts(campaign: Campaign) -> None:
    """Every prompt and scenario file fits, and none is used both to warm up and to measure.

    Raises:
        ConfigError: one does not.
    """
    warmup = load_prompts(campaign.warmup.prompts)
    for workload in campaign.workloads.values():
        if isinstance(workload, AgenticWorkload):
            texts = load_scenario(workload.scenario, workload.num_turns).turns
        else:
            texts = [prompt.text for prompt in load_prompts(workload.prompts)]
        check_disjoint(warmup, texts, campaign.warmup.prompts)


def check_models(campaign: Campaign) -> None:
    """Local sources exist; drafters fit where both configurations are at hand.

    Raises:
        StagingError: one does not.
    """
    for source in sources(campaign):
        require_source(source)
    root = campaign_root(campaign)
    for model in campaign.models.values():
        target = config_folder(model.target, root)
        drafter = config_folder(model.drafter, root) if model.drafter is not None else None
        if target is not None and drafter is not None:
            require_fit(target, drafter, campaign.methods)


def check_port(campaign: Campaign) -> None:
    """A fixed port is free, or our own service listens there.

    Raises:
        ServerError: a stranger does.
    """
    if campaign.port == "auto":
        return
    keeper = ServiceKeeper(campaign)
    present = keeper.current()
    if present is None or present.port != campaign.port or not keeper.is_alive(present):
        refuse_taken_port(campaign.port)


def check_tex() -> None:
    """TeX is installed.

    Raises:
        ConfigError: it is not; the sentence names the packages.
    """
    missing = [program for program in TEX_PROGRAMS if shutil.which(program) is None]
    if missing:
        raise ConfigError(
            f"expected {missing[0]} of TeX Live, got no such program on PATH; install the packages in "
            "envs/apt.txt (sudo apt-get install texlive-latex-recommended texlive-pictures lmodern), "
            "or measure without a report: snakemake --cores 1 measured"
        )
