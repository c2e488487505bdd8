"""A campaign that does not fit is refused in one sentence: file, key, expected, got, what to do."""

import copy
import re

import pytest
import yaml
from tests.workflow.workspace import small_campaign

from draftbench.adaptive import groups
from draftbench.campaign_file import read_campaign, read_mapping
from draftbench.config import Campaign, cells, load_campaign, services
from draftbench.errors import ConfigError

DELETE = object()


def campaign():
    """Methods ar, dflash and ddtree-b8; workloads short and pair."""
    return small_campaign() | {"only": {}}


def changed(key, value):
    values = copy.deepcopy(campaign())
    *parents, last = key.split(".")
    place = values
    for parent in parents:
        place = place[parent]
    if value is DELETE:
        del place[last]
    else:
        place[last] = value
    return values


def refusal(values):
    with pytest.raises(ConfigError) as error:
        load_campaign(values, "config/some.yaml")
    return str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("repeat", 2, "a known key, got 'repeat'; did you mean 'repeats'?"),
        ("methods.ddtree-b8.budgett", 2, "a known key, got 'budgett'; did you mean 'budget'?"),
        ("workloads.short.max_tokns", 2, "a known key, got 'max_tokns'; did you mean 'max_tokens'?"),
        ("models.tiny.zzz", 2, "one of the keys target, drafter, got 'zzz'; remove it, see config/README.md"),
        ("repeats", "2", "a whole number, got '2'"),
        ("repeats", 2.5, "a whole number, got 2.5"),
        ("workloads.short.ignore_eos", "maybe", "true or false, got 'maybe'"),
        ("models", 3, "a mapping, got 3"),
        ("tp", 3, "a list, got 3"),
        ("tp", [1, 1], "each size once, got [1, 1]"),
        ("methods", {}, "at least one entry, got {}"),
        ("warmup", DELETE, "a value, got nothing; add the key"),
        ("models.tiny.drafter", DELETE, "a drafter, which method dflash needs, got nothing"),
        (
            "models.tiny.target.source",
            "github:x",
            "pypi:<name>==<version>, hf:<repo>@<revision> or path:<directory>, got 'github:x'",
        ),
        ("methods.ddtree-b8.budget", 0, "a number greater than or equal to 1, got 0"),
        ("methods.ddtree-b8.budget", 2000, "a number less than or equal to 1024, got 2000"),
        ("methods.ddtree-b8.budget", DELETE, "the number of tree nodes, at least 1, for algorithm ddtree"),
        ("methods.ar.budget", 3, "no budget for algorithm ar, which has no tree, got 3"),
        ("methods.ar.algorithm", "eagle", "'ar', 'dflash' or 'ddtree', got 'eagle'"),
        ("methods.DDTree", {"algorithm": "ar"}, "lower-case words joined by hyphens, got 'DDTree'"),
        ("port", 80, "a number greater than or equal to 1024, got 80"),
        ("only.shor", {}, "a workload (short, pair), got 'shor'"),
        ("workloads.pair.num_requests", 1, "at least 2, so that concurrency 2 is ever reached, got 1"),
        ("warmup.max_batches", 1, "at least min_batches, 2, got 1"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(key, value, expected):
    assert refusal(changed(key, value)).startswith(f"config/some.yaml: {key}: expected {expected}")


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("workloads.short.kind", "singel", "workloads.short: expected kind to be one of 'single', 'agentic'"),
        ("engine.kind", "vllm", "engine: expected kind to be one of 'embedded', 'sglang', got 'vllm'"),
        ("limits", {"ready_s": -1}, "limits.ready_s: expected a number greater than 0, got -1"),
        (
            "only.short",
            {"methods": ["eagle"]},
            "only.short.methods: expected one of ar, dflash, ddtree-b8, got 'eagle'",
        ),
    ],
)
def test_a_wrong_value_inside_a_section_is_named_too(key, value, sentence):
    assert refusal(changed(key, value)).startswith(f"config/some.yaml: {sentence}")


def test_a_refusal_is_one_line_that_says_what_to_do():
    text = refusal(changed("methods.ddtree-b8.budget", 0))
    assert "\n" not in text
    assert text.endswith("; correct the key, see config/README.md")


def test_further_errors_are_counted():
    values = changed("repeats", "2")
    values["seed"] = "x"
    assert refusal(values).endswith("(1 more like this)")


def test_a_misspelt_key_is_told_before_the_key_that_it_leaves_missing():
    values = campaign()
    values["metods"] = values.pop("methods")
    text = refusal(values)
    assert text.startswith(
        "config/some.yaml: metods: expected a known key, got 'metods'; did you mean 'methods'?"
    )
    assert text.endswith("(1 more like this)")


