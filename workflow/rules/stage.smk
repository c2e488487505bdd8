rule stage:
    output:
        temp(f"{TOKENS}/{{model}}.staged"),
    log:
        f"logs/stage/{NAME}/{{model}}.log",
    threads: ALL_CORES
    priority: stage_priority
    shell:
        "exec {PYTHON} {SCRIPTS}/stage.py --session {TOKENS} --model {wildcards.model} --token {output}"
        " >{log} 2>&1"
