"""What every campaign needs: prompts, models, room, launch lines, a port, TeX."""

import shutil
from pathlib import Path

from draftbench import host
from draftbench.client.prompts import check_disjoint, load_prompts, load_scenario
from draftbench.config import AgenticWorkload, Campaign
from draftbench.errors import ConfigError, StagingError
from draftbench.plan import Plan
from draftbench.report.programs import TEX_PACKAGES, missing_programs
from draftbench.servers.guards import refuse_taken_port
from draftbench.servers.launch import build_launch
from draftbench.servers.lifecycle import ServiceKeeper
from draftbench.staging.fit import require_fit
from draftbench.staging.place import (
    campaign_root,
    config_folder,
    missing_bytes,
    require_campaign_room,
    sources,
)
from draftbench.staging.room import GIB, available_memory_bytes
from draftbench.staging.sources import require_source
from draftbench.staging.stage import StagedModel

# Beside models in memory, for the processes of one server.
SERVER_MEMORY_BYTES = 4 << 30


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


def check_room(campaign: Campaign) -> None:
    """All models fit where they are staged; in memory, beside a server.

    Raises:
        StagingError: they do not.
    """
    require_campaign_room(campaign)
    root = campaign_root(campaign)
    missing = missing_bytes(campaign, root)
    available = available_memory_bytes()
    needed = missing + SERVER_MEMORY_BYTES
    if missing and host.TMPFS in root.parents and available < needed:
        raise StagingError(
            f"{root}: expected {needed / GIB:.1f} GiB of free memory for models and a server, "
            f"got {available / GIB:.1f} GiB; set staging_root in the campaign to a directory on a disk"
        )


def check_launches(campaign: Campaign) -> None:
    """Every service has a launch line that its engine accepts.

    Raises:
        ConfigError: one has not.
    """
    staged = StagedModel(
        target_dir=Path("target"), drafter_dir=Path("drafter"), target_sha256={}, drafter_sha256={}
    )
    for service in Plan(campaign).services.values():
        build_launch(campaign, service, staged, port=0)


def check_interpreter(campaign: Campaign) -> None:
    """The embedded engine's interpreter is there; SGLang's is asked for more, see `sglang`.

    Raises:
        ConfigError: it is not.
    """
    program = campaign.engine.python
    if campaign.engine.kind == "embedded" and program is not None and shutil.which(program) is None:
        raise ConfigError(f"engine.python: expected an interpreter, got no program {program}; correct it")


def check_context(campaign: Campaign) -> None:
    """Replies leave room for a prompt in the context; how long prompts are only the server can tell.

    Raises:
        ConfigError: those of a workload do not.
    """
    limit = campaign.engine.context_length
    for name, workload in campaign.workloads.items():
        num_tokens = workload.max_tokens
        if isinstance(workload, AgenticWorkload) and workload.ignore_eos:
            num_tokens *= workload.num_turns  # replies that end by themselves may be shorter
        if limit is not None and num_tokens >= limit:
            raise ConfigError(
                f"workloads.{name}: expected replies of fewer tokens than engine.context_length, {limit}, "
                f"got {num_tokens}; lower max_tokens or raise engine.context_length"
            )


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


def check_tex(_campaign: Campaign) -> None:
    """TeX is installed.

    Raises:
        ConfigError: it is not; the sentence names the packages.
    """
    missing = missing_programs()
    if missing:
        raise ConfigError(
            f"expected {' and '.join(missing)} on PATH for the report, found none; install the packages "
            f"in envs/apt.txt (sudo apt-get install --no-install-recommends {TEX_PACKAGES}), "
            "or measure without a report: snakemake --cores 1 measured"
        )
