import numpy as np
import pytest

from draftbench.errors import ShapeError
from draftbench.stats.simulate import Scenario, coverage
from draftbench.stats.speedup import (
    PairedTotals,
    Speedup,
    compare,
    needs_more_sessions,
    relative_half_width,
)


def make_totals(method_s, baseline_s, tokens=100.0):
    method_s, baseline_s = np.array(method_s, dtype=float), np.array(baseline_s, dtype=float)
    return PairedTotals(
        np.full_like(method_s, tokens), method_s, np.full_like(baseline_s, tokens), baseline_s
    )


MAX_RESAMPLES = 1260
"""All there are of 3 sessions and 5 prompts; more units are drawn."""


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(3, 5, session_sd=0.02, prompt_sd=0.2, noise_sd=0.01),
        Scenario(3, 5, session_sd=0.05, prompt_sd=0.01, noise_sd=0.01),
        Scenario(3, 10, session_sd=0.02, prompt_sd=0.05, noise_sd=0.01),
        Scenario(5, 5, session_sd=0.02, prompt_sd=0.2, noise_sd=0.03),
    ],
    ids=["prompts vary most", "sessions vary most", "ten prompts", "five sessions"],
)
def test_the_95_percent_interval_covers_the_truth_in_93_to_97_percent_of_campaigns(scenario):
    found = coverage(scenario, num_campaigns=3000, max_resamples=MAX_RESAMPLES, seed=20260301)
    assert 0.93 <= found <= 0.97


def test_one_run_per_session_is_covered_as_well():
    scenario = Scenario(4, 1, session_sd=0.05, prompt_sd=0.0, noise_sd=0.02)
    found = coverage(scenario, num_campaigns=3000, max_resamples=MAX_RESAMPLES, seed=3)
    assert 0.93 <= found <= 0.97


def test_the_ratio_is_one_of_totals_and_not_a_mean_of_ratios():
    speedup = compare(make_totals([[1.0, 10.0]], [[4.0, 10.0]]), seed=0)
    assert speedup.ratio == pytest.approx(14 / 11)
    assert speedup.per_prompt == pytest.approx((4.0, 1.0))


def test_unequal_tokens_are_accounted_for():
    one = np.array([[1.0]])
    speedup = compare(PairedTotals(300 * one, 2 * one, 100 * one, one), seed=0)
    assert speedup.ratio == pytest.approx(1.5)


def test_one_session_has_no_interval_and_says_so():
    speedup = compare(make_totals([[1.0, 1.1, 0.9]], [[2.0, 2.1, 1.9]]), seed=0)
    assert (speedup.low, speedup.high, speedup.verdict) == (None, None, "within one session")


@pytest.mark.parametrize(
    ("method_s", "verdict"),
    [(0.5, "faster"), (2.0, "slower"), (1.0, "cannot tell")],
)
def test_the_verdict_follows_the_interval(method_s, verdict):
    noise = np.random.default_rng(0).normal(0, 0.02, (4, 5))
    assert compare(make_totals(method_s + noise, np.ones((4, 5))), seed=0).verdict == verdict


def test_few_units_have_one_interval_whatever_the_seed():
    totals = make_totals(1 + np.random.default_rng(1).random((4, 5)), np.full((4, 5), 2.0))
    assert compare(totals, seed=5) == compare(totals, seed=6)


def test_of_many_units_the_same_seed_gives_the_same_interval_and_another_nearly_the_same():
    totals = make_totals(1 + np.random.default_rng(1).random((3, 10)), np.full((3, 10), 2.0))
    first, again, other = (compare(totals, seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first.low != other.low
    assert first.low == pytest.approx(other.low, rel=0.02)


def test_a_constant_speedup_has_an_interval_of_no_width():
    speedup = compare(make_totals(np.ones((3, 4)), np.full((3, 4), 2.0)), seed=0)
    assert (speedup.low, speedup.high) == pytest.approx((2.0, 2.0))


def test_totals_of_different_shapes_are_refused():
    with pytest.raises(ShapeError, match="one shape"):
        make_totals(np.ones((2, 3)), np.ones((2, 4)))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_total_that_is_no_measurement_is_refused(value):
    with pytest.raises(ShapeError, match="above 0"):
        make_totals([[1.0, value]], [[1.0, 1.0]])


def test_more_sessions_are_asked_for_until_the_interval_is_as_narrow_as_asked():
    wide = compare(make_totals(1 + np.random.default_rng(2).random((3, 5)), np.full((3, 5), 2.0)), seed=0)
    half_width = relative_half_width(wide)
    assert needs_more_sessions(half_width, asked=0.05)
    assert not needs_more_sessions(half_width, asked=10.0)


def test_one_session_is_never_narrow_enough():
    half_width = relative_half_width(compare(make_totals([[1.0]], [[2.0]]), seed=0))
    assert half_width is None
    assert needs_more_sessions(half_width, asked=10.0)


def test_the_interval_is_t_times_the_standard_error_on_the_log_scale():
    """One prompt: the error is that of the mean of the sessions' logs, with one degree of freedom less."""
    method_s = np.exp(np.array([[0.01], [-0.02], [0.03], [0.0]]))
    speedup = compare(make_totals(method_s, np.full((4, 1), 2.0)), seed=0)
    error = float(np.std(np.log(method_s), ddof=1)) / 2
    assert relative_half_width(speedup) == pytest.approx(3.182 * error, rel=0.02)
    assert np.log(speedup.low * speedup.high) / 2 == pytest.approx(np.log(speedup.ratio))
    assert speedup.per_session == pytest.approx(tuple((2 / method_s)[:, 0]))


def test_an_interval_that_ends_at_1_supports_neither_direction():
    def verdict(low, high):
        return Speedup(ratio=1.0, low=low, high=high, per_prompt=(), per_session=()).verdict

    assert verdict(1.0, 1.2) == "cannot tell"
    assert verdict(1.001, 1.2) == "faster"
    assert verdict(0.8, 1.0) == "cannot tell"
    assert verdict(0.8, 0.999) == "slower"


def test_an_interval_exactly_as_narrow_as_asked_is_enough():
    assert not needs_more_sessions(0.05, asked=0.05)
    assert not needs_more_sessions(0.05)
    assert needs_more_sessions(0.0501)


def test_totals_that_are_no_table_are_refused():
    for shape in ((3,), (0, 3), (2, 3, 1)):
        with pytest.raises(ShapeError, match="one shape"):
            make_totals(np.ones(shape), np.ones(shape))
