import shutil

import pytest
from synthetic import Shape, campaign_values, write_campaign

from draftbench.report.summarise import summarise


@pytest.fixture
def summarised(tmp_path):
    """Write a campaign's files and summarise them: `summarised(shape, is_partial=True, sessions=3)`."""

    def run(shape=None, *, is_partial=False, only=None, **changes):
        directory = tmp_path / f"campaign-{len(list(tmp_path.iterdir()))}"
        paths = write_campaign(directory, campaign_values(**changes) | {"only": only or {}}, shape or Shape())
        return summarise(*paths, directory / "build", is_partial=is_partial)

    return run


@pytest.fixture(scope="session")
def needs_tex():
    """Skip where there is no TeX at all; where `make test` installed it, whatever lacks beside it fails."""
    if shutil.which("pdflatex") is None:
        pytest.skip("needs TeX: envs/install_system_packages.sh envs/apt.txt envs/apt-test.txt")
