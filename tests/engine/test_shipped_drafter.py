"""The shipped drafter on the real target: output stays right when a drafter is broken, only tau shows it."""

import json
from pathlib import Path

import pytest
from collecting import generate
from transformers import AutoTokenizer

from draftbench.engine.factory import EngineSettings, load_engine
from draftbench.engine.request import Request, SamplingParams

CARD = json.loads(
    (Path(__file__).parents[2] / "resources/drafters/smollm2-135m-instruct-dflash/card.json").read_text()
)
NUM_TOKENS = 32
PROMPTS = [
    "Explain how a binary search works.",
    "Write a Python function that parses JSON from a file.",
    "Tell me a short story about a fox.",
    "What is 12 times 13? Explain step by step.",
    "How do I list all files in a directory in bash?",
]
METHODS = {"ar": {}, "dflash": {"algorithm": "DFLASH"}, "ddtree-b16": {"algorithm": "DDTREE", "budget": 16}}


@pytest.fixture(scope="module")
def found(staged_target, staged_drafter) -> dict[str, list]:
    """Greedy float32 texts of all prompts together, by method."""
    tokenizer = AutoTokenizer.from_pretrained(staged_target)
    sampling = SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True)
    requests = [
        Request(
            prompt,
            tuple(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": prompt}], add_generation_prompt=True
                )["input_ids"]
            ),
            sampling,
        )
        for prompt in PROMPTS
    ]
    found = {}
    for method, settings in METHODS.items():
        engine = load_engine(
            EngineSettings(
                staged_target,
                staged_drafter if settings else None,
                dtype="float32",
                device="cpu",
                context_length=256,
                num_threads=1,
                **settings,
            )
        )
        engine.start()
        found[method] = generate(engine, requests)
        engine.shutdown(10.0)
    return found


@pytest.mark.parametrize("method", ["dflash", "ddtree-b16"])
def test_real_texts_equal_the_autoregressive_ones(found, method):
    assert [one.token_ids for one in found[method]] == [one.token_ids for one in found["ar"]]


@pytest.mark.parametrize("method", ["dflash", "ddtree-b16"])
def test_tau_stays_within_the_band_of_the_model_card(found, method):
    stats = [one.last.stats for one in found[method]]
    num_rounds = sum(one.num_rounds for one in stats)
    tau = (sum(one.num_accepted_tokens for one in stats) + num_rounds) / num_rounds
    low, high = CARD["tau_band"][method]
    assert low <= tau <= high, f"tau {tau:.3f} of {method}"
