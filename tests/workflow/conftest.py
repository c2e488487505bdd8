import shutil

import pytest
from tests.workflow.workspace import Workspace


@pytest.fixture
def workspace(tmp_path):
    """A campaign of which nothing has been done."""
    made = Workspace(tmp_path).create()
    yield made
    made.clean_up()


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A campaign that was run to its end once; for reading only."""
    made = Workspace(tmp_path_factory.mktemp("measured")).create()
    made.first_run = made.run()
    yield made
    made.clean_up()


@pytest.fixture
def finished(measured, tmp_path):
    """A copy of a campaign that was run to its end, events forgotten."""
    shutil.copytree(measured.path, tmp_path, symlinks=True, dirs_exist_ok=True)
    made = Workspace(tmp_path)
    made.events_file.write_text("")
    yield made
    made.clean_up()
