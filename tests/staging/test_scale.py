"""The scaled pair is the same function at another cost."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tests.engine.collecting import generate, make_requests
from tests.staging.models import (
    CAPTURED_LAYERS,
    HEAD_DIM,
    HIDDEN,
    NUM_HEADS,
    NUM_LAYERS,
    logits_and_features,
    make_drafter,
    make_target,
)

from draftbench.config import Model, Source
from draftbench.engine.factory import Algorithm, EngineSettings, load_engine
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
from draftbench.staging.stage import stage_model

SHAPE = ScaledShape(
    hidden_factor=4, num_layers=7, intermediate_size=256, num_attention_heads=24, num_key_value_heads=8
)
# Of logits and features of size 1 to 10 in fp32. The transform itself loses nothing, but a library may sum
# longer rows in another order. (SmolLM2-135M at 2,304 hidden, logits up to 32: 1.0e-4.)
LAST_BITS = 1e-4
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


@pytest.mark.parametrize("shape", [SHAPE, TP8_SHAPE], ids=["24 heads", "48 heads"])
@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_logits_and_captured_features_stay_the_same(
    tmp_path: Path, shape: ScaledShape, is_tied: bool
) -> None:
    target = make_target(tmp_path / "target", is_tied=is_tied)
    scale_checkpoint(target, tmp_path / "scaled", shape)
    logits, features = logits_and_features(target, CAPTURED_LAYERS)
    places = layer_places(NUM_LAYERS, shape.num_layers)
    scaled_layers = tuple(places[layer] for layer in CAPTURED_LAYERS)
    scaled_logits, scaled_features = logits_and_features(tmp_path / "scaled", scaled_layers)
    assert (scaled_logits - logits).abs().max() <= LAST_BITS
    assert (scaled_features[..., :HIDDEN] - features).abs().max() <= LAST_BITS
    assert not scaled_features[..., HIDDEN:].any()


def test_the_drafter_reads_the_same_layers_at_their_new_places(
    target: Path, drafter: Path, tmp_path: Path
) -> None:
    scale_pair(target, drafter, tmp_path / "big", tmp_path / "big-drafter", SHAPE)
    config = json.loads((tmp_path / "big-drafter" / "config.json").read_text())
    assert config["num_target_layers"] == SHAPE.num_layers
    assert config["dflash_config"]["target_layer_ids"] == [1, 3]
    assert config["hidden_size"] == 4 * HIDDEN
    assert config["rms_norm_eps"] == 1e-5 / 4


def test_the_drafter_projects_captured_features_to_the_same_context(drafter: Path, tmp_path: Path) -> None:
    scale_checkpoint(drafter, tmp_path / "scaled", SHAPE)
    features = torch.randn(5, len(CAPTURED_LAYERS), HIDDEN, generator=torch.Generator().manual_seed(3))
    wide = torch.nn.functional.pad(features, (0, 3 * HIDDEN))
    context = features.flatten(1).double() @ tensors(drafter)["fc.weight"].double().T
    wide_context = wide.flatten(1).double() @ tensors(tmp_path / "scaled")["fc.weight"].double().T
    # float64: a longer row is summed in another order, which is worth some last bits
    torch.testing.assert_close(wide_context[:, :HIDDEN], context, rtol=0, atol=1e-13)
    assert not wide_context[:, HIDDEN:].any()


def test_head_norms_of_the_drafter_give_the_same_queries(drafter: Path, tmp_path: Path) -> None:
    scale_checkpoint(drafter, tmp_path / "scaled", SHAPE)
    hidden = torch.randn(5, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    wide = torch.nn.functional.pad(hidden, (0, 3 * HIDDEN))
    difference = queries(tmp_path / "scaled", wide)[:, :NUM_HEADS] - queries(drafter, hidden)
    assert difference.abs().max() <= 1e-12


def queries(folder: Path, inputs: torch.Tensor) -> torch.Tensor:
    """Normed queries [S, H, D] of a drafter's first layer for its inputs [S, E]."""
    weights = {name: tensor.double() for name, tensor in tensors(folder).items()}
    eps = json.loads((folder / "config.json").read_text())["rms_norm_eps"]
    rms_norm = torch.nn.functional.rms_norm
    normed = rms_norm(inputs, inputs.shape[-1:], weights["layers.0.input_layernorm.weight"], eps)
    heads = (normed @ weights["layers.0.self_attn.q_proj.weight"].T).unflatten(1, (-1, HEAD_DIM))
    return rms_norm(heads, (HEAD_DIM,), weights["layers.0.self_attn.q_norm.weight"], eps)


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
    logits, other = logits_and_features(tmp_path / "a")[0], logits_and_features(tmp_path / "b")[0]
    assert torch.equal(logits, other)


