"""Totals of a cell with known answers."""

import pytest
from synthetic import Shape, campaign_values, make_result

from draftbench.config import Campaign, cells
from draftbench.records import Telemetry
from draftbench.report.measures import MIN_POWER_SAMPLES, joules_per_token

COLUMNS = ["time_s", "gpu0_power_w", "gpu1_power_w"]


def powered(rows, *, indices=(0, 1), columns=COLUMNS):
    """A result of 10 s and its tokens, on some of the host's GPUs, with these samples."""
    campaign = Campaign.model_validate(campaign_values(budgets=()))
    result = make_result(campaign, next(iter(cells(campaign))), Shape())
    environment = result.identity.environment | {"gpu_indices": list(indices)}
    identity = result.identity.model_copy(update={"environment": environment})
    telemetry = Telemetry(interval_s=1.0, columns=columns, samples=rows)
    update = {"identity": identity, "telemetry": telemetry, "window_s": [100.0, 110.0]}
    result = result.model_copy(update=update)
    return result, sum(request.num_output_tokens for request in result.requests)


def test_energy_is_the_mean_power_of_the_server_s_gpus_over_the_cell_by_token():
    outside = [[99.0, 9000.0, 9000.0], [111.0, 9000.0, 9000.0]]
    rows = [[101.0 + i, 400.0 + 100.0 * (i % 2), 70.0] for i in range(6)]
    result, tokens = powered([*outside, *rows])
    assert joules_per_token(result) == pytest.approx((450.0 + 70.0) * 10.0 / tokens)
    alone, _ = powered([*outside, *rows], indices=(0,))
    assert joules_per_token(alone) == pytest.approx(450.0 * 10.0 / tokens)


def test_a_sample_that_lacks_the_power_of_a_gpu_is_none():
    whole = [[101.0 + i, 400.0, 70.0] for i in range(MIN_POWER_SAMPLES)]
    lacking = [[107.0, 400.0, None], [108.0, None, None]]
    result, tokens = powered([*whole, *lacking])
    assert joules_per_token(result) == pytest.approx(470.0 * 10.0 / tokens)
    assert joules_per_token(powered([*whole[1:], *lacking])[0]) is None


def test_few_samples_and_unknown_gpus_have_no_energy():
    few, _ = powered([[101.0 + i, 400.0, 70.0] for i in range(MIN_POWER_SAMPLES - 1)])
    rows = [[101.0 + i, 400.0, 70.0] for i in range(MIN_POWER_SAMPLES)]
    assert joules_per_token(powered(rows)[0]) is not None
    for result in (few, powered(rows, indices=())[0], powered(rows, indices=(2,))[0]):
        assert joules_per_token(result) is None
    assert joules_per_token(few.model_copy(update={"telemetry": None})) is None
