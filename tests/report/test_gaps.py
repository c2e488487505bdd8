import contextlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from synthetic import campaign_values, write_campaign
from test_summarise import find

from draftbench.client.prompts import load_prompts
from draftbench.client.template import ChatTemplate
from draftbench.files import sha256_file
from draftbench.report.load import GAPS_FILE
from draftbench.report.summarise import summarise
from draftbench.report.teacher import Teacher

ROOT = Path(__file__).resolve().parent.parent.parent
PROMPTS = "config/prompts/single.yaml"
NUM_TOKENS = 10
POSITION = 5


@pytest.fixture(scope="module")
def teacher(staged_target):
    return Teacher(staged_target, "float32", 256)


def continue_greedily(teacher, prompt_ids, num_tokens):
    """Greedy decoding by whole passes, the slowest way there is."""
    output_ids = []
    for _ in range(num_tokens):
        output_ids.append(int(teacher.logits(prompt_ids, [*output_ids, 0])[-1].argmax()))
    return output_ids


def test_one_pass_along_an_output_sees_what_decoding_it_saw(teacher):
    prompt_ids = teacher.encode("<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n")
    output_ids = continue_greedily(teacher, prompt_ids, 6)
    logits = teacher.logits(prompt_ids, output_ids)
    assert logits.shape[0] == 6
    assert logits.argmax(dim=1).tolist() == output_ids


def test_the_gap_is_the_difference_of_the_two_logits(teacher):
    logits = torch.tensor([1.0, -8.0, 3.5])
    gap = teacher.gap(logits, 2, 0)
    assert gap.gap == 2.5
    assert gap.resolution == pytest.approx(6 * 2**-24 * 8)


@pytest.fixture(scope="module")
def measured(tmp_path_factory, staged_target, teacher):
    """Results whose baseline output of one prompt is real, and DFlash's differs from it by a wrong token."""
    values = campaign_values(budgets=(8,))
    values["workloads"] = {"long": {"kind": "single", "prompts": PROMPTS, "max_tokens": NUM_TOKENS}}
    directory = tmp_path_factory.mktemp("gaps")
    paths = write_campaign(directory / "campaign", values)
    prompt = load_prompts(ROOT / PROMPTS)[0]
    prompt_ids = teacher.encode(ChatTemplate(staged_target).render(prompt.messages()))
    output_ids = continue_greedily(teacher, prompt_ids, NUM_TOKENS)
    wrong = [*output_ids]
    wrong[POSITION] = int(teacher.logits(prompt_ids, output_ids)[POSITION].argmin())
    hashes = {"model.safetensors": sha256_file(staged_target / "model.safetensors")}
    for path in paths[2].glob("*.json"):
        result = json.loads(path.read_text())
        result["identity"]["server_info"] = {"model_path": str(staged_target), "dtype": "float32"}
        result["identity"]["environment"]["target_sha256"] = hashes
        first = result["requests"][0]
        first["prompt_id"] = prompt.id
        first["num_prompt_tokens"] = len(prompt_ids)
        first["output_ids"] = wrong if "dflash" in path.name else output_ids
        result |= {"requests": [first], "num_attempted": 1, "num_ok": 1}
        path.write_text(json.dumps(result))
    return directory, paths


def summarise_here(measured, **options):
    directory, paths = measured
    with contextlib.chdir(ROOT):  # a campaign's file names are relative to it
        return summarise(*paths, directory / "build", **options)


def test_without_a_measured_gap_a_difference_is_neither_tie_nor_fault(measured):
    row = find(summarise_here(measured, can_measure_gaps=False).exactness, method="dflash")
    assert (row.num_ties, row.num_faults, row.num_unmeasured) == (0, 0, 1)


def test_a_wrong_token_is_a_fault_and_takes_the_method_its_speedup(measured):
    summary = summarise_here(measured)
    row = find(summary.exactness, method="dflash")
    assert (row.num_ties, row.num_faults, row.first_position) == (0, 1, POSITION)
    comparison = find(summary.comparisons, method="dflash", workload=None)
    assert (comparison.evidence, comparison.mark) == (None, "fault")
    assert find(summary.comparisons, method="ddtree-b8", workload=None).evidence is not None


