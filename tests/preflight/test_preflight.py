"""All that stands in the way of a campaign is told at once, before anything runs."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.servers.fake_gpus import FakeGpus

from draftbench.config import Campaign, EmbeddedEngine
from draftbench.errors import ConfigError
from draftbench.plan import Plan
from draftbench.preflight.checklist import Findings, listed, require_ready, run_checks, service_checks
from draftbench.preflight.forecast import hours_note
from draftbench.preflight.gpus import check_gpu_memory
from draftbench.preflight.sglang import check_tensor_parallel
from draftbench.preflight.units import check_systemd
from draftbench.servers.gpu import read_gpus

ONLY_AR = {name: {"algorithm": "ar"} for name in ("ar", "dflash", "ddtree-b16")}
VERSIONS = {"sglang": "0.5.17", "torch": "2.11.0", "transformers": "5.12.1"}
FACTS = {"python": "3.12.1", "versions": VERSIONS, "plugins": ["ddtree"], "cuda": "13.0", "error": None}
SHAPE = {
    "hidden_factor": 4,
    "num_layers": 8,
    "intermediate_size": 512,
    "num_attention_heads": 48,
    "num_key_value_heads": 16,
}


class Host:
    """A host of eight fake GPUs with a fake SGLang, and a campaign for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gpus = FakeGpus(folder).install()
        for name in ("target", "drafter"):
            (folder / name).mkdir()
            (folder / name / "weights").write_bytes(b"w" * 1000)
        for name, word in (("prompts", "measured"), ("warmup", "warm")):
            prompt = {"id": word, "type": "prose", "text": f"a {word} text"}
            (folder / f"{name}.yaml").write_text(json.dumps({"prompts": [prompt]}))
        self.have_python(FACTS)

    def have_python(self, facts: dict[str, Any], code: int = 0) -> None:
        tool = self.folder / "python"
        tool.write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\nexit {code}\n")
        tool.chmod(0o755)

    def campaign(self, **changes: Any) -> Campaign:
        source = {"scale_to": SHAPE, "size_bytes": 2000}
        values: dict[str, Any] = {
            "campaign": "test",
            "models": {
                "m": {
                    "target": {"source": f"path:{self.folder}/target"} | source,
                    "drafter": {"source": f"path:{self.folder}/drafter"} | source,
                }
            },
            "engine": {"kind": "sglang", "version": "0.5.17", "python": str(self.folder / "python")},
            "tp": [1, 4, 8],
            "methods": {
                "ar": {"algorithm": "ar"},
                "dflash": {"algorithm": "dflash"},
                "ddtree-b16": {"algorithm": "ddtree", "budget": 16},
            },
            "workloads": {
                "short": {"kind": "single", "prompts": f"{self.folder}/prompts.yaml", "max_tokens": 600}
            },
            "warmup": {"prompts": f"{self.folder}/warmup.yaml", "max_tokens": 8},
            "staging_root": str(self.folder / "staged"),
        }
        for key, value in changes.items():
            values[key] = values[key] | value if isinstance(value, dict) and key in values else value
        return Campaign.model_validate(values)

    def check(self, **changes: Any) -> Findings:
        campaign = self.campaign(**changes)
        return run_checks(campaign, service_checks(campaign))

    def problem(self, **changes: Any) -> str:
        """The one problem that is found."""
        (problem,) = self.check(**changes).problems
        return problem


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setenv("PATH", made.gpus.path)
    monkeypatch.setenv("DRAFTBENCH_RUN_DIR", str(tmp_path / "run"))
    return made


@pytest.fixture
def stranger() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "train.py"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_host_that_is_ready_has_no_problems(machine: Host) -> None:
    findings = machine.check()
    assert findings.problems == []
    assert (
        "SGLang's environment: sglang 0.5.17, torch 2.11.0, transformers 5.12.1, CUDA 13.0" in findings.notes
    )