def test_weights_are_cast_to_the_asked_size_before_they_are_scaled(target: Path, tmp_path: Path) -> None:
    scale_checkpoint(target, tmp_path / "scaled", replace(SHAPE, weight_bits=16))
    scaled, original = tensors(tmp_path / "scaled"), tensors(target)
    assert {tensor.dtype for tensor in scaled.values()} == {torch.bfloat16}
    norm = "model.norm.weight"
    assert torch.equal(scaled[norm][:HIDDEN] * 2, original[norm].bfloat16())
    assert json.loads((tmp_path / "scaled" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_sharded_checkpoint_loads_through_its_index(target: Path, tmp_path: Path) -> None:
    scale_checkpoint(target, tmp_path / "scaled", SHAPE, shard_bytes=1 << 20)
    logits, other = logits_and_features(tmp_path / "scaled")[0], logits_and_features(target)[0]
    assert (logits - other).abs().max() <= LAST_BITS


def test_a_folder_whose_writing_was_interrupted_has_no_configuration(target: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "scaling.json" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        scale_checkpoint(target, tmp_path / "out", SHAPE)
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_scaled_model_is_staged_and_nothing_else_stays(target: Path, tmp_path: Path) -> None:
    root = tmp_path / "staged"
    source = Source(source=f"path:{target}", scale_to=asdict(SHAPE))
    staged = stage_model(Model(target=source), root)
    config = json.loads((staged.target_dir / "config.json").read_text())
    assert config["hidden_size"] == 4 * HIDDEN
    assert {path.name for path in root.iterdir()} == {".lock", staged.target_dir.name}
    small = Source(source=f"path:{target}", scale_to=asdict(replace(SHAPE, num_layers=1)))
    with pytest.raises(StagingError, match="num_hidden_layers 1 is below"):
        stage_model(Model(target=small), root)
    assert {path.name for path in root.iterdir()} == {".lock", staged.target_dir.name}


def test_files_beside_the_weights_travel_along(target: Path, tmp_path: Path) -> None:
    (target / "tokenizer.json").write_text("{}")
    scale_checkpoint(target, tmp_path / "scaled", SHAPE)
    assert (tmp_path / "scaled" / "tokenizer.json").read_text() == "{}"
    record = json.loads((tmp_path / "scaled" / "scaling.json").read_text())
    assert record["shape"]["num_layers"] == SHAPE.num_layers
    assert record["original"]["hidden_size"] == HIDDEN


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
        ({"num_key_value_heads": 6}, "expected 3 query heads per KV head"),
    ],
)
def test_a_shape_that_cannot_hold_the_model_is_refused(
    target: Path, tmp_path: Path, change: dict[str, int], sentence: str
) -> None:
    with pytest.raises(StagingError, match=sentence):
        scale_checkpoint(target, tmp_path / "scaled", replace(SHAPE, **change))
    assert not (tmp_path / "scaled").exists()


def test_a_tensor_without_a_rule_is_named(drafter: Path, tmp_path: Path) -> None:
    odd = tensors(drafter) | {"layers.0.self_attn.q_proj.bias": torch.zeros(HIDDEN)}
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


@pytest.mark.parametrize("shape", [SHAPE, TP8_SHAPE], ids=["24 heads", "48 heads"])
@pytest.mark.parametrize("algorithm", ["DFLASH", "DDTREE"])
def test_decoding_gives_the_same_tokens_and_accept_counts(
    target: Path, drafter: Path, tmp_path: Path, shape: ScaledShape, algorithm: Algorithm
) -> None:
    scale_pair(target, drafter, tmp_path / "big", tmp_path / "big-drafter", shape)
    pairs = ((target, drafter), (tmp_path / "big", tmp_path / "big-drafter"))
    found = [decode(*folders, algorithm) for folders in pairs]
    assert found[0] == found[1]
    num_accepted = sum(sum(histogram[1:]) for _, histogram in found[0])
    assert num_accepted > 0  # so the drafter's part is compared too


def decode(target: Path, drafter: Path, algorithm: Algorithm) -> list[tuple[list[int], tuple[int, ...]]]:
    """Tokens and accept histogram of some greedy requests, in fp32."""
    budget = 24 if algorithm == "DDTREE" else None
    settings = EngineSettings(target, drafter, algorithm, dtype="float32", device="cpu", num_threads=1)
    engine = load_engine(replace(settings, budget=budget))
    engine.start()
    try:
        requests = make_requests(12, max_new_tokens=32)
        return [(one.token_ids, one.last.stats.accept_histogram) for one in generate(engine, requests)]
    finally:
        engine.shutdown(10.0)
