"""The plan: what a cell's spec holds, in which order cells come, what a stored result says of itself."""

import json

import pytest
import yaml
from tests.test_campaign import campaign

from draftbench.config import load_campaign
from draftbench.errors import ConfigError
from draftbench.files import canonical_json, sha256_text
from draftbench.plan import HEAD_BYTES, Plan, stored_spec


@pytest.fixture
def root(tmp_path):
    for name in ("prompts", "warmup"):
        prompts = {"prompts": [{"id": name, "type": "prose", "text": name}]}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(prompts))
    return tmp_path


def plan(root, **changes):
    return Plan(load_campaign(campaign() | changes, "some"), root)


def several(**changes):
    methods = {f"tree-b{n}": {"algorithm": "ddtree", "budget": n} for n in range(1, 9)}
    models = {name: campaign()["models"]["tiny"] for name in ("a", "b")}
    return {"methods": methods, "models": models, "sessions": 2, **changes}


def test_a_spec_is_plain_json(root):
    specs = plan(root).specs
    assert json.loads(json.dumps(specs)) == specs


def test_a_changed_budget_changes_that_methods_specs_only(root):
    before = plan(root).specs
    methods = campaign()["methods"] | {"ddtree-b8": {"algorithm": "ddtree", "budget": 5}}
    after = plan(root, methods=methods).specs
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"tp1-ddtree-b8.short", "tp1-ddtree-b8.pair"}


def test_a_changed_prompt_changes_the_specs(root):
    before = plan(root).specs
    prompts = root / "prompts.yaml"
    prompts.write_text(prompts.read_text() + "# a comment\n")
    assert plan(root).specs == before
    prompts.write_text(prompts.read_text().replace("text: prompts", "text: other"))
    assert plan(root).specs != before


@pytest.mark.parametrize(
    "change", [{"limits": {"ready_s": 7}}, {"port": 4000}, {"staging_root": "x"}, {"description": "x"}]
)
def test_where_and_how_long_is_no_part_of_a_spec(root, change):
    assert plan(root, **change).specs == plan(root).specs


def test_a_missing_prompt_file_is_named(root):
    (root / "prompts.yaml").unlink()
    with pytest.raises(
        ConfigError, match=r"prompts.yaml: expected a readable YAML file.*correct the file or its name"
    ):
        _ = plan(root).specs


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prompts: []\nprompts: []\n", "prompts: expected the key once in its mapping"),
        ("prompts: 2026-01-01\n", "expected texts, numbers and lists of them, got: .*date"),
    ],
)
def test_a_prompt_file_is_read_as_strictly_as_a_campaign(root, text, sentence):
    (root / "prompts.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"prompts.yaml: {sentence}"):
        _ = plan(root).specs


def test_the_order_holds_every_cell_once_and_follows_the_seed(root):
    first = plan(root, **several()).order
    assert sorted(first.values()) == list(range(len(plan(root, **several()).cells)))
    assert plan(root, **several()).order == first
    assert plan(root, **several(seed=1)).order != first


def test_a_service_is_drained_before_the_next_and_a_model_before_the_next(root):
    made = plan(root, **several())
    cells = [made.cells[name] for name in sorted(made.order, key=made.order.__getitem__)]
    for facts in (
        [(cell.service.session,) for cell in cells],
        [(cell.service.session, cell.service.model) for cell in cells],
        [cell.service.name for cell in cells],
    ):
        runs = [fact for number, fact in enumerate(facts) if number == 0 or facts[number - 1] != fact]
        assert len(runs) == len(set(runs))


def test_sessions_differ_in_their_order(root):
    made = plan(root, **several())
    ordered = sorted(made.service_order, key=made.service_order.__getitem__)
    half = len(ordered) // 2
    assert [name.removesuffix("-s2") for name in ordered[half:]] != ordered[:half]


def test_sessions_that_there_may_be_leave_the_first_ones_order_and_specs_alone(root):
    plain = plan(root, sessions=2)
    adaptive = plan(root, sessions=2, adaptive={"half_width": 0.05, "max_sessions": 4})
    assert len(adaptive.cells) == 2 * len(plain.cells)
    assert {name: adaptive.order[name] for name in plain.order} == plain.order
    assert {name: adaptive.specs[name] for name in plain.specs} == plain.specs


def test_a_stored_spec_is_found_at_the_head_of_a_large_file(tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"cell": "x", "spec": {"tp": 1}, "chunks": [' + "1, " * HEAD_BYTES)
    assert stored_spec(path) == {"tp": 1}


def test_a_stored_spec_beyond_the_head_is_found_too(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"text": "x" * HEAD_BYTES, "spec": {"tp": 1}}))
    assert stored_spec(path) == {"tp": 1}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"spec": 3}', '{"cell": "x"}', "\xff"])
def test_a_damaged_result_has_no_spec(tmp_path, text):
    path = tmp_path / "result.json"
    path.write_bytes(text.encode("latin-1"))
    assert stored_spec(path) is None


def test_a_campaign_without_a_cell_is_refused(root):
    only = {name: {"methods": []} for name in campaign()["workloads"]}
    with pytest.raises(ConfigError, match=r"^only: expected at least one cell of the campaign, got none;"):
        plan(root, only=only).cells  # noqa: B018


def test_a_missing_result_has_no_spec(tmp_path):
    assert stored_spec(tmp_path / "result.json") is None


def test_a_spec_holds_all_that_decides_what_a_cell_measures_and_nothing_else(root):
    made = plan(root, sessions=2, engine={"kind": "embedded", "python": "elsewhere", "num_threads": 2})
    spec = made.specs["tp1-ddtree-b8-s2.pair"]
    values = campaign()
    assert {key: spec[key] for key in ("campaign", "tp", "session", "repeats", "api", "seed")} == {
        "campaign": values["campaign"],
        "tp": 1,
        "session": 2,
        "repeats": values.get("repeats", 1),
        "api": values.get("api", "generate"),
        "seed": values.get("seed", 0),
    }
    dumped = made.campaign.model_dump(mode="json")
    assert spec["model"] == dumped["models"]["tiny"]
    assert spec["method"] == dumped["methods"]["ddtree-b8"]
    assert spec["engine"] == {key: value for key, value in dumped["engine"].items() if key != "python"}
    for key, section, name in (
        ("workload", dumped["workloads"]["pair"], "prompts"),
        ("warmup", dumped["warmup"], "warmup"),
    ):
        prompts = {"prompts": [{"id": name, "type": "prose", "text": name}]}
        assert spec[key] == section | {"content_sha256": sha256_text(canonical_json(prompts))}
    assert len(spec) == 11
