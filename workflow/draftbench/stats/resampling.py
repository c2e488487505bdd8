"""The two-way bootstrap: sessions and prompts are resampled, each whole.

Every session asks the same prompts, so the two factors are crossed, not nested. Resampling prompts anew
inside each session would treat a prompt's own speed as if it differed from session to session, and give
intervals that are too narrow by up to the square root of the number of sessions. Here one resample draws
sessions and prompts independently and keeps each pair's measurement: the pigeonhole bootstrap
[owen2007]. `scipy.stats.bootstrap` resamples one factor only, so the resampling is here; it is
a matrix product of draw counts. Few units have few different resamples, 10 of 3 sessions and 126 of 5
prompts; then all of them are taken, each with its probability, and nothing depends on a seed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.stats import multinomial

Array = NDArray[np.float64]
Statistic = Callable[[Array, Array], Array]
"""Maps session counts [B, S] and prompt counts [B, P] to the statistic of each resample, [B]."""


@dataclass(frozen=True)
class VarianceComponents:
    """Squared standard errors by cause, each corrected for its small number of units.

    Attributes:
        session: variance of the statistic when other sessions are drawn; None with one session.
        prompt: the same for prompts; None with one prompt.
        interaction: the part that both of the above contain; 0 where either is None.
        num_sessions, num_prompts: units resampled.
    """

    session: float | None
    prompt: float | None
    interaction: float
    num_sessions: int
    num_prompts: int

    @property
    def total(self) -> float:
        """Variance of the statistic over other sessions and other prompts.

        Never less than either factor's own part, which the subtraction could cause in small samples.
        """
        parts = [part for part in (self.session, self.prompt) if part is not None]
        return max(sum(parts) - self.interaction, *parts) if parts else 0.0

    @property
    def degrees_of_freedom(self) -> float:
        """Satterthwaite's approximation [satterthwaite1946], not below the smaller factor's own."""
        pairs = [
            (part, size - 1)
            for part, size in ((self.session, self.num_sessions), (self.prompt, self.num_prompts))
            if part is not None
        ]
        floor = min(degrees for _, degrees in pairs)
        if self.interaction > 0:
            pairs.append((self.interaction, (self.num_sessions - 1) * (self.num_prompts - 1)))
        spread = sum(part**2 / degrees for part, degrees in pairs)
        return max(self.total**2 / spread, float(floor)) if spread > 0 else float(floor)


@cache
def every_count(num_units: int) -> tuple[Array, Array]:
    """All different resamples of so many units: counts [R, units] and the probability of each, [R]."""
    draws = combinations_with_replacement(range(num_units), num_units)
    counts = np.array([np.bincount(draw, minlength=num_units) for draw in draws], dtype=np.float64)
    return counts, multinomial.pmf(counts, num_units, np.full(num_units, 1.0 / num_units))


def draw_counts(num_units: int, num_resamples: int, generator: np.random.Generator) -> Array:
    """How often each unit is drawn in each resample with replacement, [B, units] float64."""
    shares = np.full(num_units, 1.0 / num_units)
    return generator.multinomial(num_units, shares, size=num_resamples).astype(np.float64)


def resamples(
    num_sessions: int, num_prompts: int, *, max_resamples: int, seed: int
) -> tuple[Array, Array, Array]:
    """Session counts [B, S], prompt counts [B, P], and the probability of each pair of them, [B].

    All pairs where they are no more than `max_resamples`, else so many seeded draws.
    """
    num_pairs = comb(2 * num_sessions - 1, num_sessions) * comb(2 * num_prompts - 1, num_prompts)
    if num_pairs <= max_resamples:
        sessions, session_weights = every_count(num_sessions)
        prompts, prompt_weights = every_count(num_prompts)
        weights = np.outer(session_weights, prompt_weights).ravel()
        return np.repeat(sessions, len(prompts), axis=0), np.tile(prompts, (len(sessions), 1)), weights
    generator = np.random.default_rng(seed)
    sessions = draw_counts(num_sessions, max_resamples, generator)
    prompts = draw_counts(num_prompts, max_resamples, generator)
    return sessions, prompts, np.full(max_resamples, 1.0 / max_resamples)


def variance_components(
    statistic: Statistic, num_sessions: int, num_prompts: int, *, max_resamples: int, seed: int
) -> VarianceComponents:
    """Resample sessions alone, prompts alone and both, and separate the variances.

    A resample of n units has variance (n - 1) / n of the right one, hence the factors; what only the joint
    resample has is short of both.
    """
    sessions, prompts, weights = resamples(num_sessions, num_prompts, max_resamples=max_resamples, seed=seed)
    all_sessions, all_prompts = np.ones_like(sessions), np.ones_like(prompts)
    point = statistic(all_sessions[:1], all_prompts[:1])
    by_session = statistic(sessions, all_prompts) - point
    by_prompt = statistic(all_sessions, prompts) - point
    both = statistic(sessions, prompts) - point
    shrink_s, shrink_p = (num_sessions - 1) / num_sessions, (num_prompts - 1) / num_prompts
    session = float(weights @ by_session**2) / shrink_s if shrink_s else None
    prompt = float(weights @ by_prompt**2) / shrink_p if shrink_p else None
    crossed = float(weights @ (both - by_session - by_prompt) ** 2)
    interaction = crossed / (shrink_s * shrink_p) if shrink_s and shrink_p else 0.0
    return VarianceComponents(session, prompt, interaction, num_sessions, num_prompts)
