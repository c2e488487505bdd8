"""Settings and model folders that do not fit end in one sentence, before anything runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import LLAMA3_ROPE

from draftbench.engine.config import Llama3Scaling, read_target_config
from draftbench.engine.factory import has_bfloat16_instructions, load_engine, resolve_dtype
from draftbench.errors import ConfigError, DraftbenchError, ShapeError


def with_config(source: Path, directory: Path, **changes: object) -> Path:
    """A copy of a model folder with some keys of its config.json changed; None removes a key."""
    directory.mkdir()
    for path in source.iterdir():
        (directory / path.name).symlink_to(path)
    config = json.loads((source / "config.json").read_text()) | changes
    (directory / "config.json").unlink()
    (directory / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value is not None})
    )
    return directory


LLAMA3 = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"head_dim": 16}, {"head_dim": 16}),
        ({"head_dim": None}, {"head_dim": 8}),
        ({"num_key_value_heads": None}, {"num_kv_heads": 6}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}}, {"rope_theta": 5e4}),
        ({"rope_parameters": None, "rope_theta": 5e4}, {"rope_theta": 5e4, "rope_scaling": None}),
        ({"rope_parameters": None}, {"rope_theta": 1e4}),
        (
            {"rope_parameters": None, "rope_scaling": LLAMA3, "rope_theta": 5e5},
            {"rope_theta": 5e5, "rope_scaling": Llama3Scaling(8.0, 1.0, 4.0, 32)},
        ),
        (
            {"rope_parameters": LLAMA3 | {"rope_theta": 5e5, "rope_type": None, "type": "llama3"}},
            {"rope_theta": 5e5, "rope_scaling": Llama3Scaling(8.0, 1.0, 4.0, 32)},
        ),
    ],
)
def test_every_form_of_a_configuration_is_understood(settings, tmp_path, changes, expected):
    block = read_target_config(with_config(settings.model_path, tmp_path / "target", **changes)).block
    assert {name: getattr(block, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("config", "generation", "expected"), [(5, 7, {5, 7}), ([5, 6], None, {5, 6}), (None, [7], {7})]
)
def test_a_text_ends_at_the_tokens_of_both_configurations(settings, tmp_path, config, generation, expected):
    path = with_config(settings.model_path, tmp_path / "target", eos_token_id=config)
    (path / "generation_config.json").unlink()
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    assert read_target_config(path).eos_token_ids == expected
    (path / "generation_config.json").unlink()
    assert read_target_config(path).eos_token_ids == expected - ({7} if generation else set())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64}, "expected hidden_size 48 to fit the target, got 64"),
        ({"vocab_size": 40}, "expected vocab_size 32 to fit the target, got 40"),
        ({"num_target_layers": 5}, "expected num_target_layers 4 to fit the target, got 5"),
        ({"block_size": 1}, "expected block_size at least 2"),
        ({"dflash_config": {"target_layer_ids": [1, 4], "mask_token_id": 2}}, "layers from 0 to 3"),
        ({"dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 32}}, "an id below 32"),
    ],
)
def test_a_drafter_made_for_another_target_is_named_with_what_differs(
    draft_settings, tmp_path, changes, message
):
    path = with_config(draft_settings.draft_model_path, tmp_path / "drafter", **changes)
    with pytest.raises(ShapeError, match=message) as caught:
        load_engine(replace(draft_settings, draft_model_path=path))
    assert str(path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dflash_config": None}, "expected dflash_config with target_layer_ids"),
        ({"block_size": None}, "expected an integer block_size, got None"),
        ({"attention_bias": True}, "expected attention_bias False, got True"),
        ({"layer_types": ["sliding_attention"]}, "expected layer_types of full_attention only"),
    ],
)
def test_a_folder_that_is_no_dflash_drafter_is_refused(draft_settings, tmp_path, changes, message):
    path = with_config(draft_settings.draft_model_path, tmp_path / "drafter", **changes)
    with pytest.raises(ConfigError, match=message):
        load_engine(replace(draft_settings, draft_model_path=path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "expected model_type 'llama', got 'mamba'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "expected rope_type 'default' or 'llama3', got 'yarn'"),
        ({"hidden_act": "gelu"}, "expected hidden_act 'silu', got 'gelu'"),
    ],
)
def test_a_target_of_another_family_is_refused(settings, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        load_engine(replace(settings, model_path=with_config(settings.model_path, tmp_path / "x", **changes)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context_length": 513}, "expected context_length from 2 to 512, got 513"),
        ({"max_running_requests": 0}, "expected max_running_requests from 1 to 1024, got 0"),
        ({"num_threads": 0}, "expected num_threads from 1 to 1024, got 0"),
        ({"dtype": "float16"}, "expected dtype float32 or bfloat16 on a CPU, got float16"),
        ({"model_path": Path("nowhere")}, "expected a JSON object in nowhere/config.json"),
    ],
)
def test_a_setting_out_of_range_is_refused(settings, changes, message):
    with pytest.raises(ConfigError, match=message):
        load_engine(replace(settings, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"draft_model_path": None},
            "expected algorithm and draft_model_path together, got DFLASH and no drafter",
        ),
        ({"algorithm": None}, "expected algorithm and draft_model_path together, got no algorithm and /"),
        ({"budget": 5}, "expected budget with DDTREE only, got it with DFLASH"),
        ({"algorithm": None, "draft_model_path": None, "budget": 5}, "DDTREE only, got it with None"),
        ({"algorithm": "DDTREE", "budget": 0}, "expected budget from 1 to 1024, got 0"),
        ({"block_size": 7}, "expected block_size from 2 to 6, got 7"),
    ],
)
def test_a_draft_setting_that_does_not_fit_is_refused(draft_settings, changes, message):
    with pytest.raises(ConfigError, match=message):
        load_engine(replace(draft_settings, **changes))


def test_a_missing_tensor_is_named(draft_settings, tmp_path):
    weights = load_file(draft_settings.draft_model_path / "model.safetensors")
    del weights["layers.1.self_attn.q_norm.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((draft_settings.draft_model_path / "config.json").read_bytes())
    with pytest.raises(DraftbenchError, match=r"expected the tensor layers\.1\.self_attn\.q_norm\.weight"):
        load_engine(replace(draft_settings, draft_model_path=tmp_path))


def test_a_tensor_of_another_shape_is_named(settings, tmp_path):
    path = with_config(settings.model_path, tmp_path / "target", intermediate_size=72)
    with pytest.raises(ShapeError, match=r"mlp\.gate_proj\.weight of shape \[72, 48\], got \[80, 48\]"):
        load_engine(replace(settings, model_path=path))


def test_a_truncated_weight_file_is_named(settings, tmp_path):
    path = with_config(settings.model_path, tmp_path / "target")
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"expected safetensors in .*/target/model\.safetensors"):
        load_engine(replace(settings, model_path=path))


def test_weights_in_several_files_load_like_one_file(settings, start_engine, tmp_path):
    path = with_config(settings.model_path, tmp_path / "target")
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    places = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(weights)}
    for file in set(places.values()):
        save_file({name: weights[name] for name in weights if places[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert start_engine(model_path=path).is_alive


def test_the_automatic_dtype_of_a_cpu_is_bfloat16_where_it_has_instructions_for_it():
    expected = torch.bfloat16 if has_bfloat16_instructions() else torch.float32
    assert resolve_dtype("auto", torch.device("cpu")) == expected
