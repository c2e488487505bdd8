rule measure:
    input:
        service_token,
    output:
        f"{RESULTS_DIR}/{{service}}.{{workload}}.json",
    log:
        f"logs/measure/{NAME}/{{service}}.{{workload}}.log",
    params:
        spec=cell_spec,
    threads: ALL_CORES
    priority: measure_priority
    shell:
        "exec {PYTHON} {SCRIPTS}/measure.py --session {TOKENS}"
        " --cell {wildcards.service}.{wildcards.workload} >{log} 2>&1"
