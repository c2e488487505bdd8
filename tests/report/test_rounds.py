"""Durations of rounds and steps: known answers."""

import pytest
from tests.client.make_records import make_record

from draftbench.report import rounds


def test_the_time_of_a_round_is_that_between_the_chunks_over_the_rounds():
    one = make_record(times=(1.0, 1.3, 1.5), tokens=(1, 4, 2), num_rounds=2)
    other = make_record(times=(5.0, 6.0), tokens=(1, 9), num_rounds=1)
    assert rounds.pooled_round_s([one, other]) == pytest.approx(1.5 / 3)
    assert rounds.pooled_step_s([one, other]) == pytest.approx(1.5 / 15)


def test_the_time_of_a_round_is_unknown_where_the_first_chunk_held_a_round():
    merged = make_record(times=(1.0, 1.5), tokens=(5, 2), num_rounds=2)
    assert rounds.pooled_round_s([merged]) is None
    assert rounds.pooled_round_s([make_record(num_rounds=None)]) is None
    assert rounds.pooled_round_s([]) is None
    assert rounds.pooled_step_s([make_record(times=(1.0,), tokens=(1,))]) is None
