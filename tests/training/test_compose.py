"""Prompts composed from the shipped task lists, and what is kept out of them."""

from pathlib import Path

import pytest

from draftbench.errors import ConfigError
from draftbench.training.compose import KeptOut, TaskList, compose, load_task_list, texts_of
from draftbench.training.datasets import composed_prompts, kept_out_texts, natural_prompts, topic_lines
from draftbench.training.settings import load_run

ROOT = Path(__file__).resolve().parents[2]
CAMPAIGN_TEXTS = sorted(
    [*(ROOT / "config/prompts").glob("*.yaml"), *(ROOT / "config/scenarios").glob("*.yaml")]
)


@pytest.fixture(scope="module")
def run():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # the paths of a run are relative to the project
        yield load_run(Path("config/train-smollm2.yaml"))


@pytest.fixture(scope="module")
def prompts(run):
    """As many prompts as two thirds of a second allow, made as for training."""
    data = run.data.model_copy(update={"num_composed": 4000})
    return composed_prompts(data, kept_out_texts(run))


def test_no_training_prompt_is_near_a_prompt_of_a_campaign(prompts):
    campaign = KeptOut([text for path in CAMPAIGN_TEXTS for text in texts_of(path)], max_overlap=0.3)
    assert max(campaign.overlap(prompt.text) for prompt in prompts) <= 0.3


def test_no_training_prompt_is_near_a_natural_prompt(run, prompts):
    natural = KeptOut(texts_of(Path(run.evaluation.natural_prompts)), max_overlap=0.3)
    assert max(natural.overlap(prompt.text) for prompt in prompts) <= 0.3


def test_a_campaigns_own_prompt_would_be_dropped(run):
    kept_out = kept_out_texts(run)
    assert all(kept_out.is_near(text) for path in CAMPAIGN_TEXTS for text in texts_of(path))


def test_prompts_differ_and_come_from_every_list(run, prompts):
    assert len({prompt.text for prompt in prompts}) == len(prompts) == 4000 + run.data.num_held_out
    assert len({prompt.kind for prompt in prompts}) == len(run.data.task_lists)


def test_no_slot_is_left_open(prompts):
    names = {
        name for path in (ROOT / "config/train/tasks").glob("*.yaml") for name in load_task_list(path).slots
    }
    texts = [text for prompt in prompts for text in (prompt.text, *prompt.follow_ups, prompt.system or "")]
    assert [text for text in texts if any(f"{{{name}}}" in text for name in names)] == []


def test_the_same_seed_gives_the_same_prompts(run, prompts):
    data = run.data.model_copy(update={"num_composed": 4000})
    assert composed_prompts(data, kept_out_texts(run)) == prompts


def test_topic_lines_are_filled(run):
    data = run.data.model_copy(update={"num_sampled": 50})
    lines = topic_lines(data)
    assert len(lines) == 50
    assert not any("{" in line for line in lines)


def test_the_natural_set_has_a_hundred_prompts_with_types(run):
    natural = natural_prompts(Path(run.evaluation.natural_prompts))
    assert len({item["text"] for item in natural}) == len({item["id"] for item in natural}) == 100
    assert len({item["type"] for item in natural}) == 8


def test_a_used_up_list_is_left_out_and_an_empty_lot_is_an_error():
    small = TaskList("small", ("say {word}",), {"word": ("a", "b")}, (), (), ())
    large = TaskList("large", ("count to {n}",), {"n": (1, 500)}, (), (), ())
    nothing = KeptOut([], max_overlap=0.3)
    kinds = [prompt.kind for prompt in compose([small, large], 40, nothing, seed=0)]
    assert (kinds.count("small"), kinds.count("large")) == (2, 38)
    with pytest.raises(ConfigError, match="room for 5 distinct prompts, got 2"):
        compose([small], 5, nothing, seed=0)


def test_a_template_with_an_unknown_slot_is_refused(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("kind: x\ntemplates: ['a {thing}']\nslots: {}\n")
    with pytest.raises(ConfigError, match="thing"):
        load_task_list(path)