def test_a_measured_gap_is_kept_beside_the_results_for_machines_without_the_model(measured):
    summarise_here(measured)
    assert (measured[1][2] / GAPS_FILE).exists()
    row = find(summarise_here(measured, can_measure_gaps=False).exactness, method="dflash")
    assert row.num_faults == 1


def test_a_kept_gap_of_an_output_measured_again_is_not_used(measured):
    summarise_here(measured)
    path = measured[1][2] / "tp1-dflash.long.json"
    original = path.read_text()
    result = json.loads(original)
    result["requests"][0]["output_ids"][POSITION - 1] += 1
    path.write_text(json.dumps(result))
    try:
        row = find(summarise_here(measured, can_measure_gaps=False).exactness, method="dflash")
    finally:
        path.write_text(original)
    assert (row.num_faults, row.num_unmeasured) == (0, 1)


def test_every_gap_is_measured_along_its_own_reference(tmp_path, staged_target, teacher):
    """Two prompts, asked in another order by one of the methods, each of which has one wrong token."""
    values = campaign_values(budgets=(8,))
    values["workloads"] = {"long": {"kind": "single", "prompts": PROMPTS, "max_tokens": NUM_TOKENS}}
    paths = write_campaign(tmp_path / "campaign", values)
    template = ChatTemplate(staged_target)
    asked = {}
    for prompt in load_prompts(ROOT / PROMPTS)[:2]:
        prompt_ids = teacher.encode(template.render(prompt.messages()))
        output_ids = continue_greedily(teacher, prompt_ids, NUM_TOKENS)
        logits = teacher.logits(prompt_ids, output_ids)[POSITION]
        wrong = [*output_ids[:POSITION], int(logits.argmin()), *output_ids[POSITION + 1 :]]
        asked[prompt.id] = (len(prompt_ids), output_ids, wrong, float(logits.max() - logits.min()))
    first, second = asked
    hashes = {"model.safetensors": sha256_file(staged_target / "model.safetensors")}
    for path in paths[2].glob("*.json"):
        result = json.loads(path.read_text())
        result["identity"]["server_info"] = {"model_path": str(staged_target), "dtype": "float32"}
        result["identity"]["environment"]["target_sha256"] = hashes
        order = (second, first) if "dflash" in path.name else (first, second)
        requests = result["requests"][:2]
        for request, prompt_id in zip(requests, order, strict=True):
            num_prompt_tokens, output_ids, wrong, _ = asked[prompt_id]
            is_wrong = "tp1-ar" not in path.name and request is requests[0]
            request |= {"prompt_id": prompt_id, "num_prompt_tokens": num_prompt_tokens}
            request |= {"output_ids": wrong if is_wrong else output_ids}
        result |= {"requests": requests, "num_attempted": 2, "num_ok": 2}
        path.write_text(json.dumps(result))
    with contextlib.chdir(ROOT):
        summarise(*paths, tmp_path / "build")
    kept = json.loads((paths[2] / GAPS_FILE).read_text())["gaps"]
    gaps = {record["cell"]: record["gap"] for record in kept}
    assert gaps == {
        "tp1-dflash.long": pytest.approx(asked[second][3], rel=1e-3),
        "tp1-ddtree-b8.long": pytest.approx(asked[first][3], rel=1e-3),
    }
    assert asked[first][3] != pytest.approx(asked[second][3], rel=1e-2)


def test_no_gap_is_measured_with_other_weights_than_were_served(measured, tmp_path):
    campaign_json, specs_json, results = measured[1]
    copied = tmp_path / "results"
    shutil.copytree(results, copied, ignore=shutil.ignore_patterns(GAPS_FILE))
    path = copied / "tp1-ar.long.json"
    result = json.loads(path.read_text())
    result["identity"]["environment"]["target_sha256"] = {"model.safetensors": "0" * 64}
    path.write_text(json.dumps(result))
    with contextlib.chdir(ROOT):
        summary = summarise(campaign_json, specs_json, copied, tmp_path / "build")
    row = find(summary.exactness, method="dflash")
    assert (row.num_faults, row.num_unmeasured) == (0, 1)
    assert not (copied / GAPS_FILE).exists()
