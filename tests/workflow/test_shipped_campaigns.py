"""Every campaign that ships can be planned on any machine."""

import shutil
import subprocess
import sys

import pytest
import yaml
from tests.workflow.workspace import ROOT, Finished

CAMPAIGNS = sorted(
    path.name for path in (ROOT / "config").glob("*.yaml") if not path.name.startswith("train-")
)


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


@pytest.mark.parametrize("name", [name for name in CAMPAIGNS if name != "config.yaml"])
def test_a_campaign_can_be_planned(checkout, name):
    own = yaml.safe_load((ROOT / "config" / name).read_text())
    base = name.rpartition("-")[0]  # a file without a name of its own changes the one it is named after
    files = [f"config/{name}"] if "campaign" in own else [f"config/{base}.yaml", f"config/{name}"]
    jobs = plan(checkout, "--configfile", *files)
    assert jobs["start"] >= 1
    assert jobs["measure"] >= jobs["start"]
