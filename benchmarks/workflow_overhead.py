"""How much of a campaign's time is measurement: the real workflow, client and services, a scripted server.

    python -m benchmarks.workflow_overhead
    python -m benchmarks.workflow_overhead --cell-s 10 --num-workloads 8

Left out, as no part of the question: from a service's last cell to the first of the next, and in every cell
everything before its first measured request. What remains beside the measured windows is the price of a
cell: the end of its command, Snakemake, the start of the next command, the check that the service is healthy.
Prints that price and the share of measurement, and how long a cell must measure for a share of 90 %.
"""

import argparse
import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.workflow.workspace import Workspace, small_campaign

NUM_REQUESTS = 2  # a single workload sends each of the workspace's prompts once
TOKENS = 20
WANTED_SHARE = 0.9


def run_campaign(path, cell_s, num_workloads):
    """Run a campaign whose cells measure about `cell_s` each; its results in the order they were measured."""
    workspace = Workspace(path).create()
    workspace.behave(token_s=cell_s / (NUM_REQUESTS * TOKENS))
    campaign = small_campaign()
    campaign["methods"] = {"ar": {"algorithm": "ar"}, "dflash": {"algorithm": "dflash"}}
    short = campaign["workloads"]["short"] | {"max_tokens": TOKENS}
    campaign["workloads"] = {f"short-{n}": short for n in range(num_workloads)}
    campaign["warmup"] |= {"max_tokens": 1, "max_batches": 2}
    workspace.configure(campaign)
    try:
        finished = workspace.snakemake("--cores", "1", "measured")
        if finished.code:
            raise RuntimeError(finished.text)
    finally:
        workspace.clean_up()
    results = [json.loads(file.read_text()) for file in (path / "results/small").glob("*.json")]
    return sorted(results, key=lambda result: result["start_s"])


def price_of_cells(results):
    """Seconds from the end of each measured window to the next command's first step, inside a service."""
    return [
        later["start_s"] - earlier["window_s"][1]
        for earlier, later in pairwise(results)
        if earlier["service"] == later["service"]
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cell-s", type=float, default=5.0, help="measured time of a cell (default: %(default)s)"
    )
    parser.add_argument("--num-workloads", type=int, default=5, help="cells of each of two services")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        results = run_campaign(Path(path), options.cell_s, options.num_workloads)
    prices = price_of_cells(results)
    measured_s = sum(result["window_s"][1] - result["window_s"][0] for result in results)
    share = measured_s / (measured_s + sum(prices))
    print(f"cells {len(results)}, measured {measured_s:.1f} s, between cells {sum(prices):.1f} s")
    print(f"price of a cell: median {median(prices):.2f} s, at most {max(prices):.2f} s")
    print(f"share of measurement: {share:.1%}")
    needed_s = median(prices) * WANTED_SHARE / (1 - WANTED_SHARE)
    print(f"a share of {WANTED_SHARE:.0%} needs cells that measure {needed_s:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
