localrules:
    preflight,


# Also the first thing that a run does which measures or typesets; see begin_run.
rule preflight:
    log:
        f"logs/preflight/{NAME}.log",
    conda:
        "../../envs/workflow.yaml"
    shell:
        "python scripts/preflight.py >{log} 2>&1 && cat {log}"
