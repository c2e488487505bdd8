"""A cost-scaled replica is called what it is."""

import pytest
from synthetic import campaign_values, write_campaign

from draftbench.report.replicas import replica_sentence, replicas, shape_text
from draftbench.report.summarise import summarise

SHAPE = {
    "hidden_factor": 4,
    "num_layers": 76,
    "intermediate_size": 49152,
    "num_attention_heads": 36,
    "num_key_value_heads": 12,
}


@pytest.fixture
def summary(tmp_path):
    """Of a small model and its replica."""
    values = campaign_values(budgets=(), models=("small",))
    values["workloads"] = {"long": values["workloads"]["long"]}
    target, drafter = values["models"]["small"].values()
    values["models"]["large"] = {
        "target": {**target, "scale_to": SHAPE, "size_bytes": 54_600_000_000},
        "drafter": drafter,
    }
    return summarise(*write_campaign(tmp_path / "c", values), tmp_path / "build")


def test_only_a_scaled_model_is_a_replica_and_its_texts_are_the_small_model_s(summary):
    assert replicas(summary) == ["large"]
    assert replica_sentence(summary, "small") is None
    said = replica_sentence(summary, "large")
    assert said.startswith("large is a cost-scaled replica")
    assert "In exact arithmetic its tokens" in said


def test_the_shape_is_told_with_the_bytes_that_are_known(summary):
    assert shape_text(summary.models["large"]) == (
        "76 layers, 4 times the small model’s hidden width, intermediate size 49152, 36 heads, "
        "12 KV heads; target 54.6\u00a0GB"
    )


def test_a_shape_says_no_more_than_the_campaign(summary):
    model = summary.models["large"].model_copy(update={"scale_to": {"num_layers": 9}, "target_bytes": None})
    assert shape_text(model) == "9 layers"
