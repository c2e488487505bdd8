"""From a campaign's service to an argument list: one builder per engine kind."""

from pathlib import Path
from typing import Protocol

from draftbench.config import Campaign, Service
from draftbench.errors import ConfigError
from draftbench.files import canonical_json, sha256_text
from draftbench.servers.base import Launch
from draftbench.servers.embedded import build_embedded_launch
from draftbench.servers.sglang import build_sglang_launch


class StagedPaths(Protocol):
    """The folders that a server loads."""

    @property
    def target_dir(self) -> Path:
        """Of the target."""

    @property
    def drafter_dir(self) -> Path | None:
        """Of the drafter, None where the campaign has none."""


def build_launch(campaign: Campaign, service: Service, staged: StagedPaths, port: int) -> Launch:
    """The launch of one service at one port.

    Raises:
        ConfigError: the engine cannot serve this configuration.
    """
    method = campaign.methods[service.method]
    drafter = None if method.algorithm == "ar" else staged.drafter_dir
    if campaign.engine.kind == "embedded":
        if service.tp != 1:
            raise ConfigError(
                f"tp: expected 1 with engine.kind embedded, got {service.tp}; use engine.kind sglang"
            )
        return build_embedded_launch(
            campaign.engine, method, staged.target_dir, drafter, port=port, seed=campaign.seed
        )
    return build_sglang_launch(
        campaign.engine, method, staged.target_dir, drafter, tp=service.tp, port=port, seed=campaign.seed
    )


def fingerprint(launch: Launch) -> str:
    """Equal for launches that are interchangeable; give it one that was built for port 0."""
    parts = [launch.argv, dict(launch.environment), dict(launch.expected), launch.engine]
    return sha256_text(canonical_json(parts))
