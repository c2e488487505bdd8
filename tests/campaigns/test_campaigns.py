"""The GPU campaigns that ship: each can be planned on any machine, and its launch lines are right."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftbench.config import Campaign, SglangEngine, load_campaign
from draftbench.errors import ConfigError
from draftbench.plan import Plan
from draftbench.preflight.campaign import check_context, check_launches
from draftbench.preflight.sglang import check_tensor_parallel
from draftbench.servers.sglang import build_sglang_launch

ROOT = Path(__file__).resolve().parents[2]
# campaign -> (starts, cells): services are models x tp x methods x sessions
SIZES = {"h200": (12, 52), "h200-x2": (12, 52), "h200-x8": (18, 64), "ct200": (24, 184)}


def load(*names: str) -> Campaign:
    values: dict[str, Any] = {}
    for name in names:
        part = yaml.safe_load((ROOT / f"config/{name}.yaml").read_text())
        for key, value in part.items():
            values[key] = values[key] | value if isinstance(value, dict) and key in values else value
    return load_campaign(values, names[0])


def engine_of(campaign: Campaign) -> SglangEngine:
    assert campaign.engine.kind == "sglang"
    return campaign.engine


@pytest.mark.parametrize("name", SIZES)
def test_a_dry_run_announces_every_start_and_cell(name: str, tmp_path: Path) -> None:
    environment = os.environ | {"DRAFTBENCH_RUN_DIR": str(tmp_path)}
    environment.pop("DRAFTBENCH_SESSION", None)
    plan = Plan(load(name))
    assert (len(plan.services), len(plan.cells)) == SIZES[name]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "snakemake",
            "-n",
            "--forceall",
            "measured",
            "--configfile",
            f"config/{name}.yaml",
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in (done.stdout + done.stderr).splitlines()]
    assert ["start", str(SIZES[name][0])] in rows
    assert ["measure", str(SIZES[name][1])] in rows


@pytest.mark.parametrize("name", SIZES)
def test_every_service_has_a_launch_line_and_splits_over_its_gpus(name: str) -> None:
    campaign = load(name)
    check_launches(campaign)
    check_context(campaign)
    check_tensor_parallel(campaign, engine_of(campaign))


@pytest.mark.parametrize("name", ["h200", "h200-x2", "h200-x8"])
def test_trees_can_be_laid_over_a_campaign(name: str) -> None:
    plain, with_trees = Plan(load(name)), Plan(load(name, "h200-ddtree"))
    check_launches(with_trees.campaign)
    assert plain.specs.items() <= with_trees.specs.items()


def test_a_second_replica_can_be_laid_over_a_campaign() -> None:
    plain, with_replica = Plan(load("h200")), Plan(load("h200", "h200-9b"))
    assert plain.specs.items() <= with_replica.specs.items()
    assert {service.model for service in with_replica.services.values()} == {
        "smollm2",
        "replica-27b",
        "replica-9b",
    }


@pytest.mark.parametrize("name", ["h200", "h200-x2", "h200-x8"])
def test_target_and_drafter_of_a_replica_have_one_shape(name: str) -> None:
    for model in load(name).models.values():
        assert model.drafter is not None
        assert model.target.scale_to == model.drafter.scale_to


def test_concurrency_runs_on_four_and_eight_gpus_only() -> None:
    for name in ("h200-x8", "ct200"):
        cells = [c for c in Plan(load(name)).cells.values() if c.workload.startswith("concurrency")]
        assert {cell.service.tp for cell in cells} == {4, 8}


def test_the_same_file_runs_on_two_gpus() -> None:
    campaign = load("h200-x8").model_copy(update={"tp": (1, 2)})
    check_tensor_parallel(campaign, engine_of(campaign))
    assert {service.tp for service in Plan(campaign).services.values()} == {1, 2}


def test_the_fork_gets_its_flags_and_the_host_its_variables() -> None:
    campaign = load("ct200")
    launch = build_sglang_launch(
        engine_of(campaign), campaign.methods["ddtree-b32"], Path("t"), Path("d"), tp=8, port=30000, seed=0
    )
    line = " ".join(launch.argv)
    assert "--speculative-algorithm DDTREE --speculative-ddtree-budget 32" in line
    assert "--speculative-ddtree-allow-hybrid-unsafe" in line
    assert "--tp-size 8" in line
    assert "--attention-backend triton" in line
    assert launch.environment["NCCL_P2P_DISABLE"] == "1"
    assert campaign.supervisor.displace == ("sglang-resident.service",)


def test_only_systemd_can_make_units_step_aside() -> None:
    values = yaml.safe_load((ROOT / "config/h200.yaml").read_text())
    values["supervisor"] = {"kind": "process", "displace": ["resident.service"]}
    with pytest.raises(ConfigError, match="expected no units with kind process"):
        load_campaign(values, "config/h200.yaml")


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "db_password"])
def test_a_campaign_that_would_publish_a_secret_is_refused_without_showing_it(name: str) -> None:
    values = yaml.safe_load((ROOT / "config/h200.yaml").read_text())
    values["engine"]["environment"] = {"TOKENIZERS_PARALLELISM": "false", name: "hf_abc"}
    said = rf"engine\.environment\.{name}: expected no secret, .*; export it before the run"
    with pytest.raises(ConfigError, match=said) as caught:
        load_campaign(values, "config/h200.yaml")
    assert "hf_abc" not in str(caught.value)


@pytest.mark.parametrize("name", ["api-key", "admin-api-key", "ssl-keyfile-password"])
def test_neither_may_an_option_of_the_server_be_a_secret(name: str) -> None:
    values = yaml.safe_load((ROOT / "config/h200.yaml").read_text())
    values["engine"]["extra_args"] = {"bucket-time-to-first-token": "1 2", name: "sk_abc"}
    with pytest.raises(ConfigError, match=rf"engine\.extra_args\.{name}: expected no secret") as caught:
        load_campaign(values, "config/h200.yaml")
    assert "sk_abc" not in str(caught.value)
