localrules:
    judge,


# A checkpoint: which cells there are depends on what it finds, so Snakemake then asks `further_results` again.
# Only campaigns with `adaptive` have it.
checkpoint judge:
    input:
        results=judged_results,
        script="scripts/judge.py",
        code=library("report", "stats"),
    output:
        f"{VERDICTS}/{{group}}.{{session}}.json",
    log:
        f"logs/judge/{NAME}/{{group}}.{{session}}.log",
    priority: JUDGE_PRIORITY
    conda:
        "../../envs/workflow.yaml"
    shell:
        'exec python {input.script} --campaign-json "$DRAFTBENCH_SESSION/campaign.json"'
        f' --specs-json "$DRAFTBENCH_SESSION/specs.json" --results {RESULTS_DIR}'
        " --group {wildcards.group} --session {wildcards.session} --out {output} >{log} 2>&1"
