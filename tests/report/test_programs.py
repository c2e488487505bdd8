"""What typesets the report is installed by `make report` and looked for before anything is measured."""

from pathlib import Path

import pytest
from synthetic import campaign_values

from draftbench.config import Campaign
from draftbench.errors import ConfigError
from draftbench.preflight.campaign import check_tex
from draftbench.report.programs import TEX_PACKAGES, TEX_PROGRAMS

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_packages_named_are_those_that_make_report_installs():
    lines = (ROOT / "envs" / "apt.txt").read_text().splitlines()
    assert TEX_PACKAGES.split() == [line for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("missing", TEX_PROGRAMS)
def test_each_program_is_looked_for_before_a_run(tmp_path, monkeypatch, missing):
    for program in set(TEX_PROGRAMS) - {missing}:
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=f"expected {missing} on PATH.*envs/apt.txt"):
        check_tex(Campaign.model_validate(campaign_values()))
