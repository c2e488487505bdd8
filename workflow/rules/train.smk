from draftbench.training.settings import load_run

# Another target: a file of its own, named by this variable.
TRAINING_FILE = os.environ.get("DRAFTBENCH_TRAINING", "config/train-smollm2.yaml")
try:
    TRAINING = load_run(Path(TRAINING_FILE))
except DraftbenchError as error:
    sys.exit(f"error: {error}")
TRAINING_LOGS = f"logs/train/{Path(TRAINING_FILE).stem}"


rule generate_responses:
    input:
        run=TRAINING_FILE,
        prompts=[*TRAINING.data.task_lists, TRAINING.evaluation.natural_prompts],
    output:
        f"{TRAINING.corpus_folder}/train-0.npz",
        f"{TRAINING.corpus_folder}/held-out.npz",
        f"{TRAINING.corpus_folder}/natural.npz",
    log:
        f"{TRAINING_LOGS}/generate_responses.log",
    conda:
        "../../envs/workflow.yaml"
    threads: ALL_CORES
    shell:
        "exec python scripts/generate_responses.py --run {input.run:q} >{log} 2>&1"


rule train_drafter:
    input:
        run=TRAINING_FILE,
        corpus=rules.generate_responses.output,
    output:
        f"{TRAINING.drafter_folder}/model.safetensors",
        f"{TRAINING.drafter_folder}/config.json",
    log:
        f"{TRAINING_LOGS}/train_drafter.log",
    conda:
        "../../envs/workflow.yaml"
    threads: ALL_CORES
    shell:
        "exec python scripts/train_drafter.py --run {input.run:q} >{log} 2>&1"


rule evaluate_drafter:
    input:
        run=TRAINING_FILE,
        drafter=rules.train_drafter.output,
    output:
        f"{TRAINING.drafter_folder}/evaluation.json",
    log:
        f"{TRAINING_LOGS}/evaluate_drafter.log",
    conda:
        "../../envs/workflow.yaml"
    threads: ALL_CORES
    shell:
        "exec python scripts/evaluate_drafter.py --run {input.run:q} >{log} 2>&1"
