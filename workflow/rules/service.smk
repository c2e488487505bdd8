rule start:
    input:
        model_token,
    output:
        temp(f"{TOKENS}/{{service}}.ready"),
    log:
        f"logs/start/{NAME}/{{service}}.log",
    threads: ALL_CORES
    priority: start_priority
    shell:
        "exec {PYTHON} {SCRIPTS}/start.py --session {TOKENS} --service {wildcards.service} --token {output}"
        " >{log} 2>&1"
