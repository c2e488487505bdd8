"""Prompt and scenario files: what is refused, in one sentence that names the file and the key."""

import pytest

from draftbench.client.prompts import (
    Prompt,
    check_disjoint,
    expand_prompts,
    load_prompts,
    load_scenario,
)
from draftbench.errors import ConfigError

GOOD = """prompts:
  - {id: code-json, type: code, text: Parse it.}
  - {id: prose, type: prose, text: Tell it.}
"""


@pytest.fixture
def write(tmp_path):
    def to_file(text):
        path = tmp_path / "file.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return to_file


def test_prompts_are_read_in_their_order(write):
    assert [prompt.id for prompt in load_prompts(write(GOOD))] == ["code-json", "prose"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "the file"),
        ("prompts: []", "prompts"),
        ("prompt: []", "prompts"),
        (GOOD + "more: 1\n", "more"),
        (GOOD.replace("type: code", "kind: code"), "prompts.0.type"),
        (GOOD.replace("Parse it.", "''"), "prompts.0.text"),
        (GOOD.replace("Parse it.", "'  '"), "prompts.0.text"),
        (GOOD.replace("Parse it.", "17"), "prompts.0.text"),
        (GOOD.replace("id: prose", "id: code-json"), "code-json"),
        (GOOD.replace("Tell it.", "Parse it."), "Parse it."),
        (GOOD.replace("id: prose", "id: Bad Name"), "prompts.1.id"),
        ("prompts: [", "readable YAML"),
        ("[1, 2]", "the file"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_its_place(write, text, part):
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_prompts(path)
    assert str(path) in str(caught.value)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml"):
        load_prompts(tmp_path / "absent.yaml")


def test_a_scenario_is_cut_to_its_turns(write):
    path = write("scenario: talk\nturns: [one, two, three]\n")
    assert load_scenario(path, 2).turns == ["one", "two"]
    assert load_scenario(path).turns == ["one", "two", "three"]


def test_a_scenario_with_too_few_turns_is_refused(write):
    with pytest.raises(ConfigError, match="at least 5 turns, got 1"):
        load_scenario(write("scenario: talk\nturns: [one]\n"), 5)


def test_the_shipped_files_fit(request):
    config = request.config.rootpath / "config"
    for path in sorted((config / "prompts").glob("*.yaml")):
        assert load_prompts(path)
    for path in sorted((config / "scenarios").glob("*.yaml")):
        assert load_scenario(path, 5)


PROMPTS = [Prompt(id=f"p{i}", type="code", text=f"text {i}") for i in range(3)]


@pytest.mark.parametrize("num", [1, 3, 4, 10])
def test_no_prompt_is_sent_twice(num):
    expanded = expand_prompts(PROMPTS, num)
    assert len({prompt.text for prompt in expanded}) == num
    assert len({prompt.id for prompt in expanded}) == num
    assert [prompt.id for prompt in expanded[:3]] == ["p0", "p1", "p2"][:num]


def test_a_repeated_prompt_differs_from_its_beginning_on():
    assert expand_prompts(PROMPTS, 4)[3].text[0] != PROMPTS[0].text[0]


def test_a_warm_up_prompt_that_is_measured_is_refused():
    with pytest.raises(ConfigError, match="prompt p1"):
        check_disjoint(PROMPTS, ["other", " text 1\n"], "warmup.yaml")
    check_disjoint(PROMPTS, ["other"], "warmup.yaml")
