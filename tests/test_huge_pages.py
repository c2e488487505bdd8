"""However the tests are started, they run in huge pages, and pytest does what it was asked to."""

import os
import subprocess
import sys
from pathlib import Path

from draftbench.engine.huge_pages import ENVIRONMENT

ROOT = Path(__file__).resolve().parent.parent
PROBE = """
import os

def test_chosen():
    tunables = os.environ.get("GLIBC_TUNABLES")
    assert not tunables

def test_left_out():
    raise AssertionError
"""


def test_a_call_that_has_to_start_again_keeps_its_options_input_output_and_exit_code(tmp_path):
    probe = tmp_path / "test_probe.py"
    probe.write_text(PROBE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--pdb", "-k", "chosen", __file__, probe],
        input="print('read', tunables)\nq\n",
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "read glibc.malloc.hugetlb=1" in done.stdout, done.stdout + done.stderr
    assert "1 failed, 2 deselected" in done.stdout
    assert done.returncode == 2  # left by the debugger
