"""The scaled pair is the same function at another cost."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tests.staging.models import CAPTURED_LAYERS, NUM_LAYERS, logits_and_features, make_drafter, make_target

from draftbench.errors import StagingError
from draftbench.staging.noise import Noise
from draftbench.staging.scale import (
    ScaledShape,
    layer_places,
    plan_tensors,
    scale_checkpoint,
    scale_pair,
    scaled_config,
)

SHAPE = ScaledShape(
    hidden_factor=4, num_layers=7, intermediate_size=256, num_attention_heads=36, num_key_value_heads=12
)
TP8_SHAPE = replace(SHAPE, num_attention_heads=48, num_key_value_heads=16)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return make_target(tmp_path / "target")


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return make_drafter(tmp_path / "drafter")


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as stored:
            found |= {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize("shape", [SHAPE, TP8_SHAPE], ids=["36 heads", "48 heads"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_logits_and_captured_features_stay_exactly_the_same(
    tmp_path: Path, shape: ScaledShape, is_tied: bool
) -> None:
    target = make_target(tmp_path / "target", is_tied=is_tied)
    scale_checkpoint(target, tmp_path / "scaled", shape)
    logits, features = logits_and_features(target, CAPTURED_LAYERS)
    places = layer_places(NUM_LAYERS, shape.num_layers)
    scaled_layers = tuple(places[layer] for layer in CAPTURED_LAYERS)
    scaled_logits, scaled_features = logits_and_features(tmp_path / "scaled", scaled_layers)
    assert torch.equal(scaled_logits, logits)
    assert torch.equal(scaled_features[..., : features.shape[-1]], features)
    assert not scaled_features[..., features.shape[-1] :].any()


def test_the_drafter_reads_the_same_layers_at_their_new_places(
    target: Path, drafter: Path, tmp_path: Path
) -> None:
    scale_pair(target, drafter, tmp_path / "big", tmp_path / "big-drafter", SHAPE)
    config = json.loads((tmp_path / "big-drafter" / "config.json").read_text())
    assert config["num_target_layers"] == SHAPE.num_layers
    assert config["dflash_config"]["target_layer_ids"] == [0, 1, 5]
    assert config["hidden_size"] == 288
    assert config["rms_norm_eps"] == 1e-5 / 4


def test_the_drafter_projects_captured_features_to_the_same_context(drafter: Path, tmp_path: Path) -> None:
    scale_checkpoint(drafter, tmp_path / "scaled", SHAPE)
    features = torch.randn(5, len(CAPTURED_LAYERS), 72, generator=torch.Generator().manual_seed(3))
    wide = torch.nn.functional.pad(features, (0, 216))
    context = features.flatten(1).double() @ tensors(drafter)["fc.weight"].double().T
    wide_context = wide.flatten(1).double() @ tensors(tmp_path / "scaled")["fc.weight"].double().T
    # float64: a longer row is summed in another order, which is worth some last bits
    torch.testing.assert_close(wide_context[:, :72], context, rtol=0, atol=1e-13)
    assert not wide_context[:, 72:].any()


def test_head_norms_of_the_drafter_give_the_same_queries(drafter: Path, tmp_path: Path) -> None:
    scale_checkpoint(drafter, tmp_path / "scaled", SHAPE)
    hidden = torch.randn(5, 72, generator=torch.Generator().manual_seed(3))
    queries = []
    for folder, inputs in (
        (drafter, hidden),
        (tmp_path / "scaled", torch.nn.functional.pad(hidden, (0, 216))),
    ):
        weights = tensors(folder)
        eps = json.loads((folder / "config.json").read_text())["rms_norm_eps"]
        normed = torch.nn.functional.rms_norm(
            inputs, inputs.shape[-1:], weights["layers.0.input_layernorm.weight"], eps
        )
        heads = (normed @ weights["layers.0.self_attn.q_proj.weight"].T).unflatten(1, (-1, 8))
        queries.append(
            torch.nn.functional.rms_norm(heads, (8,), weights["layers.0.self_attn.q_norm.weight"], eps)
        )
    assert torch.equal(queries[1][:, :9], queries[0])


def test_only_what_must_be_zero_is_zero(target: Path, tmp_path: Path) -> None:
    scale_checkpoint(target, tmp_path / "scaled", SHAPE)
    with_zeros = {name for name, tensor in tensors(tmp_path / "scaled").items() if (tensor == 0).any()}
    projections = {
        f"model.layers.{layer}.{name}.weight"
        for layer in range(SHAPE.num_layers)
        for name in ("self_attn.o_proj", "mlp.down_proj")
    }
    assert with_zeros == projections | {"model.embed_tokens.weight"}


def test_the_same_seed_gives_the_same_files_in_any_number_of_shards(target: Path, tmp_path: Path) -> None:
    scale_checkpoint(target, tmp_path / "one", SHAPE, 5)
    scale_checkpoint(target, tmp_path / "many", SHAPE, 5, shard_bytes=1 << 20)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    one, many = tensors(tmp_path / "one"), tensors(tmp_path / "many")
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_another_seed_changes_the_new_weights_and_not_the_function(target: Path, tmp_path: Path) -> None:
    scale_checkpoint(target, tmp_path / "a", SHAPE, 1)
    scale_checkpoint(target, tmp_path / "b", SHAPE, 2)
    name = "model.layers.1.mlp.up_proj.weight"
    assert not torch.equal(tensors(tmp_path / "a")[name], tensors(tmp_path / "b")[name])
    assert torch.equal(
        logits_and_features(tmp_path / "a", (0,))[0], logits_and_features(tmp_path / "b", (0,))[0]
    )


def test_weights_are_cast_to_the_asked_size_before_they_are_scaled(target: Path, tmp_path: Path) -> None:
    scale_checkpoint(target, tmp_path / "scaled", replace(SHAPE, weight_bits=16))
    scaled, original = tensors(tmp_path / "scaled"), tensors(target)
    assert {tensor.dtype for tensor in scaled.values()} == {torch.bfloat16}
    norm = "model.norm.weight"
    assert torch.equal(scaled[norm][:72] * 2, original[norm].bfloat16())
    assert json.loads((tmp_path / "scaled" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_sharded_checkpoint_loads_through_its_index(target: Path, tmp_path: Path) -> None:
    scale_checkpoint(target, tmp_path / "scaled", SHAPE, shard_bytes=1 << 20)
    assert torch.equal(
        logits_and_features(tmp_path / "scaled", (0,))[0], logits_and_features(target, (0,))[0]
    )


def test_files_beside_the_weights_travel_along(target: Path, tmp_path: Path) -> None:
    (target / "tokenizer.json").write_text("{}")
    scale_checkpoint(target, tmp_path / "scaled", SHAPE)
    assert (tmp_path / "scaled" / "tokenizer.json").read_text() == "{}"
    record = json.loads((tmp_path / "scaled" / "scaling.json").read_text())
    assert record["shape"]["num_layers"] == SHAPE.num_layers
    assert record["original"]["hidden_size"] == 72


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_noise_is_finite_and_of_one_size_in_every_dtype(dtype: torch.dtype) -> None:
    name = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}[dtype]
    values = torch.from_numpy(Noise(0, "weight", name).take(100_001).copy()).view(dtype).float()
    assert values.shape == (100_001,)
    assert values.abs().min() >= 2**-7
    assert values.abs().max() < 2**-3
    assert abs(float(values.mean())) < 1e-3
    assert values.unique().numel() >= 1024


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_factor": 2}, "hidden_factor: expected a power of four"),
        ({"num_layers": 3}, "num_hidden_layers 3 is below the 4"),
        ({"weight_bits": 8}, "weight_bits: expected 16, 32 or 0"),
        ({"num_key_value_heads": 9}, "expected 3 query heads per KV head"),
    ],
)
def test_a_shape_that_cannot_hold_the_model_is_refused(
    target: Path, tmp_path: Path, change: dict[str, int], sentence: str
) -> None:
    with pytest.raises(StagingError, match=sentence):
        scale_checkpoint(target, tmp_path / "scaled", replace(SHAPE, **change))
    assert not (tmp_path / "scaled").exists()


def test_a_tensor_without_a_rule_is_named(drafter: Path, tmp_path: Path) -> None:
    odd = tensors(drafter) | {"layers.0.self_attn.q_proj.bias": torch.zeros(72)}
    save_file(odd, drafter / "model.safetensors", {"format": "pt"})
    with pytest.raises(StagingError, match=r"layers\.0\.self_attn\.q_proj\.bias has no scaling rule"):
        scale_checkpoint(drafter, tmp_path / "scaled", SHAPE)


def test_a_misspelt_key_of_scale_to_is_named() -> None:
    with pytest.raises(StagingError, match="num_layer is missing or unknown"):
        ScaledShape.from_mapping({"num_layer": 76})


def test_the_27b_class_weighs_what_the_missions_pair_weighs(tmp_path: Path) -> None:
    shape = ScaledShape(
        hidden_factor=4,
        num_layers=76,
        intermediate_size=49152,
        num_attention_heads=36,
        num_key_value_heads=12,
    )
    drafter = Path("resources/drafters/smollm2-135m-instruct-dflash")
    config = json.loads((drafter / "config.json").read_text())
    planned = plan_tensors(drafter, config, scaled_config(config, shape, drafter), 0)
    assert round(sum(tensor.num_bytes for tensor in planned) / 1e9, 1) == 3.6
