"""A whole training run at toy size: responses, training, evaluation, as the three rules do it."""

import json
import multiprocessing
import time
from pathlib import Path

import pytest
import tiny
import yaml

from draftbench.errors import ConfigError
from draftbench.training import steps
from draftbench.training.corpus import load_corpus
from draftbench.training.settings import check_run, load_run
from draftbench.training.trainer import rate_factor

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run(reference, folder, tmp_path_factory):
    """A run with its own small task list, in a directory of its own."""
    home = tmp_path_factory.mktemp("run")
    (home / "tasks.yaml").write_text(
        "kind: toy\ntemplates: ['Say {word} {n}.']\nfollow_ups: ['More {word}.', 'Again.']\n"
        "slots: {word: [a, b, c], n: {low: 1, high: 99}}\n"
    )
    (home / "topics.yaml").write_text("kind: sampled\ntemplates: ['Talk of {t}.']\nslots: {t: [x, y, z]}\n")
    prompts = [{"id": f"p{n}", "type": "toy", "text": f"Write number {n} out"} for n in range(4)]
    (home / "natural.yaml").write_text(yaml.safe_dump({"prompts": prompts}))
    values = {
        "target": {"source": f"path:{folder}"},
        "drafter_folder": str(home / "drafter"),
        "corpus_folder": str(home / "corpus"),
        "device": "cpu",
        "data": {
            "task_lists": [str(home / "tasks.yaml")],
            "topics": str(home / "topics.yaml"),
            "kept_out": [],
            "num_composed": 90,
            "num_sampled": 6,
            "num_held_out": 8,
            "max_turns": 2,
            "multi_turn_share": 0.5,
            "greedy_share": 0.9,
            "past_end_share": 0.5,
            "max_context_tokens": 160,
            "max_new_tokens": 40,
            "drop_below": 0.0,
        },
        "drafter": {"num_layers": 2, "block_size": 8, "mask_token_id": tiny.MASK},
        "training": {
            "row_length": 160,
            "rows_per_step": 4,
            "anchors_per_row": 16,
            "num_steps": 60,
            "optimiser": "muon",
            "learning_rate": 0.02,
            "loss": {"weighting": "prefix"},
            "evaluate_every": 1000,
        },
        "evaluation": {
            "natural_prompts": str(home / "natural.yaml"),
            "max_new_tokens": 48,
            "budgets": [4, 8],
        },
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)  # staged models go below the working directory
        yield check_run(values, home / "run.yaml")


@pytest.fixture(scope="module")
def corpus(run):
    """The corpora, made where an earlier run on eight devices had left its own."""
    folder = Path(run.corpus_folder)
    folder.mkdir()
    (folder / "train-7.npz").write_bytes(b"of an earlier run")
    steps.generate_responses(run)
    return folder


@pytest.fixture(scope="module")
def log(run, corpus):
    steps.train_drafter(run)
    lines = (Path(run.drafter_folder) / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def evaluation(run, log):
    steps.evaluate_drafter(run)
    return json.loads((Path(run.drafter_folder) / "evaluation.json").read_text())


def test_conversations_grow_and_stay_within_the_context(corpus):
    texts = load_corpus([corpus / "train-0.npz"])
    num_responses = [int((text.is_response[1:] > text.is_response[:-1]).sum()) for text in texts]
    assert set(num_responses) == {1, 2}
    assert max(len(text.ids) for text in texts) <= 160


def test_nothing_of_an_earlier_run_is_trained_on(corpus):
    assert [path.name for path in corpus.glob("train-*")] == ["train-0.npz"]


def test_both_temperatures_are_there(corpus):
    assert {text.is_greedy for text in load_corpus([corpus / "train-0.npz"])} == {True, False}


def test_tau_rises_with_training(run, log, tmp_path):
    at_once = run.training.model_copy(update={"num_steps": 1})  # its rate is still zero
    (tmp_path / "log.jsonl").write_text("a line of an earlier run\n")
    steps.train_drafter(run.model_copy(update={"training": at_once, "drafter_folder": str(tmp_path)}))
    (untrained,) = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert log[-1]["tau_rounds"] > untrained["tau_rounds"] + 0.2


def test_the_evaluation_agrees_with_decoding_for_real(evaluation):
    walked, decoded = evaluation["natural"], evaluation["decoded"]
    assert decoded["dflash"]["tau"] == pytest.approx(walked["linear"], rel=0.2)
    assert decoded["ddtree-b8"]["tau"] == pytest.approx(walked["trees"]["8"], rel=0.2)


def test_the_evaluation_names_its_checkpoint_and_types(evaluation):
    assert len(evaluation["model_sha256"]) == 64
    assert list(evaluation["decoded"]["dflash"]["by_type"]) == ["toy"]


@pytest.mark.slow
def test_two_processes_train_one_drafter(run, corpus, tmp_path):
    shorter = run.training.model_copy(update={"num_steps": 4})
    changed = run.model_copy(update={"training": shorter, "drafter_folder": str(tmp_path)})
    steps.on_every_device(steps.train_share, changed, 2)
    assert (tmp_path / "model.safetensors").exists()


def fail_as_the_first(_run, number, _count, _meeting):
    if number == 0:
        raise OSError("no space left")
    time.sleep(600)


def test_an_error_of_the_first_process_ends_the_others(run):
    with pytest.raises(OSError, match="no space left"):
        steps.on_every_device(fail_as_the_first, run, 2)
    for process in multiprocessing.active_children():
        process.join(10)
    assert multiprocessing.active_children() == []


def test_the_rate_warms_up_and_ends_at_zero():
    assert [rate_factor(at, 0.1) for at in (0, 0.05, 0.1)] == [0, 0.5, 1]
    assert rate_factor(1.0, 0.1) == pytest.approx(0)


def test_the_shipped_run_is_valid():
    assert load_run(ROOT / "config/train-smollm2.yaml").drafter.block_size == 16


def test_a_wrong_key_is_named_with_its_file(tmp_path):
    values = yaml.safe_load((ROOT / "config/train-smollm2.yaml").read_text())
    values["training"]["learning_rat"] = 1
    path = tmp_path / "train-x.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=r"train-x\.yaml: training\.learning_rat"):
        load_run(path)


def test_a_key_that_stands_twice_is_refused(tmp_path):
    path = tmp_path / "train-x.yaml"
    path.write_text((ROOT / "config/train-smollm2.yaml").read_text() + "corpus_folder: twice\n")
    with pytest.raises(ConfigError, match=r"train-x\.yaml: corpus_folder: expected the key once"):
        load_run(path)


def test_a_file_that_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"nowhere/train-x\.yaml: expected a readable YAML file"):
        load_run(Path("nowhere/train-x.yaml"))
