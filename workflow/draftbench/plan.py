"""From a campaign to what is measured in which order, and which of it is still missing.

A cell's spec is everything that decides what it measures. It is stored in the cell's result: a result
under another spec is no result of this campaign.
"""

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from draftbench.campaign_file import read_mapping
from draftbench.config import Campaign, Cell, Section, Service, cells, services
from draftbench.errors import ConfigError
from draftbench.files import canonical_json, sha256_text

HEAD_BYTES = 1 << 16  # a result's spec stands within its first lines
# Engine keys that say where it runs and not what it computes.
PLACE_KEYS = frozenset({"python"})


@dataclass(frozen=True)
class Plan:
    """A campaign unfolded.

    Attributes:
        campaign: the checked configuration.
        root: directory that the campaign's file names are relative to.
    """

    campaign: Campaign
    root: Path = Path()

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """Every cell that the campaign may come to by its name, in the file's order."""
        found = {cell.name: cell for cell in cells(self.campaign)}
        if not found:
            raise ConfigError(
                "only: expected at least one cell of the campaign, got none; leave some workload a method, a "
                "model, a TP size and a session, see config/README.md"
            )
        return found

    @cached_property
    def services(self) -> dict[str, Service]:
        """Every service with a cell by its name, in the file's order."""
        used = {cell.service for cell in self.cells.values()}
        return {service.name: service for service in services(self.campaign) if service in used}

    @cached_property
    def order(self) -> dict[str, int]:
        """Cell name -> place in the campaign's seeded random order.

        Sessions come one after the other; inside a session the models, inside a model the services and
        inside a service the workloads are shuffled. So a model is used up before the next is staged,
        a service before the next is started.
        """
        generator = random.Random(self.campaign.seed)  # noqa: S311 - an order to be repeated, not a secret
        ordered: list[str] = []
        for session in range(1, self.campaign.session_limit + 1):
            for model in _shuffled(self.campaign.models, generator):
                group = [s for s in self.services.values() if (s.session, s.model) == (session, model)]
                for service in _shuffled(group, generator):
                    own = [name for name, cell in self.cells.items() if cell.service == service]
                    ordered += _shuffled(own, generator)
        return {name: index for index, name in enumerate(ordered)}

    @cached_property
    def service_order(self) -> dict[str, int]:
        """Service name -> place of its first cell in `order`."""
        first: dict[str, int] = {}
        for name, index in self.order.items():
            first.setdefault(self.cells[name].service.name, index)
        return first

    @cached_property
    def specs(self) -> dict[str, dict[str, Any]]:
        """Cell name -> everything that decides what it measures, in plain JSON types."""
        return {name: self._spec(cell) for name, cell in self.cells.items()}

    def _spec(self, cell: Cell) -> dict[str, Any]:
        campaign = self._common
        return {
            "campaign": self.campaign.campaign,
            "model": campaign["models"][cell.service.model],
            "engine": campaign["engine"],
            "method": campaign["methods"][cell.service.method],
            "tp": cell.service.tp,
            "session": cell.service.session,
            "workload": campaign["workloads"][cell.workload],
            "repeats": self.campaign.repeats,
            "api": self.campaign.api,
            "seed": self.campaign.seed,
            "warmup": campaign["warmup"],
        }

    @cached_property
    def _common(self) -> dict[str, Any]:
        """The campaign's parts as plain data; a text file's name has the hash of its content beside it."""
        engine = self.campaign.engine.model_dump(mode="json")
        return {
            "models": _dump_all(self.campaign.models),
            "engine": {key: value for key, value in engine.items() if key not in PLACE_KEYS},
            "methods": _dump_all(self.campaign.methods),
            "workloads": {name: self._with_hash(w) for name, w in self.campaign.workloads.items()},
            "warmup": self._with_hash(self.campaign.warmup),
        }

    def _with_hash(self, section: Section) -> dict[str, Any]:
        values = section.model_dump(mode="json")
        name = values.get("prompts") or values["scenario"]
        return values | {"content_sha256": sha256_text(canonical_json(read_texts(self.root / name)))}


def _dump_all(sections: Mapping[str, Section]) -> dict[str, Any]:
    return {name: section.model_dump(mode="json") for name, section in sections.items()}


def _shuffled(items: Iterable[Any], generator: random.Random) -> list[Any]:
    mixed = list(items)
    generator.shuffle(mixed)
    return mixed


def read_texts(path: Path) -> dict[str, Any]:
    """A file of prompts or of a scenario's turns, as it stands.

    Raises:
        ConfigError: it cannot be read, is no mapping, has a key twice, or a value that is no text, as a date.
    """
    values = read_mapping(path)
    try:
        canonical_json(values)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: expected texts, numbers and lists of them, got: {error}; put that value in quotes"
        ) from None
    return values


def stored_spec(path: Path) -> dict[str, Any] | None:
    """The spec in a result file, None when the file is missing or damaged.

    A result can be large and a campaign has many, so only the file's head is read where that is enough.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            head = stream.read(HEAD_BYTES)
            _, found, rest = head.partition('"spec":')
            if found:
                try:
                    return _mapping(json.JSONDecoder().raw_decode(rest.lstrip())[0])
                except ValueError:
                    pass  # longer than the head
            return _mapping(json.loads(head + stream.read()).get("spec"))
    except (OSError, ValueError, AttributeError):
        return None


def _mapping(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None
