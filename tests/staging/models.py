"""Tiny random checkpoints, and the logits that a reference implementation computes from them."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

NUM_LAYERS = 4
CAPTURED_LAYERS = (0, 1, 3)
TINY = {
    "vocab_size": 128,
    "hidden_size": 72,
    "intermediate_size": 96,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
}


def make_target(folder: Path, *, is_tied: bool = True) -> Path:
    """A Llama of four layers with 9 heads, 3 KV heads of 8, in fp32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        **TINY, num_hidden_layers=NUM_LAYERS, tie_word_embeddings=is_tied, initializer_range=0.2
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return folder


def make_drafter(folder: Path) -> Path:
    """A DFlash drafter of two layers for `make_target`, in fp32."""
    generator = torch.Generator().manual_seed(1)
    hidden, inner, head = TINY["hidden_size"], TINY["intermediate_size"], 8
    shapes = {
        "fc.weight": (hidden, len(CAPTURED_LAYERS) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(2):
        for name, shape in {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (9 * head, hidden),
            "self_attn.k_proj": (3 * head, hidden),
            "self_attn.v_proj": (3 * head, hidden),
            "self_attn.o_proj": (hidden, 9 * head),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            shapes[f"layers.{layer}.{name}.weight"] = shape
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.2 + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = TINY | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "head_dim": head,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "block_size": 4,
        "num_target_layers": NUM_LAYERS,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "dflash_config": {"target_layer_ids": list(CAPTURED_LAYERS), "mask_token_id": 3},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@torch.inference_mode()
def logits_and_features(folder: Path, layers: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [S, V] of a fixed text and the residual stream [S, len(layers), E] after `layers`."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(0, TINY["vocab_size"], (1, 40), generator=torch.Generator().manual_seed(2))
    features: dict[int, torch.Tensor] = {}
    for layer in layers:
        model.model.layers[layer].register_forward_hook(
            lambda module, args, output, layer=layer: features.update({layer: output})
        )
    logits = model(ids).logits[0]
    return logits, torch.stack([features[layer][0] for layer in layers], dim=1)
