localrules:
    preflight,


# Also the first thing that a run does which measures or typesets; see begin_run.
rule preflight:
    conda:
        "../../envs/workflow.yaml"
    shell:
        "exec python scripts/preflight.py"
