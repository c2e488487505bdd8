"""config/README.md names every key of a campaign, with its default, and no other."""

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from draftbench import config
from draftbench.campaign_file import read_mapping
from draftbench.files import sha256_file

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "config" / "README.md").read_text()
# Section of the campaign -> its place in the table.
PLACES = {
    config.Campaign: "",
    config.Adaptive: "adaptive.",
    config.Model: "models.*.",
    config.Source: "models.*.target.",
    config.Supervisor: "supervisor.",
    config.Method: "methods.*.",
    config.Only: "only.*.",
    config.WarmupPlan: "warmup.",
    config.Limits: "limits.",
}
KINDS = (
    config.SingleWorkload,
    config.AgenticWorkload,
    config.ConcurrencyWorkload,
    config.EmbeddedEngine,
    config.SglangEngine,
)


def rows():
    """Key -> (is required, default text), of all tables."""
    found = {}
    for line in re.findall(r"^\| `.*$", README, re.MULTILINE):
        keys, default = line.split("|")[1:3]
        names = re.findall(r"`([^`]+)`( \*)?", keys)
        defaults = re.findall(r"`([^`]+)`", default) or [""]
        for number, (name, star) in enumerate(names):
            found.setdefault(name, []).append((bool(star), defaults[min(number, len(defaults) - 1)]))
    return found


def is_section(annotation):
    options = (annotation, *get_args(annotation))
    return any(isinstance(option, type) and issubclass(option, BaseModel) for option in options)


def shown(default):
    """A default as YAML shows it."""
    if default is None:
        return "null"
    if isinstance(default, tuple):
        return str(list(default))
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) or '""'


def documented_fields():
    for section, place in PLACES.items():
        for name, field in section.model_fields.items():
            yield place + name, field
    for section in KINDS:
        for name, field in section.model_fields.items():
            if name not in ("kind", "max_tokens", "ignore_eos"):
                yield name, field


@pytest.mark.parametrize(("key", "field"), list(documented_fields()), ids=lambda value: str(value)[:40])
def test_every_key_is_explained(key, field):
    places = rows()
    children = [name for name in places if name.startswith(f"{key}.")]
    assert key in places or children, f"add a row for {key} to config/README.md"
    if key not in places or is_section(field.annotation):
        return
    expected = (
        field.is_required(),
        "" if field.is_required() else shown(field.get_default(call_default_factory=True)),
    )
    assert expected in places[key] or (expected[0], "") in places[key], (
        f"{key}: README.md must show {expected}"
    )


def test_no_other_key_is_explained():
    known = {key for key, _ in documented_fields()}
    known |= {"workloads.*.kind", "workloads.*.max_tokens", "workloads.*.ignore_eos", "engine.kind"}
    files = {name for name in rows() if name.endswith(".yaml")}
    assert set(rows()) - files - known == set()


def test_the_files_in_the_table_exist():
    missing = [name for name in rows() if name.endswith(".yaml") and not (ROOT / "config" / name).exists()]
    assert missing == []


def shipped_drafters():
    """(file, model, drafter) of every drafter of this repository that a file in config/ names."""
    for path in sorted((ROOT / "config").glob("*.yaml")):
        for name, model in read_mapping(path).get("models", {}).items():
            if model.get("drafter", {}).get("source", "").startswith("path:"):
                yield pytest.param(path, model["drafter"], id=f"{path.stem}-{name}")


@pytest.mark.parametrize(("path", "drafter"), list(shipped_drafters()))
def test_a_drafter_of_this_repository_is_pinned(path, drafter):
    folder = ROOT / drafter["source"].removeprefix("path:")
    found = sha256_file(folder / "model.safetensors")
    pinned = (drafter.get("file"), drafter.get("sha256"))
    assert pinned == ("model.safetensors", found), f"write file and sha256: {found} into {path}"
