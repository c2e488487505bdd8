"""Campaigns with a known speedup, for measuring what an interval's promise is worth.

The time of a request is tokens x session effect x noise for the baseline, and that divided by the
method's speedup on that prompt in that session; all effects are lognormal, so the ratio of expected
totals is known in closed form.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from draftbench.stats.speedup import PairedTotals, compare


@dataclass(frozen=True)
class Scenario:
    """How sessions, prompts and requests vary; all spreads are standard deviations of logarithms.

    Attributes:
        num_sessions, num_prompts: size of a campaign.
        session_sd: of the speedup between starts of the services.
        prompt_sd: of the speedup between prompts.
        noise_sd: of a single request's time.
        length_sd: of the prompts' output lengths; 0 for fixed lengths.
        speedup: typical one.
    """

    num_sessions: int
    num_prompts: int
    session_sd: float
    prompt_sd: float
    noise_sd: float
    length_sd: float = 0.0
    speedup: float = 2.0

    @property
    def truth(self) -> float:
        """Expected baseline time over expected method time, at equal tokens."""
        spread = (self.session_sd**2 + self.prompt_sd**2 + self.noise_sd**2) / 2
        return self.speedup * float(np.exp(self.noise_sd**2 / 2 - spread))

    def campaigns(self, num_campaigns: int, seed: int) -> Iterator[PairedTotals]:
        """Independent campaigns: new sessions and new prompts in each."""
        generator = np.random.default_rng(seed)
        shape = (self.num_sessions, self.num_prompts)
        for _ in range(num_campaigns):
            tokens = np.broadcast_to(np.exp(generator.normal(0, self.length_sd, shape[1])), shape)
            host = np.exp(generator.normal(0, self.session_sd, (shape[0], 1)))
            log_speedup = (
                np.log(self.speedup)
                + generator.normal(0, self.session_sd, (shape[0], 1))
                + generator.normal(0, self.prompt_sd, shape[1])
                + generator.normal(0, self.noise_sd, shape)
            )
            baseline_s = tokens * host * np.exp(generator.normal(0, self.noise_sd, shape))
            yield PairedTotals(tokens, tokens * host * np.exp(-log_speedup), tokens, baseline_s)


def coverage(scenario: Scenario, *, num_campaigns: int, max_resamples: int, seed: int) -> float:
    """Share of campaigns whose interval holds the truth."""
    hits = 0
    for index, totals in enumerate(scenario.campaigns(num_campaigns, seed)):
        speedup = compare(totals, seed=index, max_resamples=max_resamples)
        if speedup.low is not None and speedup.high is not None:
            hits += speedup.low <= scenario.truth <= speedup.high
    return hits / num_campaigns
