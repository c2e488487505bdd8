rule measure:
    input:
        service_token,
    output:
        f"{RESULTS_DIR}/{{service}}.{{workload}}.json",
    log:
        f"logs/measure/{NAME}/{{service}}.{{workload}}.log",
    priority: measure_priority
    conda:
        "../../envs/workflow.yaml"
    threads: ALL_CORES
    params:
        spec=cell_spec,
    shell:
        "exec python scripts/measure.py --cell {wildcards.service}.{wildcards.workload} >{log} 2>&1"
