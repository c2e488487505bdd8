import pytest

from draftbench.stats.exactness import (
    Divergence,
    LogitGap,
    classify,
    first_divergence,
    logit_resolution,
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


def test_a_loop_is_mostly_repeated_and_a_text_without_repetition_not_at_all():
    assert repeated_ngram_share([1, 2, 3] * 40) == pytest.approx(1 - 3 / 113)
    assert repeated_ngram_share(list(range(100))) == 0.0


def test_an_output_shorter_than_an_ngram_has_no_share():
    assert repeated_ngram_share([1] * 7) is None
    assert repeated_ngram_share([1] * 8) == 0.0
