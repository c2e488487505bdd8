"""Warm-up ends when two batches agree, or after enough of them."""

import pytest
from make_records import make_record

from draftbench.client.warmup import has_settled, warm_up
from draftbench.config import WarmupPlan
from draftbench.errors import MeasurementError


def run(spans_s, tolerance=0.05, min_batches=2, max_batches=6):
    """Warm up with batches that take `spans_s` by a clock of the test's own."""
    plan = WarmupPlan(
        prompts="p", max_tokens=8, min_batches=min_batches, max_batches=max_batches, tolerance=tolerance
    )
    now_s, flushes = [0.0], []

    def batch(index):
        assert len(flushes) == index + 1  # an empty cache for every batch
        now_s[0] += spans_s[index]
        return [make_record(), make_record()]

    return warm_up(plan, batch, lambda: flushes.append(1), clock=lambda: now_s[0])


def test_it_ends_when_two_batches_agree():
    warmup = run([2.0, 1.0, 1.04, 1.0])
    assert warmup.converged
    assert warmup.batch_tok_per_s == pytest.approx([2.0, 4.0, 4 / 1.04])


def test_it_gives_up_after_the_most_batches():
    warmup = run([8.0, 4.0, 2.0, 1.0], max_batches=4)
    assert not warmup.converged
    assert warmup.batch_tok_per_s == pytest.approx([0.5, 1.0, 2.0, 4.0])


def test_it_runs_at_least_the_fewest_batches():
    assert len(run([1.0] * 6, min_batches=4).batch_tok_per_s) == 4


@pytest.mark.parametrize("status", ["failed", "invalid"])
def test_a_failed_request_ends_it_with_an_error(status):
    plan = WarmupPlan(prompts="p", max_tokens=8)
    with pytest.raises(MeasurementError, match="out of slots"):
        warm_up(plan, lambda _: [make_record(status=status, error="out of slots")], lambda: None)


@pytest.mark.parametrize(
    ("speeds", "is_settled"),
    [([], False), ([10.0], False), ([10.0, 10.5], True), ([10.0, 9.5], True), ([10.0, 10.6], False)],
)
def test_two_batches_agree_within_five_percent(speeds, is_settled):
    assert has_settled(speeds, 0.05) is is_settled
