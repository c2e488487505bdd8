rule stage:
    output:
        temp(f"{TOKENS}/{{model}}.staged"),
    log:
        f"logs/stage/{NAME}/{{model}}.log",
    priority: stage_priority
    conda:
        "../../envs/workflow.yaml"
    threads: ALL_CORES
    shell:
        "exec python scripts/stage.py --model {wildcards.model} --token {output:q} >{log} 2>&1"
