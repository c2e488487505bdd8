"""A service waits for free GPUs, and is over only when they are free again."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.servers.factories import make_handle, make_spec

from draftbench.errors import ServerError
from draftbench.servers.base import ServiceHandle
from draftbench.servers.gpu import Gpu, GpuGuard, choose_gpus, read_gpus

IDLE = [Gpu(i, f"GPU-{i:04d}", "Fake 96 GB", 97_000, 500, ()) for i in range(8)]


@dataclass
class ScriptedGpus:
    """A reader that answers with one state after the other and stays at the last."""

    states: list[list[Gpu]]
    num_reads: int = field(default=0)

    def __call__(self) -> list[Gpu]:
        state = self.states[min(self.num_reads, len(self.states) - 1)]
        self.num_reads += 1
        return state


def with_gpu(index: int, **changes: object) -> list[Gpu]:
    return [replace(gpu, **changes) if gpu.index == index else gpu for gpu in IDLE]


def held_handle(used_mib: dict[str, int], **changes: object) -> ServiceHandle:
    return make_handle(make_spec(), held={"gpu": {"used_mib": used_mib}}, **changes)


@pytest.fixture
def stranger() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "train.py"]) as process:
        yield process.pid
        process.kill()


def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_free_gpus_are_noted_with_the_memory_in_use() -> None:
    held = GpuGuard(ScriptedGpus([IDLE])).before_start(make_spec(num_gpus=4))
    assert held == {"used_mib": {"0": 500, "1": 500, "2": 500, "3": 500}}


def test_a_service_without_gpus_asks_nobody() -> None:
    reader = ScriptedGpus([IDLE])
    assert GpuGuard(reader).before_start(make_spec(num_gpus=0)) is None
    assert reader.num_reads == 0


def test_a_foreign_job_on_a_needed_gpu_is_named(stranger: int) -> None:
    guard = GpuGuard(ScriptedGpus([with_gpu(5, pids=(stranger,), used_mib=40_000)]), stranger_grace_s=0.2)
    with pytest.raises(
        ServerError, match=rf"GPU 5 to be free, but process {stranger} of user \w+ .*train\.py"
    ):
        guard.before_start(make_spec(num_gpus=8))


def test_a_foreign_job_on_another_gpu_is_left_alone(stranger: int) -> None:
    guard = GpuGuard(ScriptedGpus([with_gpu(5, pids=(stranger,), used_mib=40_000)]))
    assert guard.before_start(make_spec(num_gpus=4)) is not None


def test_memory_of_processes_that_cannot_be_seen_is_an_error() -> None:
    guard = GpuGuard(ScriptedGpus([with_gpu(0, used_mib=40_000)]))
    with pytest.raises(ServerError, match="at most 2048 MiB in use on GPU 0, but 40000 MiB are"):
        guard.before_start(make_spec(num_gpus=1))


def test_a_start_waits_for_what_is_about_to_go() -> None:
    busy = with_gpu(0, pids=(dead_pid(),), used_mib=40_000)
    reader = ScriptedGpus([busy, busy, IDLE])
    assert GpuGuard(reader, stranger_grace_s=0).before_start(make_spec(num_gpus=1)) == {
        "used_mib": {"0": 500}
    }
    assert reader.num_reads == 3


def test_too_few_gpus_are_one_sentence() -> None:
    with pytest.raises(ServerError, match="expected 8 GPUs for tp 8, got 2; lower tp"):
        GpuGuard(ScriptedGpus([IDLE[:2]])).before_start(make_spec(num_gpus=8))


def test_a_service_holds_the_gpus_that_its_own_variables_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    spec = make_spec(num_gpus=2, environment={"CUDA_VISIBLE_DEVICES": "6,7"})
    assert GpuGuard(ScriptedGpus([IDLE])).before_start(spec) == {"used_mib": {"6": 500, "7": 500}}


def test_visible_devices_decide_which_gpus_are_used() -> None:
    assert [gpu.index for gpu in choose_gpus(IDLE, 2, {"CUDA_VISIBLE_DEVICES": "6,7"})] == [6, 7]
    assert [gpu.index for gpu in choose_gpus(IDLE, 1, {"CUDA_VISIBLE_DEVICES": "GPU-0003"})] == [3]
    with pytest.raises(ServerError, match="CUDA_VISIBLE_DEVICES=6"):
        choose_gpus(IDLE, 2, {"CUDA_VISIBLE_DEVICES": "6"})


def test_an_empty_list_of_visible_devices_hides_all_gpus() -> None:
    with pytest.raises(ServerError, match="expected 1 GPUs for tp 1, got 0 in CUDA_VISIBLE_DEVICES=;"):
        choose_gpus(IDLE, 1, {"CUDA_VISIBLE_DEVICES": ""})


def test_a_stop_waits_until_the_memory_is_back() -> None:
    reader = ScriptedGpus(
        [with_gpu(1, used_mib=90_000), with_gpu(1, used_mib=757), with_gpu(1, used_mib=756)]
    )
    GpuGuard(reader, stranger_grace_s=0).after_stop(held_handle({"0": 500, "1": 500}), 5.0)
    assert reader.num_reads == 3


def test_an_orphan_that_keeps_the_gpu_is_named(stranger: int) -> None:
    guard = GpuGuard(ScriptedGpus([with_gpu(1, pids=(stranger,), used_mib=90_000)]), stranger_grace_s=0.2)
    started_s = time.monotonic()
    with pytest.raises(ServerError, match=f"process {stranger} of user") as caught:
        guard.after_stop(held_handle({"1": 500}), 60.0)
    assert caught.value.reason == "gpu"
    assert time.monotonic() - started_s < 30  # it was not waited for: it will not go


def test_memory_that_does_not_come_back_is_an_error() -> None:
    guard = GpuGuard(ScriptedGpus([with_gpu(1, used_mib=90_000)]))
    started_s = time.monotonic()
    with pytest.raises(ServerError, match="at most 756 MiB in use on GPU 1, but 90000 MiB are"):
        guard.after_stop(held_handle({"1": 500}), 0.6)
    assert time.monotonic() - started_s < 5


def test_after_a_reboot_there_is_nothing_to_wait_for() -> None:
    reader = ScriptedGpus([with_gpu(1, used_mib=90_000)])
    GpuGuard(reader).after_stop(held_handle({"1": 500}, boot_id="another"), 0.1)
    assert reader.num_reads == 0


FAKE_SMI = """#!/bin/sh
case "$1" in
--query-compute-apps=*) printf 'GPU-b, 4242\\nGPU-b, 4243\\nGPU-a, [N/A]\\n' ;;
--query-gpu=*) printf '0, GPU-a, NVIDIA H200, 143771, 0\\n1, GPU-b, NVIDIA H200, 143771, 131072\\n' ;;
esac
"""


def install_smi(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(text)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_nvidia_smi_is_read_by_gpu_and_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_smi(tmp_path, FAKE_SMI, monkeypatch)
    assert read_gpus() == [
        Gpu(0, "GPU-a", "NVIDIA H200", 143_771, 0, ()),
        Gpu(1, "GPU-b", "NVIDIA H200", 143_771, 131_072, (4242, 4243)),
    ]


def test_a_failing_driver_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_smi(tmp_path, "#!/bin/sh\necho 'Driver/library version mismatch'\nexit 18\n", monkeypatch)
    with pytest.raises(ServerError, match="Driver/library version mismatch; check the driver"):
        read_gpus()


def test_a_host_without_a_driver_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match="expected nvidia-smi on PATH"):
        read_gpus()
