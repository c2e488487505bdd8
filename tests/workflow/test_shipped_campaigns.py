"""The CPU campaigns that ship, as a fresh checkout plans them; tests/campaigns has the others."""

import shutil
import subprocess
import sys

import pytest
from tests.workflow.workspace import ROOT, Finished


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The workflow without results."""
    path = tmp_path_factory.mktemp("checkout")
    shutil.copy(ROOT / "Snakefile", path)
    for name in ("profiles", "scripts", "envs", "config"):
        shutil.copytree(ROOT / name, path / name)
    for name in ("workflow", "resources"):
        (path / name).symlink_to(ROOT / name)
    return path


def plan(checkout, *arguments):
    command = [sys.executable, "-m", "snakemake", "-n", *arguments]
    done = subprocess.run(
        command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return Finished(done.returncode, done.stdout).jobs()


def test_the_default_campaign_is_eight_services_times_nine_workloads(checkout):
    report = {"summarise": 1, "figures": 1, "typeset": 1, "all": 1}
    assert plan(checkout) == {"stage": 1, "start": 8, "measure": 72} | report


def test_the_smoke_campaign_is_three_services_times_three_workloads(checkout):
    jobs = plan(checkout, "report/bench.pdf", "--configfile", "config/smoke.yaml")
    assert jobs == {"stage": 1, "start": 3, "measure": 9, "summarise": 1, "figures": 1, "typeset": 1}