def test_a_value_that_no_kind_of_its_key_allows_is_one_error():
    assert "more like this" not in refusal(changed("port", 80))


def write(path, values):
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values, sort_keys=False))
    return path


def test_a_key_that_stands_twice_is_refused_with_its_lines(tmp_path):
    text = "campaign: a\nmethods:\n  ar: {algorithm: ar}\n  ar: {algorithm: dflash}\n"
    path = write(tmp_path / "twice.yaml", text)
    with pytest.raises(ConfigError, match=r"twice.yaml: ar: expected the key once.*lines 3 and 4"):
        read_mapping(path)


def test_a_merged_mapping_may_overwrite_its_keys(tmp_path):
    path = write(tmp_path / "merge.yaml", "a: &a {x: 1, y: 1}\nb: {<<: *a, x: 2}\n")
    assert read_mapping(path)["b"] == {"x": 2, "y": 1}


@pytest.mark.parametrize("text", ["- a list\n", "a: [unclosed\n", "a: \x00\n", "? [a]\n: b\n"])
def test_a_file_that_is_no_mapping_is_refused_by_name(tmp_path, text):
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "odd.yaml"))):
        read_mapping(write(tmp_path / "odd.yaml", text))


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"none.yaml: expected a readable YAML file"):
        read_mapping(tmp_path / "none.yaml")


def test_the_file_with_the_wrong_key_is_named_among_several(tmp_path):
    first = write(tmp_path / "first.yaml", campaign())
    second = write(tmp_path / "second.yaml", {"methods": {"ddtree-b8": {"budget": 0}}})
    third = write(tmp_path / "third.yaml", {"repeats": 2})
    merged = changed("methods.ddtree-b8.budget", 0) | {"repeats": 2}
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(second))}: methods.ddtree-b8.budget"):
        read_campaign([first, second, third], merged)


def test_a_wrong_key_of_the_command_line_is_told_from_the_files(tmp_path):
    path = write(tmp_path / "first.yaml", campaign())
    with pytest.raises(ConfigError, match=r"^--config on the command line: repeat:"):
        read_campaign([path], campaign() | {"repeat": 2})


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("repeats", 0, "repeats"),
        ("methods.ddtree-b8.budget", 0, "methods.ddtree-b8.budget"),
        ("engine.kind", "vllm", "engine"),
    ],
)
def test_a_value_of_the_command_line_is_told_from_the_one_that_it_replaces(tmp_path, key, value, named):
    first = write(tmp_path / "first.yaml", campaign())
    second = write(tmp_path / "second.yaml", {"repeats": 1, "methods": {"ar": {"block_size": 16}}})
    merged = changed(key, value)
    merged["methods"]["ar"]["block_size"] = 16
    with pytest.raises(ConfigError, match=rf"^--config on the command line: {named}: "):
        read_campaign([first, second], merged)


def test_services_are_named_by_model_only_where_there_are_several():
    one = load_campaign(campaign(), "one")
    assert [service.name for service in services(one)] == ["tp1-ar", "tp1-dflash", "tp1-ddtree-b8"]
    values = campaign() | {"sessions": 2}
    values["models"]["other"] = values["models"]["tiny"]
    names = [service.name for service in services(load_campaign(values, "two"))]
    assert names[0] == "tiny-tp1-ar"
    assert names[-1] == "other-tp1-ddtree-b8-s2"
    assert len(set(names)) == 12


def test_only_leaves_a_workload_out():
    values = campaign() | {"tp": [1, 2], "only": {"pair": {"tp": [2], "methods": ["ddtree-b8"]}}}
    names = [cell.name for cell in cells(load_campaign(values, "some"))]
    assert len(names) == 7
    assert [name for name in names if name.endswith(".pair")] == ["tp2-ddtree-b8.pair"]


