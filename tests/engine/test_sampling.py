"""Sampling one token: which tokens may come, how often, and from which random number."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from draftbench.engine.request import SamplingParams
from draftbench.engine.sampling import choose_token, token_probabilities, uniform_at

LOGITS = torch.tensor([2.0, 0.5, 1.0, -1.0, 1.5, 0.0])
SOFTMAX = LOGITS.double().softmax(0)


def kept(**params) -> set[int]:
    probabilities = token_probabilities(LOGITS, SamplingParams(temperature=1.0, **params))
    assert float(probabilities.sum()) == pytest.approx(1.0)
    return set(probabilities.nonzero().flatten().tolist())


def test_without_cuts_the_distribution_is_the_softmax_at_the_temperature():
    got = token_probabilities(LOGITS, SamplingParams(temperature=0.5))
    torch.testing.assert_close(got, (LOGITS.double() / 0.5).softmax(0))


def test_top_k_keeps_the_most_probable_tokens():
    assert kept(top_k=3) == {0, 4, 2}


def test_top_k_beyond_the_vocabulary_keeps_all():
    assert kept(top_k=100) == set(range(6))


@pytest.mark.parametrize(
    ("top_p", "expected"), [(0.1, {0}), (0.5, {0, 4}), (0.75, {0, 4, 2}), (0.999, set(range(6)))]
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, expected):
    mass = float(SOFTMAX[list(expected)].sum())
    assert mass >= top_p
    assert kept(top_p=top_p) == expected


def test_top_p_applies_to_what_top_k_left():
    # of the two that are left the first holds 0.62 of the mass
    assert kept(top_k=2, top_p=0.6) == {0}
    assert kept(top_k=2, top_p=0.65) == {0, 4}


def test_equal_logits_are_kept_by_the_smaller_token_id():
    probabilities = token_probabilities(torch.zeros(5), SamplingParams(temperature=1.0, top_k=2))
    assert probabilities.tolist() == [0.5, 0.5, 0.0, 0.0, 0.0]


def test_samples_follow_the_distribution():
    params = SamplingParams(temperature=1.0, top_k=4)
    num_samples = 4000
    counts = np.bincount(
        [choose_token(LOGITS, params, seed=3, place=i) for i in range(num_samples)], minlength=6
    )
    probabilities = token_probabilities(LOGITS, params).numpy()
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], num_samples * probabilities[possible]).pvalue > 0.001


@pytest.mark.parametrize("name", ["seed", "place"])
def test_random_numbers_are_uniform_along_seeds_and_along_places(name):
    numbers = [uniform_at(**{"seed": 5, "place": 5, name: value}) for value in range(2000)]
    assert kstest(numbers, "uniform").pvalue > 0.001


def test_neighbouring_places_are_uncorrelated():
    numbers = np.array([uniform_at(11, place) for place in range(2000)])
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.07  # three standard errors


def test_any_integer_is_a_seed():
    assert len({uniform_at(seed, 0) for seed in (-1, 0, 2**70 + 5)}) == 3
