import pytest

from draftbench.stats.quantiles import median, min_requests, supported_quantile


@pytest.mark.parametrize(("quantile", "num_requests"), [(0.9, 64), (0.99, 662)])
def test_the_limits_are_those_of_mlperf(quantile, num_requests):
    assert min_requests(quantile) == num_requests


@pytest.mark.parametrize("quantile", [0.9, 0.99])
def test_a_quantile_is_given_from_its_limit_on_and_not_before(quantile):
    limit = min_requests(quantile)
    assert supported_quantile(range(limit - 1), quantile) is None
    assert supported_quantile(range(limit), quantile) == pytest.approx(quantile * (limit - 1))


def test_the_median_of_nothing_is_undefined():
    assert median([]) is None
    assert median([3.0, 1.0]) == 2.0
