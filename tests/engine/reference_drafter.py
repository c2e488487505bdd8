"""DFlash once more, written from its description and sharing nothing with the engine.

Plain PyTorch, one request, float32, no cache: the context is the features of all committed tokens.
"""

import torch
from tiny_models import target_features, target_logits
from torch.nn import functional
from transformers import LlamaForCausalLM


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """[heads, S, D] turned pairwise as complex numbers (i, i + D / 2)."""
    half = x.shape[-1] // 2
    angles = torch.outer(positions.float(), theta ** (-torch.arange(half) / half))
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def draft_logits(
    target: LlamaForCausalLM,
    weights: dict[str, torch.Tensor],
    config: dict,
    committed: list[int],
    anchor: int,
) -> torch.Tensor:
    """Logits of slots 1 to block_size - 1, [block_size - 1, V]."""
    eps, dflash, dim = config["rms_norm_eps"], config["dflash_config"], config["head_dim"]
    features = target_features(target, committed, dflash["target_layer_ids"])
    context = norm(features @ weights["fc.weight"].T, weights["hidden_norm.weight"], eps)
    block = [anchor] + [dflash["mask_token_id"]] * (config["block_size"] - 1)
    hidden = target.get_input_embeddings().weight.detach()[torch.tensor(block)]
    positions = torch.arange(len(committed) + len(block))
    for layer in range(config["num_hidden_layers"]):
        w = {name.removeprefix(f"layers.{layer}."): value for name, value in weights.items()}
        x = norm(hidden, w["input_layernorm.weight"], eps)
        both = torch.cat([context, x])
        q, k, v = (
            (rows @ w[f"self_attn.{part}_proj.weight"].T).unflatten(-1, (-1, dim)).transpose(0, 1)
            for part, rows in (("q", x), ("k", both), ("v", both))
        )
        q = rotate(
            norm(q, w["self_attn.q_norm.weight"], eps), positions[len(committed) :], config["rope_theta"]
        )
        k = rotate(norm(k, w["self_attn.k_norm.weight"], eps), positions, config["rope_theta"])
        group = config["num_attention_heads"] // config["num_key_value_heads"]
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
        scores = (q @ k.transpose(1, 2) / dim**0.5).softmax(-1)
        hidden = hidden + (scores @ v).transpose(0, 1).flatten(1) @ w["self_attn.o_proj.weight"].T
        x = norm(hidden, w["post_attention_layernorm.weight"], eps)
        gated = functional.silu(x @ w["mlp.gate_proj.weight"].T) * (x @ w["mlp.up_proj.weight"].T)
        hidden = hidden + gated @ w["mlp.down_proj.weight"].T
    drafted = norm(hidden, weights["norm.weight"], eps)[1:]
    return drafted @ target.get_output_embeddings().weight.detach().T


def linear_decoding(
    target: LlamaForCausalLM,
    weights: dict[str, torch.Tensor],
    config: dict,
    prompt: list[int],
    num_tokens: int,
) -> tuple[list[int], list[int]]:
    """Greedy DFlash: the tokens, and how many draft tokens each round kept."""
    tokens = [*prompt, int(target_logits(target, prompt)[-1].argmax())]
    accepted = []
    while len(tokens) - len(prompt) < num_tokens:
        with torch.inference_mode():
            block = draft_logits(target, weights, config, tokens[:-1], tokens[-1]).argmax(-1).tolist()
        choices = target_logits(target, tokens + block)[len(tokens) - 1 :].argmax(-1).tolist()
        num_kept = 0
        while num_kept < len(block) and block[num_kept] == choices[num_kept]:
            num_kept += 1
        emitted = choices[: num_kept + 1][: num_tokens - (len(tokens) - len(prompt))]
        accepted.append(len(emitted) - 1)
        tokens += emitted
    return tokens[len(prompt) :], accepted
