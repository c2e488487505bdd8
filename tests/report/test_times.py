"""Where the wall time went."""

import pytest
from synthetic import Shape, campaign_values, make_result

from draftbench.config import Campaign, cells
from draftbench.records import OutputAudits
from draftbench.report.times import times_spent

START = "2026-03-01T10:00:00+00:00"


def timed(result, *, pid, boot, began, ended, window_s):
    """A result with times of its own; `began` and `ended` in minutes after ten, its cell starts at 100 s."""
    identity = result.identity.model_copy(update={"pid": pid, "boot_id": boot, "started_at": START})
    return result.model_copy(
        update={
            "identity": identity,
            "started_at": f"2026-03-01T10:{began:02d}:00+00:00",
            "ended_at": f"2026-03-01T10:{ended:02d}:00+00:00",
            "start_s": 100.0,
            "window_s": window_s,
        }
    )


@pytest.fixture
def result():
    campaign = Campaign.model_validate(campaign_values(budgets=()))
    return make_result(campaign, next(iter(cells(campaign))), Shape())


def test_starts_warm_ups_and_windows_add_up_to_the_wall_time_with_the_rest(result):
    (row,) = times_spent(
        [
            timed(result, pid=1, boot="a", began=2, ended=5, window_s=[110.0, 260.0]),
            timed(result, pid=1, boot="a", began=6, ended=8, window_s=[105.0, 205.0]),
        ]
    )
    assert (row.num_starts, row.num_cells, row.wall_s) == (1, 2, 480)
    assert (row.start_s, row.warmup_s, row.measured_s) == (120, 15, 250)
    assert row.rest_s == 480 - 120 - 15 - 250
    assert row.measured_share == pytest.approx(250 / (480 - 120 - 15))


def test_an_audit_is_no_rest(result):
    audit = OutputAudits(margin=2.0, noise=None, outputs=[], duration_s=30.0)
    one = timed(result, pid=1, boot="a", began=2, ended=5, window_s=[110.0, 260.0])
    (row,) = times_spent([one.model_copy(update={"audit": audit})])
    assert (row.audit_s, row.rest_s) == (30, 300 - 120 - 10 - 150 - 30)
    assert row.measured_share == pytest.approx((150 + 30) / (300 - 120 - 10))


def test_an_audit_that_took_who_knows_how_long_is_not_counted_as_none(result):
    audit = OutputAudits(margin=2.0, noise=None, outputs=[])
    one = timed(result, pid=1, boot="a", began=2, ended=5, window_s=[110.0, 260.0])
    (row,) = times_spent([one.model_copy(update={"audit": audit}), one])
    assert row.audit_s is None
    assert times_spent([one])[0].audit_s == 0


def test_every_process_is_a_start_and_every_boot_a_row(result):
    rows = times_spent(
        [
            timed(result, pid=1, boot="b", began=1, ended=2, window_s=[110.0, 130.0]),
            timed(result, pid=2, boot="b", began=4, ended=5, window_s=[110.0, 130.0]),
            timed(result, pid=1, boot="a", began=1, ended=2, window_s=[110.0, 130.0]),
        ]
    )
    assert sorted((row.num_starts, row.start_s) for row in rows) == [(1, 60), (2, 60 + 240)]


def test_a_summary_has_the_times_of_its_results(summarised):
    (row,) = summarised(budgets=()).times
    assert row.num_cells == 18
    assert row.measured_s > 0


def test_where_all_the_time_went_to_starts_there_is_no_measured_share(result):
    (row,) = times_spent([timed(result, pid=1, boot="a", began=5, ended=5, window_s=[100.0, 100.0])])
    assert (row.wall_s, row.start_s, row.measured_share) == (300, 300, None)


def test_the_boot_that_came_first_stands_first(result):
    late, early = (timed(result, pid=1, boot=b, began=5, ended=6, window_s=[110.0, 130.0]) for b in "ab")
    earlier = early.identity.model_copy(update={"started_at": "2026-03-01T09:00:00+00:00"})
    rows = times_spent([late, early.model_copy(update={"identity": earlier})])
    assert [row.first_started_at for row in rows] == ["2026-03-01T09:00:00+00:00", START]
