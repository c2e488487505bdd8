"""The training loop: frozen target and drafter in one step, on one device or several.

Several devices: one process each, joined by `torch.distributed`; every process takes its share of the
rows and gradients are averaged. Nothing else differs.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from draftbench.training.block_model import BlockModel, Outcome
from draftbench.training.blocks import Batch, choose_anchors
from draftbench.training.corpus import Rows
from draftbench.training.drafter import Drafter
from draftbench.training.loss import emitted_tokens
from draftbench.training.settings import Training

logger = logging.getLogger(__name__)
LOG_EVERY_STEPS = 50
AGREE_EVERY_STEPS = 10


class BatchSource:
    """Endless shuffled batches of packed rows; each process sees its own share."""

    def __init__(self, rows: Rows, rows_per_step: int, seed: int, device: torch.device) -> None:
        self.rows, self.rows_per_step, self.device = rows, rows_per_step, device
        self.random = np.random.default_rng(seed)
        self.rank, self.num_processes = process_place()

    def take(self, index: np.ndarray) -> Batch:
        """Rows `index` as a batch on the device."""

        def move(array: np.ndarray) -> Tensor:
            tensor = torch.from_numpy(array[index])
            return (
                tensor.pin_memory().to(self.device, non_blocking=True)
                if self.device.type == "cuda"
                else tensor
            )

        rows = self.rows
        return Batch(move(rows.ids), move(rows.document), move(rows.positions), move(rows.is_response))

    def __iter__(self) -> Iterator[Batch]:
        """Batches for ever; an epoch's incomplete last batch is filled from its beginning."""
        while True:
            order = self.random.permutation(len(self.rows.ids))  # the same in every process
            share = self.rows_per_step * self.num_processes
            order = np.resize(order, -(-len(order) // share) * share)
            for start in range(self.rank * self.rows_per_step, len(order), share):
                yield self.take(order[start : start + self.rows_per_step])


def process_place() -> tuple[int, int]:
    """Rank and number of processes; 0 and 1 where none were joined."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def make_optimisers(drafter: Drafter, settings: Training) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices and AdamW for the norms."""
    rate, decay = settings.learning_rate, settings.weight_decay
    is_cuda = next(drafter.parameters()).is_cuda
    by_muon = [p for p in drafter.parameters() if p.ndim == 2 and settings.optimiser == "muon"]
    by_adamw = [p for p in drafter.parameters() if not (p.ndim == 2 and settings.optimiser == "muon")]
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(by_adamw, lr=rate, weight_decay=decay, betas=(0.9, 0.95), fused=is_cuda)
    ]
    if by_muon:
        # this scaling gives a Muon step the size of an AdamW step, so one learning rate serves both
        muon = torch.optim.Muon(by_muon, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        optimisers.append(muon)
    return optimisers


def rate_factor(progress: float, warmup: float) -> float:
    """Linear warm-up, then cosine to zero; progress in [0, 1]."""
    if progress < warmup:
        return progress / warmup
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def average_gradients(drafter: Drafter) -> None:
    """Mean over the processes, in one message."""
    if not dist.is_initialized():
        return
    gradients = [p.grad for p in drafter.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, part in zip(gradients, torch.split(flat, sizes), strict=True):
        gradient.copy_(part.view_as(gradient))


class Progress:
    """Where a run stands between 0 and 1, by steps or seconds; the first process's clock counts."""

    def __init__(self, settings: Training, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.began_s = time.monotonic()
        self.by_clock = 0.0

    def at(self, step: int) -> float:
        """Progress before `step`."""
        if self.settings.max_train_s is not None and step % AGREE_EVERY_STEPS == 0:
            elapsed = torch.tensor(time.monotonic() - self.began_s, device=self.device)
            if dist.is_initialized():
                dist.broadcast(elapsed, src=0)
            self.by_clock = float(elapsed) / self.settings.max_train_s
        return min(1.0, max(self.by_clock, step / self.settings.num_steps))


def train(
    model: BlockModel,
    rows: Rows,
    settings: Training,
    folder: Path,
    evaluate: Callable[[BlockModel], dict[str, float]] | None = None,
) -> list[dict[str, float]]:
    """Train the drafter of `model` and save it to `folder`, now and then and at the end.

    Args:
        model: target and drafter on one device.
        rows: packed training rows.
        settings: the run.
        folder: gets `config.json`, `model.safetensors` and `log.jsonl`.
        evaluate: called every `evaluate_every` steps and at the end; its numbers enter the log.

    Returns:
        the log's lines.
    """
    torch.manual_seed(settings.seed + process_place()[0])  # anchors differ between processes
    optimisers = make_optimisers(model.drafter, settings)
    source = iter(BatchSource(rows, settings.rows_per_step, settings.seed, model.device))
    progress = Progress(settings, model.device)
    log = RunLog(folder, model)
    step, saved_s = 0, time.monotonic()
    while (now := progress.at(step)) < 1:
        batch = next(source)
        anchors = choose_anchors(batch, settings.anchors_per_row, None)
        outcome = model.backward(batch, anchors)
        average_gradients(model.drafter)
        torch.nn.utils.clip_grad_norm_(model.drafter.parameters(), settings.gradient_clip)
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * rate_factor(now, settings.warmup)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        step += 1
        if step % LOG_EVERY_STEPS == 0:
            log.add_outcome(step, time.monotonic() - progress.began_s, outcome)
        if evaluate is not None and step % settings.evaluate_every == 0:
            log.add({"step": step, **evaluate(model)})
        if time.monotonic() - saved_s > settings.save_every_s:
            log.save_drafter()
            saved_s = time.monotonic()
    if evaluate is not None:
        log.add({"step": step, "train_s": time.monotonic() - progress.began_s, **evaluate(model)})
    log.save_drafter()
    return log.lines


class RunLog:
    """The log of a run and its checkpoints, written by the first process only."""

    def __init__(self, folder: Path, model: BlockModel) -> None:
        self.folder, self.model = folder, model
        self.is_writer = process_place()[0] == 0
        self.lines: list[dict[str, float]] = []
        if self.is_writer:
            (folder / "log.jsonl").unlink(missing_ok=True)  # of an earlier run

    def add(self, line: dict[str, float]) -> None:
        """Keep a line, log it, append it to `log.jsonl`."""
        self.lines.append(line)
        if not self.is_writer:
            return
        logger.info("%s", " ".join(f"{key}={value:.4g}" for key, value in line.items()))
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "log.jsonl", "a") as stream:
            stream.write(json.dumps(line) + "\n")

    def add_outcome(self, step: int, elapsed_s: float, outcome: Outcome) -> None:
        """Loss and tokens a round of a training batch; waits for the device."""
        emitted, is_full = emitted_tokens(outcome.is_correct, outcome.is_valid)
        tau = (emitted * is_full).sum() / is_full.sum().clamp(min=1)
        self.add(
            {
                "step": step,
                "elapsed_s": elapsed_s,
                "loss": float(outcome.loss.detach()),
                "train_tau": float(tau),
            }
        )

    def save_drafter(self) -> None:
        """Write the checkpoint."""
        if self.is_writer:
            self.model.drafter.save(self.folder)
