"""Speedup of a method over its baseline: a ratio of totals with an interval that keeps its promise.

speedup = (tokens of the method / time of the method) / (tokens of the baseline / time of the baseline),
each summed over the same sessions and prompts. With equal tokens this is the ratio of the times. It is
what a user gains who runs this mix of prompts; a mean of per-prompt ratios would be another quantity
[fleming1986, hoefler2015].

The 95 % interval is log(speedup) +- t * standard error: the standard error from the two-way bootstrap of
`resampling`, t with Satterthwaite's degrees of freedom. A percentile interval of 3 sessions cannot leave
the range of 3 values and covers far less than 95 % [hesterberg2015]; docs/statistics.md has both coverages.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import t as student_t

from draftbench.errors import ShapeError
from draftbench.stats.resampling import Array, variance_components

CONFIDENCE = 0.95
MAX_RESAMPLES = 5000
"""So that 4 sessions and 5 prompts, 4,410 different resamples, leave nothing to chance."""
ASKED_HALF_WIDTH = 0.05

Verdict = Literal["faster", "slower", "cannot tell", "within one session"]


@dataclass(frozen=True)
class PairedTotals:
    """Totals of a method and its baseline over the same sessions and prompts.

    Attributes:
        method_tokens, method_s, baseline_tokens, baseline_s: [sessions, prompts] float64, all > 0.

    Raises:
        ShapeError: the shapes differ, are not two-dimensional, or a value is not above 0.
    """

    method_tokens: Array
    method_s: Array
    baseline_tokens: Array
    baseline_s: Array

    def __post_init__(self) -> None:
        arrays = (self.method_tokens, self.method_s, self.baseline_tokens, self.baseline_s)
        shapes = {array.shape for array in arrays}
        if len(shapes) != 1 or self.method_s.ndim != 2 or self.method_s.size == 0:
            raise ShapeError(
                f"expected four arrays of one shape [sessions, prompts], got {[a.shape for a in arrays]}"
            )
        if not all(np.all(np.isfinite(array)) and np.all(array > 0) for array in arrays):
            raise ShapeError(
                "expected totals above 0, got one that is not; leave out cells without a measurement"
            )

    def log_speedup(self, session_counts: Array, prompt_counts: Array) -> Array:
        """Log ratio of totals per resample, [B], from draw counts [B, sessions] and [B, prompts]."""

        def log_total(values: Array) -> Array:
            totals: Array = np.einsum("bs,bs->b", session_counts, prompt_counts @ values.T)
            return np.log(totals)

        gained: Array = log_total(self.method_tokens) - log_total(self.method_s)
        return gained - (log_total(self.baseline_tokens) - log_total(self.baseline_s))


@dataclass(frozen=True)
class Speedup:
    """A speedup and what supports it.

    Attributes:
        ratio: ratio of totals.
        low, high: 95 % interval; None from one session, which knows nothing of other sessions.
        per_prompt: the speedup of each prompt, sessions summed; its range is a spread, not an interval.
        per_session: the speedup of each session, prompts summed.
    """

    ratio: float
    low: float | None
    high: float | None
    per_prompt: tuple[float, ...]
    per_session: tuple[float, ...]

    @property
    def verdict(self) -> Verdict:
        """What may be said: an interval that covers 1 supports neither direction."""
        if self.low is None or self.high is None:
            return "within one session"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "cannot tell"


def compare(totals: PairedTotals, *, seed: int, max_resamples: int = MAX_RESAMPLES) -> Speedup:
    """Speedup with its interval; the same totals and seed give the same bytes."""
    num_sessions, num_prompts = totals.method_s.shape
    log_ratio = float(totals.log_speedup(np.ones((1, num_sessions)), np.ones((1, num_prompts)))[0])
    half_width = None
    if num_sessions > 1:
        components = variance_components(
            totals.log_speedup, num_sessions, num_prompts, max_resamples=max_resamples, seed=seed
        )
        critical = float(student_t.ppf(0.5 + CONFIDENCE / 2, components.degrees_of_freedom))
        half_width = critical * components.total**0.5
    each_prompt = totals.log_speedup(np.ones((num_prompts, num_sessions)), np.eye(num_prompts))
    each_session = totals.log_speedup(np.eye(num_sessions), np.ones((num_sessions, num_prompts)))
    return Speedup(
        ratio=float(np.exp(log_ratio)),
        low=None if half_width is None else float(np.exp(log_ratio - half_width)),
        high=None if half_width is None else float(np.exp(log_ratio + half_width)),
        per_prompt=tuple(float(value) for value in np.exp(each_prompt)),
        per_session=tuple(float(value) for value in np.exp(each_session)),
    )


def relative_half_width(speedup: Speedup) -> float | None:
    """Half of the interval on the log scale, about the +- part as a share of the ratio; None without one."""
    if speedup.low is None or speedup.high is None:
        return None
    return float(np.log(speedup.high / speedup.low)) / 2


def needs_more_sessions(half_width: float | None, *, asked: float = ASKED_HALF_WIDTH) -> bool:
    """Whether another session is worth its time: there is no interval yet, or it is wider than asked.

    Args:
        half_width: of the sessions so far, by `relative_half_width`.
        asked: relative as well; 0.05 asks for +- 5 %.
    """
    return half_width is None or half_width > asked
