"""What every campaign needs: prompts, models, room, a port, TeX."""

from draftbench import host
from draftbench.client.prompts import check_disjoint, load_prompts, load_scenario
from draftbench.config import AgenticWorkload, Campaign
from draftbench.errors import ConfigError, StagingError
from draftbench.report.programs import TEX_PACKAGES, missing_programs
from draftbench.servers.guards import refuse_taken_port
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
