"""Model folders small enough for a test: a byte-level tokenizer with a chat template, random weights."""

import json

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3Model

SPECIAL_TOKENS = ["<|pad|>", "<|eos|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{% if mode == 'refuse' %}{{ raise_exception('refused by the template') }}{% endif %}"
    "{% for message in messages %}<|{{ 'user' if message.role == 'user' else 'assistant' }}|>"
    "{{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CORPUS = ["the quick brown fox jumps over the lazy dog", "draft, verify, commit; draft, verify, commit"]
SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
}


def write_tokenizer(folder):
    """tokenizer.json and tokenizer_config.json of a byte-level BPE whose ids 0..3 are special."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZES["vocab_size"],
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|eos|>",
        "pad_token": {"__type": "AddedToken", "content": "<|pad|>"},
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_target(folder):
    """A random Llama of two layers, beside its tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_hidden_layers=2, eos_token_id=1, initializer_range=0.3)
    LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)


def write_drafter(folder):
    """A random DFlash drafter of one layer, blocks of 8, for `write_target`'s model."""
    torch.manual_seed(1)
    tensors = Qwen3Model(Qwen3Config(**SIZES, num_hidden_layers=1)).state_dict()
    del tensors["embed_tokens.weight"]
    hidden_size = SIZES["hidden_size"]
    tensors["fc.weight"] = torch.randn(hidden_size, 2 * hidden_size)
    tensors["hidden_norm.weight"] = torch.ones(hidden_size)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        **SIZES,
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
        "block_size": 8,
        "num_target_layers": 2,
        "dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 3},
    }
    (folder / "config.json").write_text(json.dumps(config))
