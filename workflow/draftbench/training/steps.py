"""The three steps of a training run, each from the run's file to files."""

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from draftbench.config import Model
from draftbench.files import sha256_file, write_json
from draftbench.staging.stage import stage_model
from draftbench.training.block_model import BlockModel
from draftbench.training.chat import ChatFormat
from draftbench.training.corpus import Conversation, load_corpus, pack_rows
from draftbench.training.datasets import (
    generate_evaluation_corpora,
    generate_training_corpus,
    natural_prompts,
)
from draftbench.training.decoding import Algorithm, decode_greedily, open_engine, pooled_tau
from draftbench.training.drafter import Drafter, DrafterShape
from draftbench.training.evaluation import summarise
from draftbench.training.heldout import draft_everywhere, summarise_linear
from draftbench.training.loss import LossSettings
from draftbench.training.settings import TrainingRun
from draftbench.training.target import Target
from draftbench.training.trainer import train

logger = logging.getLogger(__name__)
Work = Callable[[TrainingRun, int, int, str], None]
STAGING_ROOT = Path("run/staging")
NUM_TEXTS_WHILE_TRAINING = 64


def num_processes(run: TrainingRun) -> int:
    """One process for each visible GPU; one where there is none or the run wants the CPU."""
    return max(1, torch.cuda.device_count()) if run.device != "cpu" else 1


def run_device(run: TrainingRun, number: int = 0) -> torch.device:
    """The device of the run's process `number`."""
    has_gpu = torch.cuda.is_available() if run.device == "auto" else run.device == "cuda"
    return torch.device("cuda", number) if has_gpu else torch.device("cpu")


def target_folder(run: TrainingRun) -> Path:
    """Folder of the run's target, staged when it is not there."""
    return stage_model(Model(target=run.target), STAGING_ROOT).target_dir


def load_target(run: TrainingRun, folder: Path, number: int = 0) -> Target:
    """The target on the device of process `number`: bfloat16 on a GPU, float32 on a CPU."""
    device = run_device(run, number)
    return Target.load(folder, device, torch.bfloat16 if device.type == "cuda" else torch.float32)


def on_every_device(work: Work, run: TrainingRun, count: int) -> None:
    """Do `work` as `count` processes, this one being the first; an error of any of them ends all."""
    with tempfile.TemporaryDirectory() as meeting:
        arguments = (work, run, count, meeting)
        others = spawn(_do_as_other, arguments, nprocs=count - 1, join=False)  # type: ignore[no-untyped-call]
        try:
            work(run, 0, count, meeting)
        except BaseException:
            for process in others.processes:
                process.kill()
            raise
        while not others.join():
            pass


def _do_as_other(index: int, work: Work, run: TrainingRun, count: int, meeting: str) -> None:
    work(run, index + 1, count, meeting)


def generate_responses(run: TrainingRun) -> None:
    """Write the training, held-out and natural corpora into the corpus folder."""
    for share in Path(run.corpus_folder).glob("train-*.npz"):
        share.unlink()  # an earlier run on more devices left more of them, and all are trained on
    on_every_device(_generate_share, run, num_processes(run))


def _generate_share(run: TrainingRun, number: int, count: int, _meeting: str) -> None:
    folder = target_folder(run)
    target, chat = load_target(run, folder, number), ChatFormat(folder)
    if number == 0:
        generate_evaluation_corpora(run, target, chat)
    generate_training_corpus(run, target, chat, (number, count))


def train_drafter(run: TrainingRun) -> None:
    """Train on the corpus folder's `train-*.npz`; writes the checkpoint and its log."""
    on_every_device(train_share, run, num_processes(run))


def train_share(run: TrainingRun, number: int, count: int, meeting: str) -> None:
    """Train as process `number` of `count`, which find each other in the folder `meeting`."""
    device = run_device(run, number)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if count > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, f"file://{meeting}/meet", rank=number, world_size=count)
    try:
        _train(run, load_target(run, target_folder(run), number))
    finally:
        if count > 1:
            dist.destroy_process_group()


def _train(run: TrainingRun, target: Target) -> None:
    corpus = Path(run.corpus_folder)
    rows = pack_rows(load_corpus(sorted(corpus.glob("train-*.npz"))), run.training.row_length)
    held_out = load_corpus([corpus / "held-out.npz"])[:NUM_TEXTS_WHILE_TRAINING]
    torch.manual_seed(run.training.seed)  # the same weights in every process
    size = run.drafter
    drafter = Drafter(DrafterShape(target.shape, size.num_layers, size.block_size, size.mask_token_id))
    loss = LossSettings(**run.training.loss.model_dump())
    model = BlockModel(target, drafter.to(target.embedding.device), loss)

    def evaluate(model: BlockModel) -> dict[str, float]:
        return summarise_linear(list(draft_everywhere(model, held_out, 1, *_eval_shape(run))))

    train(model, rows, run.training, Path(run.drafter_folder), evaluate)


def _eval_shape(run: TrainingRun) -> tuple[int, tuple[int, int]]:
    training = run.training
    return training.row_length, (training.rows_per_step, training.anchors_per_row)


def evaluate_drafter(run: TrainingRun) -> None:
    """Write `evaluation.json` beside the checkpoint.

    Held-out and natural texts are walked through at every budget; the natural prompts are also decoded
    for real by the embedded engine, linear and with the largest budget that is not above the block.
    """
    folder = target_folder(run)
    target = load_target(run, folder)
    checkpoint = Path(run.drafter_folder)
    model = BlockModel(target, Drafter.load(checkpoint, target.shape, run_device(run)), LossSettings())
    report: dict[str, Any] = {"model_sha256": sha256_file(checkpoint / "model.safetensors")}
    for name in ("held-out", "natural"):
        report[name] = _walk(run, model, load_corpus([Path(run.corpus_folder) / f"{name}.npz"]))
    report["decoded"] = _decode(run, folder, checkpoint)
    write_json(checkpoint / "evaluation.json", report)


def _walk(run: TrainingRun, model: BlockModel, texts: list[Conversation]) -> dict[str, Any]:
    budgets = run.evaluation.budgets
    return summarise(list(draft_everywhere(model, texts, max(budgets), *_eval_shape(run))), budgets)


def _decode(run: TrainingRun, folder: Path, checkpoint: Path) -> dict[str, Any]:
    """Tau of real decoding on the natural prompts, in all and by type."""
    prompts = natural_prompts(Path(run.evaluation.natural_prompts))
    chat = ChatFormat(folder)
    openings = [chat.opening(prompt["text"]) for prompt in prompts]
    types = np.array([prompt["type"] for prompt in prompts])
    budget = max(size for size in run.evaluation.budgets if size <= max(16, min(run.evaluation.budgets)))
    results: dict[str, Any] = {}
    methods: dict[str, Algorithm] = {"dflash": "DFLASH", f"ddtree-b{budget}": "DDTREE"}
    for name, algorithm in methods.items():
        engine = open_engine(folder, checkpoint, algorithm, budget)
        try:
            decoded = decode_greedily(engine, openings, run.evaluation.max_new_tokens)
        finally:
            engine.shutdown(timeout_s=30)
        by_type = {
            kind: round(
                pooled_tau([item for item, own in zip(decoded, types, strict=True) if own == kind]), 3
            )
            for kind in dict.fromkeys(types.tolist())
        }
        results[name] = {"tau": round(pooled_tau(decoded), 3), "by_type": by_type}
        logger.info("%s: %s", name, results[name])
    return results
