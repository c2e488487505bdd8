"""Whether a method's greedy text is the baseline's, and where not, whether that is rounding or a fault.

A speculative method in exact arithmetic emits the baseline's tokens. In a finite number format a wider
verification uses other kernels and another order of summation, so the two best tokens of a near tie can
swap. At the first differing token the target's own logits decide: a gap within the resolution of its
number format is a tie, a wider one is a fault of the method. Tokens after the first difference have
another context and are not compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["tie", "fault", "not measured"]

MIN_NOISE_POSITIONS = 32
UNIT_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


@dataclass(frozen=True)
class LogitGap:
    """What one teacher-forced pass of the target says about two candidate tokens.

    Attributes:
        gap: |logit of the baseline's token - logit of the method's token|, or what it is at least where that
            alone is above the resolution.
        resolution: logit differences up to this are rounding, by `logit_resolution` or `measured_resolution`.
    """

    gap: float
    resolution: float


def logit_resolution(dtype: str, max_abs_logit: float) -> float:
    """Gaps up to this are rounding: 6 u max|logit|, with u the unit roundoff of the target's number format.

    A logit computed in that format is off by about u max|logit| (docs/statistics.md has the measurement).
    Two computations of a gap, each from two logits, differ by twice that; this is three times as much.

    Args:
        dtype: key of `UNIT_ROUNDOFF`.
        max_abs_logit: largest |logit| at the position.
    """
    return 6 * UNIT_ROUNDOFF[dtype] * max_abs_logit


def measured_resolution(num_positions: int, rms: float, largest: float) -> float | None:
    """Gaps up to this are rounding, where a server was seen to compute gaps in two ways: 6 rms.

    Texts part at a gap g only if two computations of that gap differ by g or more, and `rms` is what two of
    them usually differ by. Texts part at the most extreme of thousands of positions, and the differences are
    not normal, hence 6 and not 3 (docs/statistics.md). A difference that was seen is never called a fault.

    Args:
        num_positions: positions computed both ways.
        rms: root mean square of the changes of the gap.
        largest: largest |change|.

    Returns:
        None with fewer than `MIN_NOISE_POSITIONS`, or where nothing changed at all: then the two computations
        were one, and say nothing about a third.
    """
    if num_positions < MIN_NOISE_POSITIONS or rms == 0:
        return None
    return max(6 * rms, largest)


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


def classify(gap: LogitGap | None) -> Kind:
    """Tie or fault by the gap; `not measured` without one."""
    if gap is None:
        return "not measured"
    return "tie" if gap.gap <= gap.resolution else "fault"


def repeated_ngram_share(token_ids: Sequence[int], length: int = 8) -> float | None:
    """Share of n-grams that occurred before in the same output; None where there is none.

    0 for text without repetition, near 1 for a loop. Loops are easy to draft, so they inflate tau.
    """
    if len(token_ids) < length:
        return None
    first_places = _first_places(token_ids, length)
    return 1.0 - len(first_places) / (len(token_ids) - length + 1)


def num_tokens_before_repetition(token_ids: Sequence[int], length: int = 8) -> int:
    """How many tokens stand before the first n-gram that occurred before; all where none did."""
    if len(token_ids) < length:
        return len(token_ids)
    new_places = set(_first_places(token_ids, length).tolist())
    places = range(len(token_ids) - length + 1)
    return next((place for place in places if place not in new_places), len(token_ids))


def _first_places(token_ids: Sequence[int], length: int) -> NDArray[np.intp]:
    """Where each different n-gram begins for the first time, in no particular order."""
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(token_ids, dtype=np.int64), length)
    places: NDArray[np.intp] = np.unique(windows, axis=0, return_index=True)[1]
    return places
