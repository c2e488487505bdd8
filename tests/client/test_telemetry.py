"""What is sampled beside a measurement, and the doubts that follow."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftbench.client import gpu, processes
from draftbench.client import telemetry as sampling
from draftbench.client.gpu import foreign_processes, parse_line
from draftbench.client.processes import CpuTimes, process_tree
from draftbench.client.telemetry import COLUMNS, Sampler, clock_drop, find_doubts
from draftbench.records import Telemetry

SLEEP = [sys.executable, "-c", "import time; time.sleep(30)"]
SPIN = [sys.executable, "-c", "while True: pass"]


@pytest.fixture
def start():
    """Start a process that is ended with the test."""
    started = []

    def run(command, **options):
        started.append(subprocess.Popen(command, **options))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def sample(pid, span_s=0.9):
    with Sampler(pid, interval_s=0.2) as sampler:
        time.sleep(span_s)
    telemetry = sampler.telemetry()
    return {
        name: [row[i] for row in telemetry.samples] for i, name in enumerate(telemetry.columns)
    }, telemetry


def mean(values):
    return sum(values) / len(values)


def test_samples_come_at_their_interval_with_all_columns(start):
    columns, telemetry = sample(start(SLEEP).pid)
    assert 2 <= len(telemetry.samples) <= 5
    assert telemetry.columns[: len(COLUMNS)] == COLUMNS
    assert all(len(row) == len(telemetry.columns) for row in telemetry.samples)
    assert columns["time_s"] == sorted(columns["time_s"])


def test_the_servers_own_work_is_not_foreign(start):
    server = start(SPIN, start_new_session=True)
    columns, _ = sample(server.pid)
    assert mean(columns["server_cores"]) > 0.04
    assert mean(columns["foreign_cores"]) < mean(columns["busy_cores"])
    sleeper = start(SLEEP)
    time.sleep(1.0)  # its own start costs time too
    columns, _ = sample(sleeper.pid)
    assert mean(columns["foreign_cores"]) > 0.04 > mean(columns["server_cores"])


def test_sampling_itself_costs_little(start):
    columns, _ = sample(start(SLEEP).pid)
    assert 0.02 < sorted(columns["sampler_ms"])[len(columns["sampler_ms"]) // 2] < 20


class Counters:
    """Stands for the kernel's counters: readings 2 s apart, whose counts grow by 1, 3, 5... times a rate."""

    def __init__(self):
        self.number = -1

    def cpu_times(self):
        self.number += 1
        return CpuTimes(busy_s=2.0 * self.number**2, steal_s=0.2 * self.number**2)

    def cpu_seconds(self, _pids):
        newcomer = {8: 100.0 + self.number} if self.number >= 2 else {}
        return {7: 0.4 * self.number**2, **newcomer}

    def replace(self, monkeypatch):
        clocks = {"monotonic": lambda: 10.0 + 2 * self.number, "thread_time": lambda: 0.0}
        clocks["process_time"] = lambda: 0.2 * self.number**2
        monkeypatch.setattr(sampling, "time", SimpleNamespace(**clocks))
        for name in ("cpu_times", "cpu_seconds"):
            monkeypatch.setattr(sampling, name, getattr(self, name))


def rows_of(sampler, num):
    """Its first samples, each by column."""
    deadline_s = time.monotonic() + 30
    while len(sampler.telemetry().samples) < num:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return [dict(zip(COLUMNS, row, strict=False)) for row in sampler.telemetry().samples[:num]]


def test_a_sample_is_what_was_used_since_the_one_before_it(monkeypatch):
    Counters().replace(monkeypatch)
    with Sampler(os.getpid(), interval_s=0.01) as sampler:
        rows = rows_of(sampler, 3)
    expected = {
        "time_s": [12.0, 14.0, 16.0],
        "busy_cores": [1.0, 3.0, 5.0],
        "steal_cores": [0.1, 0.3, 0.5],
        "client_cores": [0.1, 0.3, 0.5],
        "server_cores": [0.2, 0.6, 1.0 + 0.5],  # the newcomer's past is not the sample's
        "foreign_cores": [0.7, 2.1, 3.0],
    }
    assert {name: [row[name] for row in rows] for name in expected} == {
        name: pytest.approx(values) for name, values in expected.items()
    }


TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def test_busy_time_is_that_of_all_work_without_waiting_and_stolen_time(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PROC", tmp_path)
    (tmp_path / "stat").write_text("cpu  100 20 30 4000 500 6 7 8 90 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert processes.cpu_times() == CpuTimes(
        busy_s=pytest.approx((100 + 20 + 30 + 6 + 7) / TICKS_PER_S), steal_s=8 / TICKS_PER_S
    )


def test_the_clock_is_the_mean_of_all_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PROC", tmp_path)
    (tmp_path / "cpuinfo").write_text("cpu MHz\t\t: 3000.0\nbogomips: 1\ncpu MHz\t\t: 1000.5\n")
    assert processes.cpu_mhz() == 2000.25


def test_a_process_has_used_its_user_and_its_system_time(monkeypatch):
    numbered = [str(number) for number in range(3, 53)]  # each field holds its number in proc(5)
    monkeypatch.setattr(processes, "process_stat", {7: numbered}.get)
    assert processes.cpu_seconds(frozenset({7, 8})) == {7: (14 + 15) / TICKS_PER_S}


def test_processes_that_the_server_starts_later_are_its_own(monkeypatch):
    scans = []
    monkeypatch.setattr(sampling, "RESCAN_EVERY", 1)
    monkeypatch.setattr(sampling, "process_tree", lambda pid: scans.append(pid) or frozenset({pid}))
    with Sampler(1, interval_s=0.01) as sampler:
        rows_of(sampler, 3)
    assert scans == [1] * (len(sampler.telemetry().samples) + 2)


def test_a_foreign_process_on_the_gpu_is_kept_though_it_ends_or_comes_late(fake_smi, monkeypatch):
    found = iter([{42}, {43}])
    monkeypatch.setattr(gpu, "foreign_processes", lambda _pids: next(found))
    with Sampler(os.getpid(), interval_s=30) as sampler:
        pass
    assert sampler.foreign_gpu_pids == {42, 43}


def test_a_server_that_has_ended_does_not_stop_the_sampling(start):
    process = start([sys.executable, "-c", "pass"])
    process.wait()
    _, telemetry = sample(process.pid, span_s=0.5)
    assert telemetry.samples


def test_children_and_orphans_of_a_session_belong_to_the_server(start):
    child = "[sys.executable, '-c', 'import time; time.sleep(30)']"
    code = f"import subprocess, sys; subprocess.Popen({child}).wait()"
    parent = start([sys.executable, "-c", code], start_new_session=True)
    deadline_s = time.monotonic() + 10
    while len(process_tree(parent.pid)) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    tree = process_tree(parent.pid)
    assert len(tree) == 2
    assert os.getpid() not in tree
    parent.kill()
    parent.wait()
    [orphan] = process_tree(parent.pid) - {parent.pid}
    os.kill(orphan, 9)


# pid -> state, parent, group, session
FAMILY = {
    100: "S 1 100 100",
    101: "S 100 100 100",
    102: "S 101 102 102",  # left the session
    103: "S 102 102 102",
    104: "S 1 104 100",  # its parent has ended, it has a group of its own
    105: "S 103 105 105",
    200: "S 1 100 200",
}


@pytest.mark.parametrize(("client", "others"), [(300, {105}), (105, set())])
def test_the_servers_processes_are_its_descendants_and_its_session_without_the_client(
    tmp_path, monkeypatch, client, others
):
    for name in (*map(str, FAMILY), "self"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr(processes, "process_stat", lambda pid: FAMILY[pid].split())
    monkeypatch.setattr(os, "getpid", lambda: client)
    assert process_tree(100) == {100, 101, 102, 103, 104} | others


@pytest.mark.parametrize(
    ("values", "drop"),
    [
        ([], 0.0),
        ([2000.0] * 5, 0.0),
        ([2000.0] * 20, 0.0),
        ([2000.0] * 10 + [1900.0] * 10, 0.05),
        ([2000.0] * 3 + [1900.0] * 3, 0.05),
        ([1900.0] * 10 + [2000.0] * 10, 0.0),
        ([2000.0, 2000.0, 2000.0, 500.0] * 5, 0.0),
        ([2000.0] * 10 + [500.0] + [2000.0] * 9, 0.0),
        ([1900.0] * 4 + [2000.0] * 4 + [1900.0] * 12, 0.05),
        ([2000.0] * 8 + [1800.0] * 4 + [2000.0] * 8, 0.1),
    ],
)
def test_a_lasting_fall_of_the_clock_is_seen_and_a_spike_is_not(values, drop):
    assert clock_drop(values) == pytest.approx(drop)


def telemetry_of(**columns):
    num = len(next(iter(columns.values())))
    filled = {**{name: [0.0] * num for name in COLUMNS}, "time_s": [float(i) for i in range(num)], **columns}
    rows = [list(row) for row in zip(*filled.values(), strict=True)]
    return Telemetry(interval_s=1.0, columns=list(filled), samples=rows)


def names(flags):
    return [flag.partition(":")[0] for flag in flags]


CORES = os.cpu_count()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"cpu_mhz": [2000.0] * 20}, []),
        ({"cpu_mhz": [None] * 20}, []),
        ({"cpu_mhz": [2000.0] * 10 + [1900.0] * 10}, ["clock-drop"]),
        ({"cpu_mhz": [2000.0] * 5 + [1900.0] * 15}, []),
        ({"gpu0_sm_mhz": [1980.0] * 10 + [1700.0] * 10}, ["clock-drop"]),
        ({"gpu1_throttle_bits": [0.0] * 10 + [64.0] + [0.0] * 9}, ["gpu-throttled"]),
        ({"gpu0_throttle_bits": [0.0] * 6 + [8.0] * 14}, ["gpu-throttled"]),
        ({"gpu0_throttle_bits": [32.0] * 20}, ["gpu-throttled"]),
        ({"gpu0_throttle_bits": [128.0] * 20}, ["gpu-throttled"]),
        ({"gpu1_throttle_bits": [4.0] * 20}, ["gpu-power-capped"]),
        ({"gpu0_throttle_bits": [1.0] * 20}, []),
        ({"steal_cores": [0.1 * CORES] * 20}, ["cpu-steal"]),
        ({"steal_cores": [0.1 * CORES] * 5 + [0.0] * 15}, []),
        ({"foreign_cores": [0.09 * CORES] * 20}, []),
        ({"foreign_cores": [0.11 * CORES] * 20}, ["foreign-cpu-load", "foreign-cpu-load"]),
        ({"foreign_cores": [0.2 * CORES] * 5 + [0.0] * 15}, ["foreign-cpu-load"]),
        ({"foreign_cores": [0.0] * 22 + [CORES] * 10}, []),
    ],
)
def test_each_doubt_is_named(columns, expected):
    assert names(find_doubts(telemetry_of(**columns), 5.0, 20.0, set())) == expected


