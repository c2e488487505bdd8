"""A tiny Llama as a GGUF file, quantised like the real target's."""

import gguf
import numpy as np

NUM_LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 2, 64, 96, 4, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "Ġ", "ab", "Ġab"]
MERGES = ["a b", "Ġ ab"]
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def write_tiny_gguf(path, *, seed=0, architecture="llama", is_tied=True):
    """Random weights: matrices in Q4_1, the embedding in Q8_0, norms in float32."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(50000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)
    generator = np.random.default_rng(seed)
    for name, shape in _shapes(is_tied=is_tied).items():
        values = generator.normal(0, 0.2, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, 1 + values)
            continue
        kind = gguf.GGMLQuantizationType.Q8_0 if "embd" in name else gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(*, is_tied):
    head = HIDDEN // HEADS
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not is_tied:
        shapes["output.weight"] = (len(TOKENS), HIDDEN)
    for layer in range(NUM_LAYERS):
        own = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (KV_HEADS * head, HIDDEN),
            "attn_v": (KV_HEADS * head, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in own.items()}
    return shapes