def adaptive(**changes):
    """Two sessions, up to four."""
    return campaign() | {"sessions": 2, "adaptive": {"half_width": 0.05, "max_sessions": 4}} | changes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"adaptive": {"half_width": 0.05, "max_sessions": 1}},
            "adaptive.max_sessions: expected at least sessions, 2, got 1",
        ),
        (
            {"sessions": 1},
            "sessions: expected at least 2 with adaptive, because one session has no interval, got 1",
        ),
        (
            {"methods": {"dflash": {"algorithm": "dflash"}}},
            "adaptive: expected a method of algorithm ar and another to compare with it, got ['dflash']",
        ),
        (
            {"methods": {"ar": {"algorithm": "ar"}}},
            "adaptive: expected a method of algorithm ar and another to compare with it, got ['ar']",
        ),
        (
            {"only": {"short": {"sessions": [1]}, "pair": {"methods": ["dflash", "ddtree-b8"]}}},
            "adaptive: expected a workload without only.*.sessions, measured with ar and another method, "
            "got ['short', 'pair']",
        ),
        (
            {"adaptive": {"max_sessions": 4}},
            "adaptive.half_width: expected a value, got nothing; add the key",
        ),
        (
            {"adaptive": {"half_widht": 0.05, "max_sessions": 4}},
            "adaptive.half_widht: expected a known key, got 'half_widht'; did you mean 'half_width'?",
        ),
        (
            {"adaptive": {"half_width": 0.05, "max_sessions": 4, "max_session": 3}},
            "adaptive.max_session: expected a known key, got 'max_session'; did you mean 'max_sessions'?",
        ),
        ({"adaptive": 0.05}, "adaptive: expected a mapping, got 0.05"),
        *(
            (
                {"adaptive": {"half_width": width, "max_sessions": 4}},
                f"adaptive.half_width: expected a number {words}, got {width}",
            )
            for width, words in (
                (0, "greater than 0"),
                (-0.1, "greater than 0"),
                (1.0, "less than 1"),
                (5, "less than 1"),
            )
        ),
    ],
)
def test_adaptive_sessions_that_cannot_be_judged_are_refused(changes, sentence):
    assert refusal(adaptive(**changes)).startswith(f"config/some.yaml: {sentence}")


def test_adaptive_adds_cells_of_further_sessions_but_to_workloads_with_sessions_of_their_own():
    plain = {cell.name for cell in cells(load_campaign(campaign() | {"sessions": 2}, "some"))}
    found = {cell.name for cell in cells(load_campaign(adaptive(), "some"))}
    assert plain < found
    assert {cell.service.session for cell in cells(load_campaign(adaptive(), "some"))} == {1, 2, 3, 4}
    fixed = {cell.name for cell in cells(load_campaign(adaptive(only={"pair": {"sessions": [1]}}), "some"))}
    assert {name for name in fixed if name.endswith(".pair")} == {
        f"tp1-{method}.pair" for method in ("ar", "dflash", "ddtree-b8")
    }
    assert "tp1-ar-s4.short" in fixed


def test_single_requests_get_their_sessions_together_and_other_workloads_each_for_itself():
    values = adaptive(tp=[1, 2])
    short = values["workloads"]["short"]
    values["workloads"] = {
        "pair": values["workloads"]["pair"],
        "short": short,
        "long": short | {"max_tokens": 9},
    }
    made = load_campaign(values, "some")
    found = {group.name: group for group in groups(made)}
    assert list(found) == ["tp1.pair", "tp1.short", "tp2.pair", "tp2.short"]
    assert found["tp2.short"].workloads == ("short", "long")
    grouped = [cell.name for group in found.values() for cell in group.cells]
    assert sorted(grouped) == sorted(cell.name for cell in cells(made))
    third = found["tp1.pair"].between(3, 3)
    assert [cell.name for cell in third] == [f"tp1-{m}-s3.pair" for m in ("ar", "dflash", "ddtree-b8")]


def test_a_campaign_that_asks_for_no_adaptive_sessions_has_no_groups():
    assert list(groups(load_campaign(campaign() | {"sessions": 3}, "some"))) == []


def test_a_campaign_survives_json():
    made = load_campaign(campaign(), "some")
    assert Campaign.model_validate_json(made.model_dump_json()) == made


def test_a_wrong_key_that_no_file_holds_is_the_command_line_s():
    with pytest.raises(ConfigError, match=r"^--config on the command line: repeat:"):
        read_campaign([], campaign() | {"repeat": 2})


def test_only_chooses_models_and_sessions_too():
    values = campaign() | {"sessions": 2}
    values["models"] = dict.fromkeys(("a", "b"), values["models"]["tiny"])
    values["only"] = {"pair": {"models": ["b"], "sessions": [2], "methods": ["ar"]}}
    names = [cell.name for cell in cells(load_campaign(values, "some")) if cell.workload == "pair"]
    assert names == ["b-tp1-ar-s2.pair"]


def test_a_workload_that_a_method_beside_ar_is_left_of_is_adaptive_and_one_of_ar_alone_is_not():
    only = {"short": {"methods": ["ar", "dflash"]}, "pair": {"methods": ["ar"]}}
    assert load_campaign(adaptive(only=only), "some").adaptive_workloads == ["short"]
    assert load_campaign(campaign(), "some").adaptive_workloads == []
    assert load_campaign(campaign(), "some").session_limit == 1
    assert load_campaign(adaptive(), "some").session_limit == 4