def test_the_gpu_that_slowed_down_is_named():
    [flag] = find_doubts(telemetry_of(gpu1_throttle_bits=[64.0] * 3), 0.0, 3.0, set())
    assert "gpu1" in flag


def test_foreign_processes_on_the_gpu_are_named():
    [flag] = find_doubts(telemetry_of(cpu_mhz=[2000.0] * 3), 0.0, 3.0, {77})
    assert "77" in flag


def test_a_line_of_nvidia_smi_is_read():
    line = "1, 1980, 312.55, 61, 98123, 0x0000000000000004"
    assert parse_line(line) == (1, [1980.0, 312.55, 61.0, 98123.0, 4.0])
    assert parse_line("0, [N/A], 312.55, 61, 98123, 0x0") == (0, [None, 312.55, 61.0, 98123.0, 0.0])
    assert parse_line("No devices were found") is None
    assert parse_line("0, 1980, 312.55") is None


FAKE_SMI = """#!/bin/sh
case "$*" in
  *compute-apps*) printf 'GPU-a, %s\\nGPU-a, 42\\nGPU-b, 43\\n' "$SERVER_PID" ;;
  *clocks_event_reasons*) echo 'Field is not valid'; exit 2 ;;
  *loop-ms*)
    echo "$*" >"$0.loop"
    while :; do
      echo '0, 1500, 200.5, 50, 1000, 0x0000000000000020'
      echo '3, 900, 100.5, 30, 10, 0x0'
      sleep 0.1
    done ;;
  *) printf '0, 1980, 100.0, 40, 900, 0x0000000000000000\n3, 1980, 100.0, 40, 900, 0x0\n' ;;
esac
"""


@pytest.fixture
def fake_smi(tmp_path, monkeypatch):
    path = tmp_path / "nvidia-smi"
    path.write_text(FAKE_SMI)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_gpu_samples_follow_the_tool_under_its_old_field_names(fake_smi, start):
    columns, telemetry = sample(start(SLEEP).pid)
    assert columns["gpu0_sm_mhz"][-1] == 1500
    assert columns["gpu0_power_w"][-1] == 200.5
    assert (columns["gpu3_sm_mhz"][-1], columns["gpu3_throttle_bits"][-1]) == (900, 0)
    end_s = telemetry.samples[-1][0]
    assert "gpu-throttled" in names(find_doubts(telemetry, 0.0, end_s, set()))


def test_each_column_is_the_field_that_it_is_named_for(fake_smi):
    assert dict(zip(gpu.COLUMNS, gpu.find_query().split(",")[1:], strict=True)) == {
        "sm_mhz": "clocks.sm",
        "power_w": "power.draw",
        "temperature_c": "temperature.gpu",
        "memory_mib": "memory.used",
        "throttle_bits": "clocks_throttle_reasons.active",
    }


def test_the_tool_prints_at_the_interval_of_the_samples(fake_smi, tmp_path, start):
    sample(start(SLEEP).pid)
    assert "--loop-ms=200" in (tmp_path / "nvidia-smi.loop").read_text()


def test_only_processes_that_share_the_servers_gpu_are_foreign(fake_smi, monkeypatch):
    monkeypatch.setenv("SERVER_PID", "41")
    assert foreign_processes(frozenset({41})) == {42}
    assert foreign_processes(frozenset({40})) == set()


def test_the_tool_is_ended_with_the_sampling(fake_smi, start):
    sample(start(SLEEP).pid, span_s=0.3)
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in process_tree(os.getpid())]
    assert not [command for command in commands if "loop-ms" in command]
