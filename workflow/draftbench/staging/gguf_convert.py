"""Dequantise a GGUF of the Llama family into a folder of safetensors, configuration and tokenizer.

    python -m draftbench.staging.gguf_convert model.gguf folder/

Weights are stored as float32: a Q4_1 weight is scale x digit + minimum, with both factors in float16, which
bfloat16's 8 bits cannot hold. A process of its own, so that its memory is given back.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from draftbench.errors import DraftbenchError, StagingError
from draftbench.files import write_json

# GGUF's names of a layer's tensors -> those of transformers' Llama.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert(source: Path, folder: Path) -> None:
    """Write `config.json`, `generation_config.json`, the tokenizer and `model.safetensors` into `folder`.

    Raises:
        StagingError: the file is no GGUF of a Llama, or has a tensor that Llama does not.
    """
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, OSError) as error:
        raise StagingError(f"{source}: expected a GGUF file, got: {error}") from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise StagingError(
            f"{source}: expected general.architecture llama, got {fields.get('general.architecture')!r}"
        )
    tensors = {_rename(t.name, source): _dequantise(t, fields) for t in reader.tensors}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", _config(fields, is_tied="lm_head.weight" not in tensors))
    ids = {key: fields.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "padding")}
    generation = {"bos_token_id": ids["bos"], "eos_token_id": ids["eos"], "pad_token_id": ids["padding"]}
    write_json(folder / "generation_config.json", generation)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # as readable as the other files
    _save_tokenizer(source, folder, fields)


def _rename(name: str, source: Path) -> str:
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.weight"
    raise StagingError(f"{source}: expected the tensors of a Llama without biases, got {name}")


def _dequantise(tensor: Any, fields: dict[str, Any]) -> NDArray[np.float32]:
    values = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    num_heads = heads.get(tensor.name.split(".")[-2])
    return np.ascontiguousarray(values if num_heads is None else _restore_rotary_order(values, num_heads))


def _restore_rotary_order(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """GGUF interleaves the two halves that a rotary embedding turns; transformers keeps them apart."""
    num_rows, num_columns = weight.shape
    pairs = weight.reshape(num_heads, num_rows // num_heads // 2, 2, num_columns)
    return pairs.swapaxes(1, 2).reshape(num_rows, num_columns)


def _config(fields: dict[str, Any], *, is_tied: bool) -> dict[str, Any]:
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields.get("llama.rope.dimension_count", hidden // heads),
        "max_position_embeddings": fields["llama.context_length"],
        # Stored in float32, where 1e-5 is 9.999999747378752e-06.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": is_tied,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def _save_tokenizer(source: Path, folder: Path, fields: dict[str, Any]) -> None:
    # Imported here because it takes seconds and the weights do not need it.
    from transformers import AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    tokenizer.chat_template = fields.get("tokenizer.chat_template")
    tokenizer.save_pretrained(folder)


def main() -> int:
    """Run the conversion; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        convert(options.source, options.folder)
    except DraftbenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
