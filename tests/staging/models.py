"""Tiny random checkpoints whose norms differ from one, and what a reference computes with them."""

from pathlib import Path

import torch
from tests.engine.tiny_models import (
    DRAFTER,
    TINY,
    target_features,
    target_logits,
    write_drafter,
    write_target,
)
from transformers import LlamaForCausalLM

NUM_LAYERS = TINY["num_hidden_layers"]
HIDDEN = TINY["hidden_size"]
NUM_HEADS = TINY["num_attention_heads"]
HEAD_DIM = TINY["head_dim"]
CAPTURED_LAYERS = tuple(DRAFTER["dflash_config"]["target_layer_ids"])
TEXT = [3 + (7 * i * i) % 29 for i in range(40)]


def make_target(folder: Path, *, is_tied: bool = True) -> Path:
    """A Llama of four layers with 6 heads and 2 KV heads, in fp32."""
    model = write_target(folder, tie_word_embeddings=is_tied)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5, generator=generator)
    model.save_pretrained(folder)
    return folder


def make_drafter(folder: Path) -> Path:
    """A DFlash drafter of two layers for `make_target`, in fp32."""
    write_drafter(folder)
    return folder


def logits_and_features(folder: Path, layers: tuple[int, ...] = (0,)) -> tuple[torch.Tensor, torch.Tensor]:
    """Fp32 logits [S, V] of a fixed text and the residual stream [S, len(layers), E] after `layers`."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    features = target_features(model, TEXT, list(layers))
    return target_logits(model, TEXT), features.unflatten(1, (len(layers), -1))
