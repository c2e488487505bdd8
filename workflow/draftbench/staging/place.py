"""Where a campaign's models are staged, and how much of them is not there yet."""

from collections.abc import Iterator
from pathlib import Path

from draftbench.config import Campaign, Source
from draftbench.staging.room import cache_directory, fits_memory, memory_directory, require_room
from draftbench.staging.stage import is_staged, staged_folder
from draftbench.staging.transforms import wanted_transforms


def campaign_root(campaign: Campaign) -> Path:
    """The campaign's `staging_root`; `auto` is in memory when all its models fit there, else the cache."""
    if campaign.staging_root != "auto":
        return Path(campaign.staging_root)
    memory = memory_directory()
    if memory is not None:
        missing = missing_bytes(campaign, memory)
        if missing == 0 or fits_memory(memory, missing):
            return memory
    return cache_directory() / "models"


def missing_bytes(campaign: Campaign, root: Path) -> int:
    """What is still to be staged below `root`, as far as it can be told without fetching."""
    return sum(expected_bytes(source) for source in sources(campaign) if not is_staged(source, root))


def require_campaign_room(campaign: Campaign) -> None:
    """Check that all of the campaign's models fit where they are to be staged.

    Raises:
        StagingError: they do not.
    """
    root = campaign_root(campaign)
    require_room(root, missing_bytes(campaign, root), f"the models of campaign {campaign.campaign}")


def expected_bytes(source: Source) -> int:
    """The size that the campaign gives, or that of a local directory; 0 where only fetching tells it."""
    scheme, _, rest = source.source.partition(":")
    if source.size_bytes is not None:
        return source.size_bytes
    if scheme == "path":
        return sum(path.stat().st_size for path in Path(rest).rglob("*") if path.is_file())
    return 0


def config_folder(source: Source, root: Path) -> Path | None:
    """The folder with the config.json that will be served; None where staging has yet to make it."""
    if is_staged(source, root):
        return staged_folder(source, root)
    scheme, _, rest = source.source.partition(":")
    is_plain = scheme == "path" and not wanted_transforms(source) and (Path(rest) / "config.json").is_file()
    return Path(rest) if is_plain else None


def sources(campaign: Campaign) -> Iterator[Source]:
    """Of all targets and drafters."""
    for model in campaign.models.values():
        yield model.target
        if model.drafter is not None:
            yield model.drafter
