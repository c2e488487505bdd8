"""A target of a few thousand weights, as a folder and in memory, with drafters and texts for it."""

import json
from pathlib import Path

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from draftbench.training.blocks import Batch
from draftbench.training.corpus import Conversation, pack_rows
from draftbench.training.drafter import Drafter, DrafterShape
from draftbench.training.generation import GenerationSettings, generate
from draftbench.training.target import Target

CPU = torch.device("cpu")
STOP, MASK = 1, 3
SPECIAL_TOKENS = ["<|pad|>", "<|end|>", "<|start|>", "<|mask|>"]
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_folder(folder: Path, vocab_size: int = 280) -> LlamaForCausalLM:
    """Random weights, so small that texts fall into patterns, and a byte-level chat tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        initializer_range=0.1,
        tie_word_embeddings=True,
        eos_token_id=STOP,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["draft, verify, commit"], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|end|>",
                "pad_token": "<|pad|>",
                "chat_template": TEMPLATE,
            }
        )
    )
    return model


def make_drafter(target: Target, num_layers: int = 2, block_size: int = 8, seed: int = 0) -> Drafter:
    """A random drafter."""
    torch.manual_seed(seed)
    return Drafter(DrafterShape(target.shape, num_layers, block_size, MASK))


def random_prompts(count: int, seed: int = 0) -> list[np.ndarray]:
    """Prompts of 5 to 9 ordinary tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 280, rng.integers(5, 10)) for _ in range(count)]


def greedy_texts(target: Target, prompts: list[np.ndarray], num_tokens: int) -> list[Conversation]:
    """The target's greedy continuations, not ended by the stop token."""
    settings = GenerationSettings(num_tokens, 0.0, STOP, cache_tokens=1 << 16)
    answers = generate(target, prompts, settings, seed=0, can_stop=[False] * len(prompts))
    return [
        Conversation(
            np.concatenate([prompt, answer]),
            np.arange(len(prompt) + len(answer)) >= len(prompt),
            is_greedy=True,
        )
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def make_batch(conversations: list[Conversation], row_length: int) -> Batch:
    """All conversations packed into one batch."""
    rows = pack_rows(conversations, row_length)
    return Batch(*map(torch.from_numpy, (rows.ids, rows.document, rows.positions, rows.is_response)))