def test_all_problems_are_told_in_one_list(machine: Host, stranger: int, taken_port: int) -> None:
    machine.gpus.show({5: [stranger]})
    machine.have_python(FACTS | {"versions": VERSIONS | {"sglang": "0.5.19"}})
    campaign = machine.campaign(tp=[1, 3, 8], port=taken_port)
    with pytest.raises(ConfigError) as caught:
        require_ready(campaign, needs_services=True, needs_tex=False)
    first, *lines = str(caught.value).splitlines()
    assert first == "4 problems"
    parts = (f"1. port {taken_port}", "a multiple of tp 3", "GPU 5", "got 0.5.19")
    assert [part in line for part, line in zip(parts, lines, strict=True)] == [True] * 4


def test_a_single_problem_is_one_sentence() -> None:
    assert listed(["expected this, got that; do so"]) == "expected this, got that; do so"


def test_too_few_gpus_are_found(machine: Host) -> None:
    FakeGpus(machine.folder, num_gpus=2).show()
    assert machine.problem() == "expected 8 GPUs for tp 8, got 2; lower tp in the campaign"


def test_a_foreign_job_is_found_with_its_owner(machine: Host, stranger: int) -> None:
    machine.gpus.show({5: [stranger]})
    assert f"GPU 5 to be free, but process {stranger} of user" in machine.problem()


