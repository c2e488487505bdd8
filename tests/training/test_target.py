"""The target is transformers' model, feature by feature."""

import json

import pytest
import tiny
import torch

from draftbench.errors import StagingError
from draftbench.training.attention import dense_mask
from draftbench.training.blocks import allow_target
from draftbench.training.target import TargetShape


@pytest.fixture(scope="module")
def both(target, reference):
    """Hidden states and features of a random text, ours and transformers' hidden states."""
    conversation = tiny.greedy_texts(target, tiny.random_prompts(1), 20)[0]
    batch = tiny.make_batch([conversation], len(conversation.ids))
    mask = dense_mask(allow_target(batch), 1, batch.ids.shape[1], batch.ids.shape[1])
    ours = target(batch.ids, batch.positions, mask, (1, 3))
    with torch.inference_mode():
        theirs = reference(batch.ids, output_hidden_states=True)
    return ours, theirs


def test_logits_equal_those_of_transformers(target, both):
    (hidden, _), theirs = both
    assert torch.allclose(target.logits(hidden[0]), theirs.logits[0], atol=1e-4)


def test_a_feature_is_the_residual_stream_after_its_layer(both):
    (_, features), theirs = both
    expected = torch.cat([theirs.hidden_states[2], theirs.hidden_states[4]], dim=-1)
    assert torch.allclose(features, expected, atol=1e-4)


def test_a_scaled_rotary_embedding_is_refused(tmp_path, reference, folder):
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(StagingError, match="unscaled rotary"):
        TargetShape.from_folder(tmp_path)
