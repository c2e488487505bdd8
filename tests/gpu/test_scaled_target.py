"""A scaled target on the GPU, in bf16: its greedy tokens are the original's, but for ties.

Where the two part, the original's two best tokens must be closer than bf16 can tell apart.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.engine.collecting import generate
from transformers import AutoTokenizer, LlamaForCausalLM

from draftbench.engine.factory import EngineSettings, load_engine
from draftbench.engine.request import Request, SamplingParams
from draftbench.staging.scale import ScaledShape, scale_checkpoint

pytestmark = pytest.mark.gpu
SHAPE = ScaledShape(
    hidden_factor=4,
    num_layers=40,
    intermediate_size=6144,
    num_attention_heads=48,
    num_key_value_heads=16,
    weight_bits=16,
)
PROMPTS = (
    "Explain why the sky is blue.",
    "Write a Python function that reverses a list.",
    "What is 17 times 23?",
    "Describe a market in the morning.",
    "How do I count the lines of a file in bash?",
)
NUM_TOKENS = 128
# A logit between 16 and 32 has steps of 1/8 in bf16; sums of such roundings reach a few of them.
TIE = 0.5


@dataclass(frozen=True)
class Text:
    prompt_ids: tuple[int, ...]
    token_ids: list[int]


def decode(folder: Path, device: str) -> list[Text]:
    """Greedy texts of all prompts in bf16."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sampling = SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True)
    requests = [Request(text, tuple(tokenizer(text).input_ids), sampling) for text in PROMPTS]
    engine = load_engine(EngineSettings(folder, dtype="bfloat16", device=device, context_length=512))
    engine.start()
    try:
        found = generate(engine, requests)
    finally:
        engine.shutdown(10.0)
    return [Text(r.prompt_ids, one.token_ids) for r, one in zip(requests, found, strict=True)]


@torch.inference_mode()
def gap_where_they_part(model: LlamaForCausalLM, original: Text, scaled: Text) -> float:
    """Difference of the original's fp32 logits of the two tokens where the texts part; 0 if nowhere."""
    pairs = enumerate(zip(original.token_ids, scaled.token_ids, strict=True))
    place = next((i for i, (one, other) in pairs if one != other), None)
    if place is None:
        return 0.0
    ids = [*original.prompt_ids, *original.token_ids[:place]]
    logits = model(torch.tensor([ids], device=model.device)).logits[0, -1]
    return float((logits[original.token_ids[place]] - logits[scaled.token_ids[place]]).abs())


def test_greedy_tokens_agree_but_for_ties(staged_target: Path, tmp_path: Path) -> None:
    scale_checkpoint(staged_target, tmp_path / "scaled", SHAPE)
    originals, scaled = decode(staged_target, "cuda"), decode(tmp_path / "scaled", "cuda")
    model = LlamaForCausalLM.from_pretrained(staged_target, dtype=torch.float32).to("cuda").eval()
    gaps = [gap_where_they_part(model, one, other) for one, other in zip(originals, scaled, strict=True)]
    assert max(gaps) <= TIE
