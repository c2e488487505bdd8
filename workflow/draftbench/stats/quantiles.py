"""Quantiles that are printed only when the sample can bear them.

An order statistic of few requests is noise: a p99 of 100 requests is one request. A quantile q is given
from n requests on, where n is the smallest number at which seeing at most one request above the true
quantile has a probability of at most 1 %: (q^n + n (1 - q) q^(n - 1)) <= 0.01. That is 64 for p90 and 662
for p99, the limits of MLPerf's early stopping [mlperf2020].
"""

from collections.abc import Sequence
from functools import cache

import numpy as np


@cache
def min_requests(quantile: float, confidence: float = 0.99) -> int:
    """Smallest number of requests from which `quantile` (0 < q < 1) may be printed."""
    count = 2
    while quantile**count + count * (1 - quantile) * quantile ** (count - 1) > 1 - confidence:
        count += 1
    return count


def supported_quantile(values: Sequence[float], quantile: float) -> float | None:
    """The quantile, linearly interpolated; None where there are fewer than `min_requests`."""
    if len(values) < min_requests(quantile):
        return None
    return float(np.quantile(np.asarray(values, dtype=np.float64), quantile))


def median(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return float(np.median(np.asarray(values, dtype=np.float64))) if values else None
