"""Say everything that stands in the way of a campaign, and how long it will take; changes nothing.

    snakemake --cores 1 preflight
    snakemake --cores 1 preflight --configfile config/h200.yaml

Reads the campaign from the run's directory, $DRAFTBENCH_SESSION, see draftbench.steps.
Prints a line for each check and the problems at the end. Exit code 1 where there is a problem.
"""

import argparse
import sys
from collections.abc import Sequence

from draftbench.config import Campaign
from draftbench.host import session_directory
from draftbench.preflight.checklist import listed, report_checks, run_checks, service_checks
from draftbench.steps import CAMPAIGN_FILE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks; returns the exit code."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args(arguments)
    campaign = Campaign.model_validate_json((session_directory() / CAMPAIGN_FILE).read_bytes())
    findings = run_checks(campaign, [*service_checks(campaign), *report_checks()])
    for note in findings.notes:
        print(note)
    if findings.problems:
        print(f"error: {listed(findings.problems)}")
        return 1
    print(f"campaign {campaign.campaign} can be run here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
