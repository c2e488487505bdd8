"""Random models of a few thousand weights, written as folders that the engine loads."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

TINY = {
    "vocab_size": 32,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    # Wide enough that logits differ by far more than float32 noise.
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "bos_token_id": 0,
}

DRAFTER = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "vocab_size": 32,
    "block_size": 6,
    "num_target_layers": 4,
    "attention_bias": False,
    "dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 2},
}


@dataclass(frozen=True)
class TinyPair:
    """A target, its folder, and the folder of a random drafter for it."""

    target: LlamaForCausalLM
    target_path: Path
    drafter_path: Path


def write_target(directory: Path, seed: int = 0, **overrides: object) -> LlamaForCausalLM:
    """A random Llama; the same seed gives the same weights."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**TINY, **overrides})).eval()
    model.save_pretrained(directory)
    return model


def write_drafter(directory: Path, seed: int = 0, **overrides: object) -> dict[str, torch.Tensor]:
    """A random DFlash drafter; returns its weights."""
    config = {**DRAFTER, **overrides}
    generator = torch.Generator().manual_seed(seed)
    hidden, wide, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    num_query, num_kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    num_features = len(config["dflash_config"]["target_layer_ids"])
    shapes = {
        "fc.weight": (hidden, num_features * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        attention, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
        shapes |= {
            f"layers.{layer}.input_layernorm.weight": (hidden,),
            f"layers.{layer}.post_attention_layernorm.weight": (hidden,),
            f"{attention}.q_proj.weight": (num_query, hidden),
            f"{attention}.k_proj.weight": (num_kv, hidden),
            f"{attention}.v_proj.weight": (num_kv, hidden),
            f"{attention}.o_proj.weight": (hidden, num_query),
            f"{attention}.q_norm.weight": (head_dim,),
            f"{attention}.k_norm.weight": (head_dim,),
            f"{mlp}.gate_proj.weight": (wide, hidden),
            f"{mlp}.up_proj.weight": (wide, hidden),
            f"{mlp}.down_proj.weight": (hidden, wide),
        }
    weights = {
        name: 0.2 * torch.randn(shape, generator=generator) + (1.0 if len(shape) == 1 else 0.0)
        for name, shape in shapes.items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return weights


def write_pair(directory: Path, seed: int = 0, **overrides: object) -> TinyPair:
    """A target and a drafter that fits it; overrides go to the target."""
    target = write_target(directory / "target", seed, **overrides)
    vocab_size = overrides.get("vocab_size", TINY["vocab_size"])
    write_drafter(directory / "drafter", seed, vocab_size=vocab_size)
    return TinyPair(target, directory / "target", directory / "drafter")


def target_logits(model: LlamaForCausalLM, token_ids: list[int]) -> torch.Tensor:
    """transformers' logits after every token, [S, V]."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


def target_features(model: LlamaForCausalLM, token_ids: list[int], layers: list[int]) -> torch.Tensor:
    """transformers' residual stream after some layers, [S, len(layers) * E]."""
    with torch.inference_mode():
        states = model(torch.tensor([token_ids]), output_hidden_states=True).hidden_states
    return torch.cat([states[layer + 1][0] for layer in layers], dim=-1)


def greedy_continuation(model: LlamaForCausalLM, prompt_ids: list[int], num_tokens: int) -> list[int]:
    """The target's greedy tokens by whole forwards without any cache."""
    token_ids = list(prompt_ids)
    for _ in range(num_tokens):
        token_ids.append(int(target_logits(model, token_ids)[-1].argmax()))
    return token_ids[len(prompt_ids) :]
