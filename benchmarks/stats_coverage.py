"""How often three 95 % intervals hold the true speedup: a table of simulated campaigns.

    python benchmarks/stats_coverage.py                        # 2,000 campaigns a row, some minutes
    python benchmarks/stats_coverage.py --campaigns 500        # a rough look
    python benchmarks/stats_coverage.py --adaptive             # campaigns that look before they stop

`ours` is the interval of `draftbench.stats.speedup`; `crossed` takes percentiles of such resamples;
`nested` draws prompts anew inside each drawn session and takes percentiles. With --adaptive each campaign
adds sessions until the interval is as narrow as asked or the limit is reached, and only ours is counted. The
tables in docs/statistics.md are this script's output.
"""

import argparse

import numpy as np

from draftbench.stats.resampling import draw_counts
from draftbench.stats.simulate import Scenario
from draftbench.stats.speedup import PairedTotals, compare, needs_more_sessions, relative_half_width

NUM_RESAMPLES = 500  # for the percentiles of the other two
ASKED, LIMIT = 0.05, 8
SCENARIOS = [
    Scenario(2, 5, session_sd=0.02, prompt_sd=0.2, noise_sd=0.01),
    Scenario(3, 5, session_sd=0.02, prompt_sd=0.2, noise_sd=0.01),
    Scenario(3, 5, session_sd=0.05, prompt_sd=0.05, noise_sd=0.02),
    Scenario(3, 5, session_sd=0.05, prompt_sd=0.01, noise_sd=0.01),
    Scenario(3, 5, session_sd=0.0, prompt_sd=0.0, noise_sd=0.03),
    Scenario(3, 5, session_sd=0.02, prompt_sd=0.2, noise_sd=0.01, length_sd=0.5),
    Scenario(3, 10, session_sd=0.02, prompt_sd=0.05, noise_sd=0.01),
    Scenario(5, 5, session_sd=0.02, prompt_sd=0.2, noise_sd=0.03),
    Scenario(5, 10, session_sd=0.05, prompt_sd=0.05, noise_sd=0.02),
    Scenario(3, 1, session_sd=0.03, prompt_sd=0.0, noise_sd=0.01),
]
ADAPTIVE_SCENARIOS = [
    Scenario(LIMIT, 5, session_sd=0.02, prompt_sd=0.02, noise_sd=0.01),
    Scenario(LIMIT, 5, session_sd=0.03, prompt_sd=0.01, noise_sd=0.01),
    Scenario(LIMIT, 5, session_sd=0.05, prompt_sd=0.02, noise_sd=0.02),
    Scenario(LIMIT, 5, session_sd=0.02, prompt_sd=0.2, noise_sd=0.01),
    Scenario(LIMIT, 1, session_sd=0.03, prompt_sd=0.0, noise_sd=0.01),
]


def crossed_percentiles(totals: PairedTotals, generator: np.random.Generator) -> tuple[float, float]:
    num_sessions, num_prompts = totals.method_s.shape
    sessions = draw_counts(num_sessions, NUM_RESAMPLES, generator)
    prompts = draw_counts(num_prompts, NUM_RESAMPLES, generator)
    low, high = np.exp(np.quantile(totals.log_speedup(sessions, prompts), [0.025, 0.975]))
    return float(low), float(high)


def nested_percentiles(totals: PairedTotals, generator: np.random.Generator) -> tuple[float, float]:
    num_sessions, num_prompts = totals.method_s.shape
    drawn = generator.integers(num_sessions, size=(NUM_RESAMPLES, num_sessions, 1))
    prompts = generator.integers(num_prompts, size=(NUM_RESAMPLES, num_sessions, num_prompts))
    method_s, baseline_s = (
        values[drawn, prompts].sum(axis=(1, 2)) for values in (totals.method_s, totals.baseline_s)
    )
    low, high = np.quantile(baseline_s / method_s, [0.025, 0.975])
    return float(low), float(high)


def coverages(scenario: Scenario, num_campaigns: int) -> tuple[float, float, float]:
    hits = np.zeros(3)
    generator = np.random.default_rng(1)
    for index, totals in enumerate(scenario.campaigns(num_campaigns, seed=2)):
        speedup = compare(totals, seed=index)
        intervals = [
            (speedup.low or 0.0, speedup.high or 0.0),
            crossed_percentiles(totals, generator),
            nested_percentiles(totals, generator),
        ]
        hits += [low <= scenario.truth <= high for low, high in intervals]
    ours, crossed, nested = hits / num_campaigns
    return float(ours), float(crossed), float(nested)


def stopped(totals: PairedTotals, first: int, seed: int) -> tuple[int, float, float]:
    """Sessions and interval of a campaign that looks after session `first` and every later one."""
    for num_sessions in range(first, LIMIT + 1):
        parts = (totals.method_tokens, totals.method_s, totals.baseline_tokens, totals.baseline_s)
        sessions = PairedTotals(*(part[:num_sessions] for part in parts))
        speedup = compare(sessions, seed=seed)
        if not needs_more_sessions(relative_half_width(speedup), asked=ASKED):
            break
    return num_sessions, speedup.low or 0.0, speedup.high or 0.0


def adaptive_row(scenario: Scenario, first: int, num_campaigns: int) -> str:
    found = [
        stopped(totals, first, index)
        for index, totals in enumerate(scenario.campaigns(num_campaigns, seed=2))
    ]
    held = np.mean([low <= scenario.truth <= high for _, low, high in found])
    narrow = np.mean([float(np.log(high / low)) / 2 <= ASKED for _, low, high in found])
    return f"{np.mean([num for num, _, _ in found]):.1f} | {narrow:.0%} | {held:.1%}"


def print_adaptive(num_campaigns: int) -> None:
    print("| prompts | session sd | prompt sd | noise sd | first look | sessions | as narrow | covered |")
    print("|---|---|---|---|---|---|---|---|")
    for scenario in ADAPTIVE_SCENARIOS:
        spreads = f"{scenario.session_sd} | {scenario.prompt_sd} | {scenario.noise_sd}"
        for first in (2, 3, 4):
            row = adaptive_row(scenario, first, num_campaigns)
            print(f"| {scenario.num_prompts} | {spreads} | {first} | {row} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--campaigns", type=int, default=2000)
    parser.add_argument("--adaptive", action="store_true")
    options = parser.parse_args()
    if options.adaptive:
        print_adaptive(options.campaigns)
        return
    print("| sessions | prompts | session sd | prompt sd | noise sd | length sd | ours | crossed | nested |")
    print("|---|---|---|---|---|---|---|---|---|")
    for scenario in SCENARIOS:
        shares = " | ".join(f"{share:.1%}" for share in coverages(scenario, options.campaigns))
        spreads = f"{scenario.session_sd} | {scenario.prompt_sd} | {scenario.noise_sd} | {scenario.length_sd}"
        print(f"| {scenario.num_sessions} | {scenario.num_prompts} | {spreads} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
