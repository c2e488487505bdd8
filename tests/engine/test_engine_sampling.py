"""Temperature sampling through the whole engine: lossless, and reproducible by seed."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from collecting import generate, make_requests
from scipy.stats import chisquare
from tiny_models import target_logits, write_pair

from draftbench.engine.request import Request, SamplingParams

METHODS = {"ar": {}, "dflash": {"algorithm": "DFLASH"}, "ddtree": {"algorithm": "DDTREE", "budget": 7}}
VOCAB_SIZE = 5
PROMPT = [3, 4, 3]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A target of five tokens, none of them certain, so that even a random drafter is often right."""
    return write_pair(tmp_path_factory.mktemp("toy"), seed=1, vocab_size=VOCAB_SIZE, initializer_range=0.1)


def of_toy(toy, method):
    """Settings of an engine of the toy target."""
    drafter = {} if method == "ar" else {"draft_model_path": toy.drafter_path}
    return {"model_path": toy.target_path, **METHODS[method], **drafter}


def second_and_third_token_probabilities(target, first: int) -> np.ndarray:
    """By transformers, [V * V], given the first output token."""
    joint = []
    after_first = target_logits(target, [*PROMPT, first])[-1].softmax(0)
    for second in range(VOCAB_SIZE):
        after_second = target_logits(target, [*PROMPT, first, second])[-1].softmax(0)
        joint.append(after_first[second] * after_second)
    return torch.cat(joint).double().numpy()


@pytest.mark.parametrize("method", METHODS)
def test_sampled_tokens_follow_the_targets_distribution(start_engine, toy, method):
    engine = start_engine(**of_toy(toy, method))
    requests = [
        Request(str(i), tuple(PROMPT), SamplingParams(3, temperature=1.0, seed=i, ignore_eos=True))
        for i in range(1500)
    ]
    found = generate(engine, requests)
    if method != "ar":
        assert sum(one.last.stats.num_accepted_tokens for one in found) > 100
    first = target_logits(toy.target, PROMPT)[-1].double().softmax(0).numpy()
    joint = np.concatenate(
        [p * second_and_third_token_probabilities(toy.target, i) for i, p in enumerate(first)]
    )
    places = list(product(range(VOCAB_SIZE), repeat=3))
    counts = dict.fromkeys(places, 0)
    for one in found:
        counts[tuple(one.token_ids)] += 1
    observed, wanted = np.array([counts[place] for place in places]), len(found) * joint / joint.sum()
    is_rare = wanted < 5  # pooled, since chi-square needs five expected counts in a bin
    pooled = [np.append(x[~is_rare], x[is_rare].sum()) for x in (observed, wanted)]
    assert chisquare(*pooled).pvalue > 0.001


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 0.6, "top_p": 0.9}])
def test_a_seed_gives_the_same_text_in_every_method_and_every_batch(start_engine, toy, params):
    requests = make_requests(8, VOCAB_SIZE, **{"temperature": 1.0, **params})
    requests = [replace(r, sampling=replace(r.sampling, seed=seed)) for seed, r in enumerate(requests)]
    texts = []
    for method in METHODS:
        for batch_size in (1, 8):
            engine = start_engine(max_running_requests=batch_size, **of_toy(toy, method))
            texts.append([one.token_ids for one in generate(engine, requests)])
    assert all(text == texts[0] for text in texts)


def test_requests_without_a_seed_differ_and_repeat_with_the_engines_seed(start_engine, toy):
    [request] = make_requests(1, VOCAB_SIZE, temperature=1.0, max_new_tokens=40)
    requests = [replace(request, rid=str(i)) for i in range(3)]
    first, again, other = (
        [
            one.token_ids
            for one in generate(start_engine(model_path=toy.target_path, random_seed=seed), requests)
        ]
        for seed in (1, 1, 2)
    )
    assert len({tuple(text) for text in first}) == 3
    assert again == first
    assert other != first


def test_greedy_and_sampled_requests_share_a_batch(start_engine, toy):
    greedy, sampled = make_requests(2, VOCAB_SIZE, max_new_tokens=20)
    sampled = replace(sampled, sampling=replace(sampled.sampling, temperature=1.0, seed=4))
    engine = start_engine(**of_toy(toy, "ddtree"))
    together = [one.token_ids for one in generate(engine, [greedy, sampled])]
    alone = [generate(engine, [request])[0].token_ids for request in (greedy, sampled)]
    assert together == alone
