"""The script that installs system packages lets a system of another kind be."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "envs" / "install_system_packages.sh"


def test_a_system_without_debian_packages_is_told_their_names_and_not_stopped(tmp_path):
    for program in ("sed", "tr"):
        (tmp_path / program).symlink_to(shutil.which(program))
    done = subprocess.run(
        ["/bin/sh", SCRIPT, ROOT / "envs" / "apt.txt"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "texlive-latex-base" in done.stdout
