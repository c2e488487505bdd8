"""SGLang's packages and the GPUs, as recorded with a start."""

import sys
from pathlib import Path

import pytest
from tests.servers.fake_gpus import FakeGpus

from draftbench.config import SglangEngine
from draftbench.errors import ConfigError
from draftbench.servers.sglang_environment import capture_sglang, engine_variables, probe

ENGINE = SglangEngine(kind="sglang", version="0.5.17", python=sys.executable)


def test_an_interpreter_says_which_packages_and_plugins_it_has() -> None:
    facts = probe(ENGINE, starts_cuda=False)
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["versions"]["torch"] is not None
    assert facts["versions"]["sglang"] is None
    assert facts["plugins"] == []
    assert "error" not in facts


def test_an_interpreter_has_the_engines_variables_and_its_last_line_counts(tmp_path: Path) -> None:
    talking = tmp_path / "python"
    talking.write_text("#!/bin/sh\necho a warning\necho '{\"python\": \"'$SGLANG_MINE'\"}'\n")
    talking.chmod(0o755)
    changes = {"python": str(talking), "environment": {"SGLANG_MINE": "given"}}
    assert probe(ENGINE.model_copy(update=changes), starts_cuda=False) == {"python": "given"}


def test_an_interpreter_says_why_cuda_does_not_compute() -> None:
    facts = probe(ENGINE.model_copy(update={"environment": {"CUDA_VISIBLE_DEVICES": ""}}), starts_cuda=True)
    assert facts["error"]


@pytest.mark.parametrize(
    ("last_words", "got"), [("true", "exit code 1"), ("echo 'no libpython' >&2", "no libpython")]
)
def test_an_interpreter_that_fails_is_one_sentence(tmp_path: Path, last_words: str, got: str) -> None:
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\n{last_words}\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ConfigError, match=rf"engine\.python: expected .*/python to run .*, got: {got};"):
        probe(ENGINE.model_copy(update={"python": str(broken)}), starts_cuda=False)


def test_what_steers_the_engine_is_recorded_and_nothing_else() -> None:
    environment = {
        "NCCL_P2P_DISABLE": "1",
        "SGLANG_DDTREE_KERNEL": "1",
        "CUDA_VISIBLE_DEVICES": "1",
        "SGLANG_API_KEY": "secret",
        "HOME": "/root",
        "MY_CUDA_PATH": "/x",
    }
    assert engine_variables(environment) == {"NCCL_P2P_DISABLE": "1", "SGLANG_DDTREE_KERNEL": "1"}


def test_the_gpus_of_a_service_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", FakeGpus(tmp_path).install().path)
    monkeypatch.setenv("NCCL_P2P_DISABLE", "0")
    facts = capture_sglang(ENGINE.model_copy(update={"environment": {"NCCL_P2P_DISABLE": "1"}}), 2)
    assert facts["engine_variables"]["NCCL_P2P_DISABLE"] == "1"
    assert facts["gpus"] == ["Fake 96 GB, 97887 MiB"] * 2
    assert facts["gpu_indices"] == [0, 1]
    assert facts["driver"] == "580.1"
    assert facts["gpu_settings"][0]["power.limit"] == "600.00"
    assert facts["engine_packages"]["numpy"] is not None
    assert facts["gpu_topology"] == "GPU0 NV18 GPU1\n"


def test_only_the_gpus_of_a_service_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", FakeGpus(tmp_path).install().path)
    facts = capture_sglang(ENGINE.model_copy(update={"environment": {"CUDA_VISIBLE_DEVICES": "6"}}), 1)
    assert facts["gpu_indices"] == [6]
    assert facts["gpu_uuids"] == ["GPU-0006"]
    assert len(facts["gpu_settings"]) == 1
    assert facts["gpu_topology"] is None
