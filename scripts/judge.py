r"""Judge whether cells that get their sessions together need another one, from the results so far.

    python scripts/judge.py --campaign-json campaign.json --specs-json specs.json \
        --results results/cpu --group tp1.short --session 3 --out verdict.json

--campaign-json: the resolved campaign (`Campaign.model_dump(mode="json")`).
--specs-json:    {cell name: spec}, what each cell would measure now.
--results:       directory of <cell>.json.
--group:         name of the cells, see draftbench.adaptive.
--session:       the last one that counts.
Writes {"group", "num_sessions", "half_width", "needs_more"} into --out. Exit code 1 and one sentence on
stderr where a result is missing or damaged.
"""

import sys
from collections.abc import Sequence

from draftbench.report.command import path_parser, run
from draftbench.report.sessions import judge


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; returns the exit code."""
    parser = path_parser(__doc__, "campaign-json", "specs-json", "results", "out")
    parser.add_argument("--group", required=True)
    parser.add_argument("--session", type=int, required=True)
    options = parser.parse_args(arguments)
    return run(
        lambda: judge(
            options.campaign_json,
            options.specs_json,
            options.results,
            options.out,
            group_name=options.group,
            session=options.session,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
