r"""Turn a campaign's result files into one table of requests, one of cells, and a summary for the report.

    python scripts/summarise.py --campaign-json campaign.json --specs-json specs.json \
        --results results/cpu --out report/build/cpu
    python scripts/summarise.py ... --partial                  # missing cells become named holes
    python scripts/summarise.py ... --client-sha256 HEX        # names results of other client code

--campaign-json: the resolved campaign (`Campaign.model_dump(mode="json")`).
--specs-json:    {cell name: spec}, what each cell would measure now.
--results:       directory of <cell>.json and <cell>.failed.json.
--no-gaps:       do not load a staged target to explain differing outputs (embedded engine only).
Writes requests.csv, cells.csv and summary.json into --out, and newly measured logit gaps as
logit-gaps.json into --results. Exit code 1 and one sentence on stderr where
the results cannot be summarised.
"""

import sys
from collections.abc import Sequence

from draftbench.engine.huge_pages import ask_for_huge_pages
from draftbench.report.command import path_parser, run
from draftbench.report.summarise import summarise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; returns the exit code."""
    parser = path_parser(__doc__, "campaign-json", "specs-json", "results", "out")
    parser.add_argument("--partial", action="store_true")
    parser.add_argument("--client-sha256")
    parser.add_argument("--no-gaps", action="store_true")
    options = parser.parse_args(arguments)
    return run(
        lambda: summarise(
            options.campaign_json,
            options.specs_json,
            options.results,
            options.out,
            is_partial=options.partial,
            client_sha256=options.client_sha256,
            can_measure_gaps=not options.no_gaps,
        )
    )


if __name__ == "__main__":
    ask_for_huge_pages()  # the logit gaps are passes of the target
    sys.exit(main())
