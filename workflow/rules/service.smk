rule start:
    input:
        model_token,
    output:
        temp(f"{TOKENS}/{{service}}.ready"),
    log:
        f"logs/start/{NAME}/{{service}}.log",
    priority: start_priority
    conda:
        "../../envs/workflow.yaml"
    threads: ALL_CORES
    shell:
        "exec python scripts/start.py --service {wildcards.service} --token {output:q} >{log} 2>&1"
