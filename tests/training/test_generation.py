"""Batched generation gives what one sequence alone would give."""

import time

import numpy as np
import pytest
import tiny
import torch

from draftbench.training.generation import GenerationSettings, generate


def settings(**changes):
    values = {"max_new_tokens": 24, "temperature": 0.0, "stop_id": tiny.STOP, "cache_tokens": 1 << 16}
    return GenerationSettings(**{**values, **changes})


@pytest.fixture(scope="module")
def prompts():
    return tiny.random_prompts(12, seed=1)


@pytest.fixture(scope="module")
def alone(reference, prompts):
    """transformers' greedy continuations, past any stop token."""
    texts = []
    for prompt in prompts:
        ids = torch.from_numpy(prompt)[None]
        with torch.inference_mode():
            for _ in range(24):
                ids = torch.cat([ids, reference(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
        texts.append(ids[0, len(prompt) :].numpy())
    return texts


def test_left_padded_prompts_continue_as_if_alone(target, prompts, alone):
    answers = generate(target, prompts, settings(), seed=0, can_stop=[False] * len(prompts))
    assert all(np.array_equal(answer, text) for answer, text in zip(answers, alone, strict=True))


def test_small_waves_change_nothing(target, prompts, alone):
    answers = generate(target, prompts, settings(cache_tokens=100), seed=0, can_stop=[False] * len(prompts))
    assert all(np.array_equal(answer, text) for answer, text in zip(answers, alone, strict=True))


def test_a_response_ends_with_the_stop_token_where_it_may_also_when_rows_are_dropped(target, prompts, alone):
    often = [0] * 8 + list(range(12))  # so many that end early that their rows are dropped after 16 steps
    stop = int(alone[0][3])
    can_stop = [number != 5 for number in range(len(often))]
    asked = [prompts[index] for index in often]
    answers = generate(target, asked, settings(stop_id=stop), seed=0, can_stop=can_stop)
    for answer, index, stops in zip(answers, often, can_stop, strict=True):
        text = alone[index]
        places = (text == stop).nonzero()[0] if stops else []
        assert np.array_equal(answer, text[: places[0] + 1] if len(places) else text)


def test_sampling_follows_the_temperature(target, prompts):
    hot = generate(target, [prompts[0]] * 400, settings(max_new_tokens=1, temperature=1.0), seed=0)
    cold = generate(target, [prompts[0]] * 400, settings(max_new_tokens=1, temperature=0.3), seed=0)
    assert len({int(a[0]) for a in cold}) < len({int(a[0]) for a in hot})


def test_no_wave_starts_after_the_deadline(target, prompts):
    assert generate(target, prompts, settings(), seed=0, deadline_s=time.monotonic()) == [None] * len(prompts)