def test_a_server_of_this_run_directory_is_no_stranger(machine: Host) -> None:
    environment = os.environ | {"DRAFTBENCH_SERVICE_TOKEN": f"{machine.folder}/run:0123"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as own:
        machine.gpus.show({0: [own.pid]})
        problems = machine.check().problems
        own.kill()
    assert problems == []


def test_weights_that_do_not_fit_into_gpu_memory_are_found(machine: Host) -> None:
    huge = {"source": f"path:{machine.folder}/target", "scale_to": SHAPE, "size_bytes": 200_000_000_000}
    problems = machine.check(models={"m": {"target": huge, "drafter": huge}}).problems
    assert any("at most 82 GB of weights a GPU" in p and "got 400 GB at tp 1" in p for p in problems)


def test_a_model_that_no_workload_runs_on_needs_no_gpu_memory(machine: Host) -> None:
    huge = {"source": f"path:{machine.folder}/target", "scale_to": SHAPE, "size_bytes": 200_000_000_000}
    campaign = machine.campaign(
        models={"unused": {"target": huge, "drafter": huge}}, only={"short": {"models": ["m"]}}
    )
    check_gpu_memory(campaign, campaign.engine)


def test_heads_that_do_not_split_are_found(machine: Host) -> None:
    assert machine.problem(tp=[5]) == (
        "models.m.target: num_attention_heads: expected a multiple of tp 5, got 48; "
        "remove that TP size or take another shape"
    )


def test_replies_that_leave_no_room_for_a_prompt_are_found(machine: Host) -> None:
    problem = machine.problem(engine={"context_length": 600})
    assert problem.startswith(
        "workloads.short: expected replies of fewer tokens than engine.context_length, 600"
    )
    assert machine.check(engine={"context_length": 601}).problems == []


@pytest.mark.parametrize(("ignore_eos", "problems"), [(True, 1), (False, 0)])
def test_all_replies_of_a_conversation_fill_its_context_where_their_length_is_fixed(
    machine: Host, ignore_eos: bool, problems: int
) -> None:
    scenario = machine.folder / "talk.yaml"
    scenario.write_text(json.dumps({"scenario": "talk", "turns": ["one", "two"]}))
    talk = {"kind": "agentic", "scenario": str(scenario), "num_turns": 2, "max_tokens": 400}
    workloads = {"talk": talk | {"ignore_eos": ignore_eos}}
    assert len(machine.check(engine={"context_length": 800}, workloads=workloads).problems) == problems


def test_another_version_of_sglang_is_found(machine: Host) -> None:
    assert "expected SGLang 0.5.20 in the environment" in machine.problem(engine={"version": "0.5.20"})


def test_an_unknown_version_is_found(machine: Host) -> None:
    assert "engine.version: expected an SGLang release" in machine.problem(engine={"version": "1.0"})


def test_cuda_that_does_not_start_is_found_with_the_missing_device(machine: Host) -> None:
    machine.have_python(FACTS | {"error": "RuntimeError: CUDA unknown error"})
    problem = machine.problem()
    assert "expected CUDA to compute" in problem
    assert "RuntimeError: CUDA unknown error" in problem
    assert Path("/dev/nvidia-uvm").exists() or "/dev/nvidia-uvm is missing" in problem


def test_a_missing_plugin_is_found_when_trees_are_asked_for(machine: Host) -> None:
    machine.have_python(FACTS | {"plugins": []})
    problem = machine.problem()
    assert "expected a plugin sglang-ddtree in the environment of" in problem
    assert (
        "got no plugin; install one there, name a fork that has DDTree as engine.version 0.5.17+ddtree"
        in problem
    )
    assert machine.check(methods={"ddtree-b16": {"algorithm": "dflash"}}).problems == []


def test_an_interpreter_that_does_not_run_is_found(machine: Host) -> None:
    assert "expected /nowhere/python to run" in machine.problem(engine={"python": "/nowhere/python"})


def test_an_interpreter_of_the_embedded_engine_that_is_missing_is_found(machine: Host) -> None:
    def problems(python: str) -> list[str]:
        engine = EmbeddedEngine(kind="embedded", python=python)
        campaign = machine.campaign(tp=[1]).model_copy(update={"engine": engine})
        return run_checks(campaign, service_checks(campaign)).problems

    assert problems(str(machine.folder / "python")) == []
    missing = machine.folder / "none"
    assert problems(str(missing)) == [
        f"engine.python: expected an interpreter, got no program {missing}; correct it"
    ]


def test_a_model_that_is_missing_is_found(machine: Host) -> None:
    gone = {"target": {"source": "path:/nowhere/model", "scale_to": SHAPE, "size_bytes": 1}, "drafter": None}
    problems = machine.check(models={"m": gone}, methods=ONLY_AR).problems
    assert any("path:/nowhere/model: expected a directory" in problem for problem in problems)


def test_room_that_is_missing_is_found(machine: Host) -> None:
    huge = {"source": f"path:{machine.folder}/target", "scale_to": SHAPE, "size_bytes": 10**18}
    problems = machine.check(models={"m": {"target": huge, "drafter": huge}}).problems
    assert any("GiB of room for the models of campaign test" in problem for problem in problems)


@pytest.mark.parametrize(
    ("loginctl", "sentence"),
    [(None, "expected loginctl to say whether this user lingers"), ("echo no", "got none, so that a logout")],
)
def test_a_users_manager_that_may_end_with_a_logout_is_found(
    machine: Host, monkeypatch: pytest.MonkeyPatch, loginctl: str | None, sentence: str
) -> None:
    tools = machine.folder / "tools"
    tools.mkdir()
    for name, script in {"systemd-run": "true", "loginctl": loginctl}.items():
        if script is not None:
            (tools / name).write_text(f"#!/bin/sh\n{script}\n")
            (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(ConfigError, match=sentence):
        check_systemd(machine.campaign(supervisor={"kind": "systemd", "manager": "user"}))


def test_the_forecast_counts_cells_starts_and_hours(machine: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(machine.folder)
    # 9 services of one cell: 600 tokens and 3 warm-up batches of 8 at 60 tok/s, 150 s a start
    assert hours_note(machine.campaign()).startswith("9 of 9 cells pending, 9 service starts, about 0.4 h")


def test_the_forecast_names_what_an_adaptive_campaign_may_come_to(
    machine: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(machine.folder)
    note = hours_note(machine.campaign(sessions=2, adaptive={"half_width": 0.05, "max_sessions": 4}))
    assert note.startswith("18 of 18 cells pending, 18 service starts")
    assert note.endswith("; up to 18 more cells where the intervals are still wide")


def test_a_prompt_that_warms_up_and_is_measured_is_found(machine: Host) -> None:
    prompts = (machine.folder / "prompts.yaml").read_text()
    (machine.folder / "warmup.yaml").write_text(prompts)
    assert "expected a text that is measured nowhere, got one that is" in machine.problem()


def test_a_turn_that_is_a_warm_up_is_found(machine: Host) -> None:
    scenario = machine.folder / "talk.yaml"
    scenario.write_text(json.dumps({"scenario": "talk", "turns": ["one", "a warm text"]}))
    talk = {"kind": "agentic", "scenario": str(scenario), "num_turns": 2, "max_tokens": 4}
    assert "expected a text that is measured nowhere, got one that is" in machine.problem(
        workloads={"talk": talk}
    )


def test_a_launch_line_that_the_engine_does_not_take_is_found(machine: Host) -> None:
    problem = machine.problem(engine={"extra_args": {"tp-size": 2}})
    assert problem.startswith("engine.extra_args")
    assert "tp-size" in problem


def test_the_forecast_is_of_what_a_slot_waits_for(machine: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(machine.folder)
    prompts = [{"id": f"p{n}", "type": "prose", "text": f"text {n}"} for n in range(4)]
    (machine.folder / "prompts.yaml").write_text(json.dumps({"prompts": prompts}))
    warm = [{"id": f"w{n}", "type": "prose", "text": f"warm {n}"} for n in range(8)]
    (machine.folder / "warmup.yaml").write_text(json.dumps({"prompts": warm}))
    scenario = {"scenario": "talk", "turns": ["one", "two", "three"]}
    (machine.folder / "talk.yaml").write_text(json.dumps(scenario))
    path = str(machine.folder / "prompts.yaml")
    long = {"max_tokens": 120_000}
    workloads = {
        "short": {"kind": "single", "prompts": path} | long,
        "talk": {"kind": "agentic", "scenario": str(machine.folder / "talk.yaml"), "num_turns": 3} | long,
        "load": {"kind": "concurrency", "prompts": path, "concurrency": 2, "num_requests": 10} | long,
    }
    campaign = machine.campaign(
        workloads=workloads,
        methods=ONLY_AR,
        only={name: {"methods": ["ar"], "tp": [1]} for name in workloads},
        repeats=2,
        warmup={"max_tokens": 10_000},
    )
    # 4 prompts, 3 turns and 10 / 2 requests a slot, twice; 3 warm-up batches of 8, 8 and 8 / 2
    hours = (2 * (4 + 3 + 5) * 120_000 + 3 * (8 + 8 + 4) * 10_000) / 60 / 3600 + 150 / 3600
    assert hours_note(campaign) == (
        f"3 of 3 cells pending, 1 service starts, about {hours:.1f} h if a request gets 60 tok/s and a start "
        "takes 150 s"
    )


def test_the_forecast_leaves_out_what_has_been_measured(
    machine: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(machine.folder)
    campaign = machine.campaign()
    specs = Plan(campaign).specs
    results = machine.folder / "results" / "test"
    results.mkdir(parents=True)
    (results / "tp1-ar.short.json").write_text(json.dumps({"spec": specs["tp1-ar.short"]}))
    other = specs["tp1-dflash.short"] | {"seed": 5}
    (results / "tp1-dflash.short.json").write_text(json.dumps({"spec": other}))
    assert hours_note(campaign).startswith("8 of 9 cells pending, 8 service starts")


def test_a_run_that_needs_no_service_is_not_kept_from_it(machine: Host) -> None:
    FakeGpus(machine.folder, num_gpus=2).show()
    require_ready(machine.campaign(), needs_services=False, needs_tex=False)


def test_notes_of_checks_that_passed_are_logged(machine: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    require_ready(machine.campaign(), needs_services=True, needs_tex=False)
    assert "prompts: ok" in caplog.messages
    assert any(message.startswith("time: 9 of 9 cells pending") for message in caplog.messages)


def test_kv_heads_may_be_fewer_than_gpus_but_no_other_heads(machine: Host) -> None:
    few = {"num_attention_heads": 48, "num_key_value_heads": 2, "intermediate_size": 512}
    source = {"source": f"path:{machine.folder}/target", "size_bytes": 2000}
    drafter = {"source": f"path:{machine.folder}/drafter", "scale_to": SHAPE, "size_bytes": 2000}

    def problems(**shape: int) -> list[str]:
        target = source | {"scale_to": SHAPE | few | shape}
        return machine.check(models={"m": {"target": target, "drafter": drafter}}).problems

    assert problems() == []
    assert "num_key_value_heads: expected a multiple of tp 4, got 3" in problems(num_key_value_heads=3)[0]
    assert "intermediate_size: expected a multiple of tp 4, got 2" in problems(intermediate_size=2)[0]


def test_a_drafter_that_does_not_split_is_named(machine: Host) -> None:
    shapes = {"target": SHAPE, "drafter": SHAPE | {"num_attention_heads": 6}}
    models = {
        role: {"source": f"path:{machine.folder}/{role}", "scale_to": shape, "size_bytes": 2000}
        for role, shape in shapes.items()
    }
    assert machine.problem(models={"m": models}).startswith("models.m.drafter: num_attention_heads:")


def test_weights_of_the_target_and_the_drafter_are_shared_by_the_gpus(machine: Host) -> None:
    def problem(target_gb: int, drafter_gb: int, tp: list[int]) -> str | None:
        sizes = {"target": target_gb, "drafter": drafter_gb}
        models = {
            role: {"source": f"path:{machine.folder}/{role}", "scale_to": SHAPE, "size_bytes": gb * 10**9}
            for role, gb in sizes.items()
        }
        campaign = machine.campaign(models={"m": models}, tp=tp)
        try:
            check_gpu_memory(campaign, campaign.engine)
        except ConfigError as error:
            return str(error)
        return None

    assert problem(60, 20, [1]) is None
    assert "got 85 GB at tp 1; raise tp" in str(problem(60, 25, [1]))
    assert problem(120, 40, [8, 2]) is None
    assert "got 85 GB at tp 2; raise tp" in str(problem(120, 50, [8, 2]))


def test_the_smallest_gpu_of_the_largest_size_decides_about_room(machine: Host) -> None:
    sizes = {"target": 30, "drafter": 10}
    models = {
        role: {"source": f"path:{machine.folder}/{role}", "scale_to": SHAPE, "size_bytes": gb * 10**9}
        for role, gb in sizes.items()
    }
    campaign = machine.campaign(models={"m": models})
    gpus = [replace(gpu, total_mib=40_000 if gpu.index == 6 else 97_887) for gpu in read_gpus()]
    with pytest.raises(ConfigError, match=r"expected at most 34 GB of weights a GPU .* got 40 GB at tp 1"):
        check_gpu_memory(campaign, campaign.engine, lambda: gpus)


@pytest.mark.parametrize("nested", [False, True])
def test_the_shape_of_a_local_model_is_read_from_its_configuration(machine: Host, nested: bool) -> None:
    shape = {"num_attention_heads": 6, "intermediate_size": 512}
    config = {"text_config": shape} if nested else shape
    (machine.folder / "target" / "config.json").write_text(json.dumps(config))
    source = {"source": f"path:{machine.folder}/target", "size_bytes": 2000}
    campaign = machine.campaign(models={"m": {"target": source, "drafter": None}}, methods=ONLY_AR, tp=[4])
    with pytest.raises(ConfigError, match=r"models.m.target: num_attention_heads: .* of tp 4, got 6;"):
        check_tensor_parallel(campaign, campaign.engine)
    check_tensor_parallel(campaign.model_copy(update={"tp": (1, 2)}), campaign.engine)
