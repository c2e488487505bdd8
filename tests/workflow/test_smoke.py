"""config/smoke.yaml for real: target, drafter, engine, client, report."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from tests.workflow.workspace import ROOT

from draftbench.campaign_file import read_mapping
from draftbench.config import load_campaign
from draftbench.plan import Plan
from draftbench.records import CellResult
from draftbench.servers.base import MARKER
from draftbench.servers.proc import living, variable

COMMAND = ("--cores", "1", "report/bench.pdf", "--configfile", "config/smoke.yaml")
LIMIT_S = 560  # of a machine that does much else
pytestmark = pytest.mark.timeout(LIMIT_S + 40)


@pytest.fixture(scope="module")
def directory(tmp_path_factory, staged_model):
    """A directory with the workflow; what is left running there is killed."""
    path = tmp_path_factory.mktemp("smoke")
    shutil.copy(ROOT / "Snakefile", path)
    for name in ("profiles", "scripts", "envs", "config", "report/sections"):
        shutil.copytree(ROOT / name, path / name)
    for name in ("report.tex", "references.bib"):
        shutil.copy(ROOT / "report" / name, path / "report")
    for name in ("workflow", "resources"):
        (path / name).symlink_to(ROOT / name)
    yield path
    for pid in servers_of(path):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def smoke(directory):
    """The directory after a run of the smoke campaign."""
    environment = {name: value for name, value in os.environ.items() if name != "DRAFTBENCH_SESSION"}
    own = {f"DRAFTBENCH_{name}_DIR": str(directory / name.lower()) for name in ("RUN", "STATE")}
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *COMMAND],
        cwd=directory,
        env=environment | own,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def servers_of(path):
    """Servers that were started in `path` and still run."""
    return living(lambda pid: (variable(pid, MARKER) or "").startswith(f"{path}/run:"))


def test_every_cell_has_a_valid_result(smoke):
    plan = Plan(load_campaign(read_mapping(smoke / "config/smoke.yaml"), "smoke"), smoke)
    results = {
        name: CellResult.model_validate_json((smoke / f"results/smoke/{name}.json").read_bytes())
        for name in plan.cells
    }
    assert len(results) == 9
    for name, result in results.items():
        assert result.spec == plan.specs[name]
        assert result.order_index == plan.order[name]
        assert result.violations == []
        assert [record.num_output_tokens for record in result.requests] == [8] * result.num_attempted


def test_the_drafter_saves_verifications(smoke):
    for method in ("dflash", "ddtree-b15"):
        result = json.loads((smoke / f"results/smoke/tp1-{method}.short.json").read_text())
        tokens = sum(record["num_output_tokens"] for record in result["requests"])
        assert sum(record["num_rounds"] for record in result["requests"]) < 0.75 * tokens


def test_the_report_names_its_methods(smoke):
    pdf = smoke / "report/bench.pdf"
    text = subprocess.run(["pdftotext", str(pdf), "-"], capture_output=True, text=True, check=True).stdout
    assert "SmolLM2-135M-Instruct" in text
    assert "ddtree-b15" in text


def test_no_process_is_left(smoke):
    assert servers_of(smoke) == []
