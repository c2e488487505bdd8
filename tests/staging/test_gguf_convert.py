"""A dequantised GGUF is the model that transformers reads from it."""

import json

import pytest
import torch
from tests.staging.tiny_gguf import CHAT_TEMPLATE, write_tiny_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from draftbench.errors import StagingError
from draftbench.staging.gguf_convert import convert
from draftbench.staging.gguf_sizes import num_staged_bytes


@pytest.mark.parametrize("is_tied", [True, False])
def test_weights_equal_those_that_transformers_dequantises(tmp_path, is_tied):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", is_tied=is_tied)
    convert(path, tmp_path / "out")
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    got = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    weights = got.state_dict()
    assert weights.keys() == expected.state_dict().keys()
    assert [name for name, w in expected.state_dict().items() if not torch.equal(w, weights[name])] == []
    ids = torch.tensor([[3, 4, 6, 7, 5]])
    with torch.inference_mode():
        assert torch.equal(got(ids).logits, expected(ids).logits)


def test_tokenizer_and_chat_template_are_kept(tmp_path):
    convert(write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("ab ab")["input_ids"] == [6, 7]
    assert tokenizer.eos_token == "<|im_end|>"  # noqa: S105 - not a password
    assert tokenizer.chat_template == CHAT_TEMPLATE


def test_end_of_text_ids_reach_both_configurations(tmp_path):
    convert(write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "out")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / name).read_text())["eos_token_id"] == 2


def test_the_configuration_is_the_files_own(tmp_path):
    convert(write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    expected = {"rope_theta": 50000.0, "rms_norm_eps": 1e-5, "max_position_embeddings": 128, "vocab_size": 8}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    assert config | expected | ids == config
    assert json.loads((tmp_path / "out/generation_config.json").read_text()) == ids


def test_other_users_may_read_what_was_converted(tmp_path):
    convert(write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "out")
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").glob("*.safetensors")} == {0o644}


def test_the_size_is_known_before_the_conversion(tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    convert(path, tmp_path / "out")
    written = (tmp_path / "out/model.safetensors").stat().st_size
    assert 0 < written - num_staged_bytes(path) < 5000  # the header


def test_another_architecture_is_refused(tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", architecture="qwen2")
    with pytest.raises(StagingError, match=r"tiny.gguf: expected general.architecture llama, got 'qwen2'"):
        convert(path, tmp_path / "out")


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"not a gguf at all, but long enough to be read")
    with pytest.raises(StagingError, match=r"tiny.gguf: expected a GGUF file"):
        convert(path, tmp_path / "out")
