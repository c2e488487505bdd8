"""Bad input ends the command before anything runs, in one sentence, with exit code 1.

What reading the campaign refuses has its cases in tests/test_campaign.py; some of them are here too.
"""

import copy
import json
import os
import re

import pytest
from tests.servers.strangers import stranger
from tests.workflow.workspace import Workspace, small_campaign


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A workspace in which nothing ever runs."""
    return Workspace(tmp_path_factory.mktemp("refused")).create()


@pytest.fixture
def refused(shared):
    """Runs a changed campaign; gives the sentence that refused it."""

    def run(change, *arguments, **environment):
        campaign = copy.deepcopy(small_campaign())
        change(campaign)
        shared.configure(campaign)
        finished = shared.run(*arguments, environment=environment)
        assert finished.code == 1, finished.text
        assert shared.events() == []
        assert "Traceback" not in finished.text
        assert len(re.findall(r"^error: ", finished.text, re.MULTILINE)) == 1
        assert finished.text.rstrip().splitlines()[-1].startswith("error: ")
        return finished.error()

    return run


def test_a_misspelt_key(refused):
    text = refused(lambda c: c.update(repeat=2))
    assert text == "config/config.yaml: repeat: expected a known key, got 'repeat'; did you mean 'repeats'?"


def test_a_missing_drafter(refused):
    text = refused(lambda c: c["models"]["tiny"].pop("drafter"))
    assert "models.tiny.drafter: expected a drafter, which method dflash needs, got nothing; " in text


def test_a_size_that_the_engine_cannot_serve(refused):
    text = refused(lambda c: c.update(tp=[1, 2]))
    assert text == "tp: expected 1 with engine.kind embedded, got 2; use engine.kind sglang"


def test_a_drafter_that_is_not_there(refused):
    text = refused(lambda c: c["models"]["tiny"]["drafter"].update(source="path:models/none"))
    assert re.match(r"path:models/none: expected a directory, got nothing at /.*/models/none; correct ", text)


def test_a_drafter_of_another_target(refused, shared):
    folder = shared.path / "models/other"
    folder.mkdir()
    config = json.loads((shared.path / "models/drafter/config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 9}))
    text = refused(lambda c: c["models"]["tiny"]["drafter"].update(source="path:models/other"))
    assert re.match(
        r"models/other/config.json: hidden_size: expected 8 as in models/target/config.json, got 9; ", text
    )


def test_a_name_that_stands_twice(refused, shared):
    twice = shared.path / "twice.yaml"
    twice.write_text("methods:\n  ar: {algorithm: ar}\n  ar: {algorithm: dflash}\n")
    text = refused(lambda _: None, "--configfile", "config/config.yaml", "twice.yaml")
    assert text == "twice.yaml: ar: expected the key once in its mapping, got it in lines 2 and 3; remove one"


def test_a_missing_prompt_file(refused):
    text = refused(lambda c: c["workloads"]["short"].update(prompts="none.yaml"))
    assert re.match(r"none.yaml: expected a readable YAML file, got: .*; correct the file or its name", text)


def test_a_prompt_that_warms_up_and_is_measured(refused):
    text = refused(lambda c: c["warmup"].update(prompts="prompts.yaml"))
    assert "expected a text that is measured nowhere, got one that is; " in text


def test_a_port_in_use(refused, free_port):
    with stranger(free_port) as process:
        text = refused(lambda c: c.update(port=free_port))
    assert text.startswith(f"port {free_port}: expected it to be free, but process {process.pid} ")


def test_no_room_to_stage(refused):
    text = refused(lambda c: c["models"]["tiny"]["target"].update(size_bytes=10**18))
    assert re.search(r"staged: expected \d+\.\d\d GiB of room for the models of campaign small, got ", text)


def test_no_tex(refused):
    path = os.pathsep.join(
        p for p in os.environ["PATH"].split(os.pathsep) if not os.path.exists(f"{p}/pdflatex")
    )
    text = refused(lambda _: None, PATH=path)
    assert "expected pdflatex" in text
    assert "texlive" in text
