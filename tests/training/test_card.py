"""The shipped drafter is what its card says."""

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from draftbench.definitions import pooled_tau
from draftbench.files import sha256_file
from draftbench.records import CellResult

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "resources/drafters/smollm2-135m-instruct-dflash"


@pytest.fixture(scope="module")
def card():
    return json.loads((FOLDER / "card.json").read_text())


def test_the_files_have_the_hashes_of_the_card(card):
    assert {name: facts["sha256"] for name, facts in card["files"].items()} == {
        name: sha256_file(FOLDER / name) for name in ("config.json", "model.safetensors")
    }


def test_the_checkpoint_is_small_and_all_bf16():
    path = FOLDER / "model.safetensors"
    assert path.stat().st_size < 45_000_000
    with safe_open(path, "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118


def test_the_page_names_the_checkpoint_by_its_hash(card):
    assert card["files"]["model.safetensors"]["sha256"][:12] in (FOLDER / "README.md").read_text()


def test_what_sglang_measured_is_what_the_card_says(card):
    said = card["evaluation"]["sglang"]
    result = CellResult.model_validate_json((ROOT / said["result"]).read_bytes())
    weights = result.identity.environment["drafter_sha256"]["model.safetensors"]
    assert weights == card["files"]["model.safetensors"]["sha256"]
    assert pooled_tau(result.requests) == pytest.approx(said["linear"], abs=5e-4)
    for kind, tau in said["by_type"].items():
        own = [request for request in result.requests if request.prompt_type == kind]
        assert pooled_tau(own) == pytest.approx(tau, abs=5e-3)
