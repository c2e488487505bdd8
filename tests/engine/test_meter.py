"""What the engine's decode line and its lifetime figures say of what was counted."""

import logging

import pytest

from draftbench.engine.meter import ROUNDS_PER_LINE, DecodeMeter


@pytest.fixture
def meter(caplog):
    caplog.set_level(logging.INFO)
    return DecodeMeter(logging.getLogger("meter"), num_cache_rows=1000)


def run(meter, num_steps, num_emitted, *, is_round=True):
    """Steps of half a second, each of two requests that emit so many tokens of seven drafts."""
    for _ in range(num_steps):
        for _ in range(2):
            meter.count(num_emitted, 7, is_round=is_round)
        meter.end_step(0.5, num_running=2, num_waiting=3, num_tokens=250)


def line(accepts, tok_per_s):
    state = "#running-req: 2, #token: 250, token usage: 0.25, "
    return f"Decode batch, {state}{accepts}gen throughput (token/s): {tok_per_s:.2f}, #queue-req: 3"


def test_a_line_has_the_tokens_and_rounds_of_its_own_40_steps(meter, caplog):
    run(meter, ROUNDS_PER_LINE, 3)
    run(meter, ROUNDS_PER_LINE, 8)
    assert ROUNDS_PER_LINE == 40
    assert caplog.messages == [
        line("accept len: 3.00, accept rate: 0.29, ", 2 * 3 / 0.5),
        line("accept len: 8.00, accept rate: 1.00, ", 2 * 8 / 0.5),
    ]
    assert meter.last_tok_per_s == pytest.approx(32.0)


def test_a_line_without_rounds_has_no_accept_length(meter, caplog):
    run(meter, ROUNDS_PER_LINE, 1, is_round=False)
    assert caplog.messages == [line("", 4.0)]
    assert meter.lifetime_accept_length is None


def test_an_unfinished_interval_has_no_line(meter, caplog):
    run(meter, ROUNDS_PER_LINE - 1, 3)
    assert caplog.messages == []


def test_the_lifetime_goes_on_over_lines_until_a_reset(meter):
    run(meter, ROUNDS_PER_LINE, 3)
    run(meter, ROUNDS_PER_LINE // 2, 6)
    assert meter.lifetime_accept_length == pytest.approx((40 * 3 + 20 * 6) / 60)
    meter.reset()
    assert meter.lifetime_accept_length is None


def test_a_reset_forgets_the_interval_too(meter, caplog):
    run(meter, ROUNDS_PER_LINE - 1, 8)
    meter.reset()
    run(meter, ROUNDS_PER_LINE, 3)
    assert caplog.messages == [line("accept len: 3.00, accept rate: 0.29, ", 12.0)]
