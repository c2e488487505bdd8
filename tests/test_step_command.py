"""How a step's command ends, and that no two run at once."""

import os
import signal
import subprocess
import sys

import pytest

from draftbench import host

COMMAND = """
import logging, sys
from draftbench.errors import DraftbenchError
from draftbench.step_command import run_step

def step():
    print("done")
    logging.getLogger("a").info("a line of the log")
    exec(sys.argv[1])

sys.exit(run_step(step))
"""


def run(program, **variables):
    environment = {k: v for k, v in os.environ.items() if k != host.RUN_PID} | variables
    command = [sys.executable, "-c", COMMAND, program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(autouse=True)
def run_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("DRAFTBENCH_RUN_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("program", "code", "sentence"),
    [
        ("raise DraftbenchError('no room')", 1, "error: no room"),
        ("raise KeyboardInterrupt", 130, "error: interrupted; the same command goes on where this one ended"),
        ("pass", 0, "a line of the log"),
    ],
)
def test_a_step_ends_with_its_reason_in_the_logs_last_line(program, code, sentence):
    done = run(program)
    assert (done.returncode, done.stdout) == (code, "done\n")
    assert done.stderr.splitlines()[-1].endswith(sentence)
    assert "Traceback" not in done.stderr


IN_A_FINALIZER = """
class Closed:
    def __del__(self):
        import os, signal, time
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

Closed()
import time
time.sleep(30)
"""


def test_a_ctrl_c_while_an_object_is_finalised_is_not_lost():
    done = run(IN_A_FINALIZER)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1].startswith("error: interrupted")
    assert "Traceback" not in done.stderr


def test_other_errors_of_finalizers_are_told_as_ever():
    done = run("class Closed:\n    def __del__(self):\n        raise ValueError('odd')\nClosed()")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "ValueError: odd" in done.stderr


def test_a_step_beside_another_one_is_refused():
    with host.exclusive(host.run_directory() / "step.lock", "runs a step"):
        done = run("pass")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"process {os.getpid()} runs a step" in done.stderr.splitlines()[-1]


def test_a_step_whose_run_has_ended_does_nothing():
    with subprocess.Popen(["true"]) as ended:
        pass
    done = run("pass", **{host.RUN_PID: str(ended.pid)})
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")
