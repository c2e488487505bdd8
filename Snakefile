"""Draft-based speculative decoding, measured: one result per cell, one report made of them.

snakemake --cores 1 report/bench.pdf                      the default campaign, config/config.yaml
snakemake --cores 1 report/bench.pdf --configfile config/smoke.yaml
snakemake -n                                              what is still to be done
snakemake --cores 1 report/bench.pdf --forcerun results/cpu/tp1-dflash.long.json
snakemake --cores 1 report/partial.pdf                    the report, with its holes named
snakemake --cores 1 measured                              all results, no report
snakemake --cores 1 preflight                             everything that stands in the way of a run
"""

from snakemake.utils import min_version

min_version("9.0")

# Snakemake merges --configfile into this one, which would mix two campaigns.
if not workflow.configfiles:

    configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/stage.smk"
include: "workflow/rules/service.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/preflight.smk"
include: "workflow/rules/train.smk"


if CAMPAIGN.adaptive:

    include: "workflow/rules/judge.smk"


localrules:
    all,
    measured,


rule all:
    default_target: True
    input:
        "report/bench.pdf",


rule measured:
    input:
        RESULTS,
        *FURTHER_RESULTS,


onstart:
    begin_run()


onsuccess:
    end_run()


onerror:
    end_run()
