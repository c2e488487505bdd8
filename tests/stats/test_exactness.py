import numpy as np
import pytest

from draftbench.stats.exactness import (
    Divergence,
    LogitGap,
    classify,
    first_divergence,
    logit_resolution,
    measured_resolution,
    num_tokens_before_repetition,
    repeated_ngram_share,
)


def test_equal_outputs_do_not_part():
    assert first_divergence([1, 2, 3], [1, 2, 3]) is None


def test_outputs_part_at_the_first_differing_token():
    assert first_divergence([1, 2, 3, 4], [1, 2, 9, 8]) == Divergence(2, 3, 9)


def test_an_output_that_ends_early_parts_there():
    assert first_divergence([1, 2, 3], [1, 2]) == Divergence(2, 3, None)
    assert first_divergence([1], [1, 2]) == Divergence(1, None, 2)


@pytest.mark.parametrize(
    ("gap", "kind"),
    [
        (LogitGap(0.1, 0.5), "tie"),
        (LogitGap(0.5, 0.5), "tie"),
        (LogitGap(0.6, 0.5), "fault"),
        (None, "not measured"),
    ],
)
def test_a_gap_within_the_resolution_is_a_tie_and_a_wider_one_a_fault(gap, kind):
    assert classify(gap) == kind


def test_what_is_a_tie_in_bfloat16_is_a_fault_in_float32():
    gap, scale = 0.25, 30.0
    assert classify(LogitGap(gap, logit_resolution("bfloat16", scale))) == "tie"
    assert classify(LogitGap(gap, logit_resolution("float32", scale))) == "fault"


def test_a_measured_resolution_is_six_times_the_noise_or_its_largest_change():
    assert measured_resolution(100, 0.1, 0.3) == pytest.approx(0.6)
    assert measured_resolution(100, 0.01, 0.1) == 0.1
    assert measured_resolution(32, 0.1, 0.3) == pytest.approx(0.6)


@pytest.mark.parametrize(("num_positions", "rms"), [(31, 0.1), (100, 0.0)])
def test_few_positions_or_none_that_changed_give_no_resolution(num_positions, rms):
    assert measured_resolution(num_positions, rms, rms) is None


def test_six_times_the_noise_keeps_ties_that_two_noisy_computations_swapped():
    """Where two computations disagree about the better token, the gap that a third one sees is a tie."""
    random = np.random.default_rng(1)
    true_gaps = random.exponential(2.0, 200_000)
    baseline, method, audited, other = true_gaps + 0.1 * random.standard_normal((4, len(true_gaps)))
    changes = (audited - other)[:155]
    limit = measured_resolution(155, float(np.sqrt(np.mean(changes**2))), float(np.abs(changes).max()))
    swapped = (baseline > 0) != (method > 0)
    assert swapped.sum() > 1000
    assert np.abs(audited[swapped]).max() <= limit
    assert np.mean(true_gaps <= limit) < 0.5  # a wrong token is still told from a tie


def test_a_loop_is_mostly_repeated_and_a_text_without_repetition_not_at_all():
    assert repeated_ngram_share([1, 2, 3] * 40) == pytest.approx(1 - 3 / 113)
    assert repeated_ngram_share(list(range(100))) == 0.0


def test_an_output_shorter_than_an_ngram_has_no_share():
    assert repeated_ngram_share([1] * 7) is None
    assert repeated_ngram_share([1] * 8) == 0.0


def test_repetition_begins_where_an_ngram_does_that_occurred_before():
    text = list(range(20))
    assert num_tokens_before_repetition([*text, *text[5:13], 99]) == 20
    assert num_tokens_before_repetition([*text, *text[5:12], 99]) == 28
    assert num_tokens_before_repetition([1] * 30) == 1
    assert num_tokens_before_repetition([1, 2, 3] * 40) == 3
    assert num_tokens_before_repetition([1] * 7) == 7
