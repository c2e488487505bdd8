"""Whether a method's greedy text is the baseline's, and where not, whether that is rounding or a fault.

A speculative method in exact arithmetic emits the baseline's tokens. In a finite number format a wider
verification uses other kernels and another order of summation, so the two best tokens of a near tie can
swap. At the first differing token the target's own logits decide: a gap within the resolution of its
number format is a tie, a wider one is a fault of the method. Tokens after the first difference have
another context and are not compared.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["tie", "fault", "not measured"]

UNIT_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


@dataclass(frozen=True)
class LogitGap:
    """What one teacher-forced pass of the target says about two candidate tokens.

    Attributes:
        gap: |logit of the baseline's token - logit of the method's token|.
        max_abs_logit: largest |logit| at that position, the scale of the rounding.
    """

    gap: float
    max_abs_logit: float


GapProvider = Callable[[Sequence[int], Sequence[int], int, int], LogitGap]
"""(prompt ids, output ids before the difference, baseline's token, method's token) -> LogitGap."""


@dataclass(frozen=True)
class NumberFormat:
    """The target's number format, as far as rounding depends on it.

    Attributes:
        dtype: key of `UNIT_ROUNDOFF`.
        num_layers: decoder layers of the target; each adds twice to the residual stream.
    """

    dtype: str
    num_layers: int

    def resolution(self, max_abs_logit: float) -> float:
        """Logit differences up to this are rounding.

        Rounding errors of n additions grow like sqrt(n) * u [higham2019], u the unit roundoff; the
        residual stream has n = 2 * layers additions. Either candidate's logit carries the error.
        """
        rounding = UNIT_ROUNDOFF[self.dtype] * math.sqrt(2 * self.num_layers)
        return 2 * rounding * max_abs_logit


@dataclass(frozen=True)
class Divergence:
    """First difference of two outputs.

    Attributes:
        position: index of the first differing token; the shorter length where one is a prefix.
        baseline_token, method_token: the tokens there; None where that output has ended.
    """

    position: int
    baseline_token: int | None
    method_token: int | None


def first_divergence(baseline_ids: Sequence[int], method_ids: Sequence[int]) -> Divergence | None:
    """Where two outputs part; None where they are equal, length included."""
    for position, (one, other) in enumerate(zip(baseline_ids, method_ids, strict=False)):
        if one != other:
            return Divergence(position, one, other)
    shorter = min(len(baseline_ids), len(method_ids))
    if len(baseline_ids) == len(method_ids):
        return None
    return Divergence(
        shorter,
        baseline_ids[shorter] if len(baseline_ids) > shorter else None,
        method_ids[shorter] if len(method_ids) > shorter else None,
    )


def classify(gap: LogitGap | None, number_format: NumberFormat | None) -> Kind:
    """Tie or fault; `not measured` without a gap or without knowledge of the number format."""
    if gap is None or number_format is None:
        return "not measured"
    return "tie" if gap.gap <= number_format.resolution(gap.max_abs_logit) else "fault"


def repeated_ngram_share(token_ids: Sequence[int], length: int = 8) -> float | None:
    """Share of n-grams that occurred before in the same output; None where there is none.

    0 for text without repetition, near 1 for a loop. Loops are easy to draft, so they inflate tau.
    """
    count = len(token_ids) - length + 1
    if count < 1:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(token_ids, dtype=np.int64), length)
    return 1.0 - len(np.unique(windows, axis=0)) / count
