"""What a training run is, read strictly from one YAML file (`config/train-<name>.yaml`)."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from draftbench.campaign_file import read_mapping
from draftbench.config import Section, Source
from draftbench.errors import ConfigError

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Data(Section):
    """Which prompts are answered, and how."""

    task_lists: tuple[str, ...] = Field(
        min_length=1, description="YAML files of templates, slots, follow-ups"
    )
    topics: str | None = Field(default=None, description="task list of system lines, for sampled prompts")
    kept_out: tuple[str, ...] = Field(description="folders of YAML files whose texts no prompt may come near")
    max_overlap: Fraction = Field(
        0.3, description="part of a kept-out text's word 5-grams a prompt may share"
    )
    num_composed: PositiveInt = Field(description="prompts composed from the task lists")
    num_sampled: Annotated[int, Field(ge=0)] = Field(0, description="prompts sampled from the target itself")
    num_held_out: PositiveInt = Field(64, description="composed prompts that are only evaluated")
    max_turns: PositiveInt = Field(4, description="user turns of a growing conversation")
    multi_turn_share: Fraction = Field(0.25, description="part of the prompts that get further turns")
    greedy_share: Fraction = Field(
        0.7, description="part answered at temperature 0, the rest at `temperature`"
    )
    temperature: Annotated[float, Field(gt=0)] = 0.7
    past_end_share: Fraction = Field(0.1, description="part that is decoded on after the stop token")
    max_context_tokens: PositiveInt = 2048
    max_new_tokens: PositiveInt = 768
    drop_below: Fraction = Field(0.1, description="a wave ends when fewer of its sequences still run")
    cache_tokens: PositiveInt = Field(65536, description="key and value slots of a wave: as memory allows")
    max_generation_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="no wave starts later"
    )
    num_batches: PositiveInt = Field(2, description="parts done one after the other, each with all its turns")
    seed: int = 0


class DrafterSize(Section):
    """The drafter's own sizes; all others are the target's."""

    num_layers: PositiveInt = 5
    block_size: PositiveInt = 16
    mask_token_id: int = Field(description="a token that no text has; slots 1 and on hold it")


class Loss(Section):
    """See `draftbench.training.loss.LossSettings`."""

    weighting: Literal["decay", "prefix"] = "decay"
    decay_slots: Annotated[float, Field(gt=0)] = 7.0
    smoothing: Fraction = 0.5
    soft_weight: Fraction = 0.0


class Training(Section):
    """One optimisation run."""

    row_length: PositiveInt = 2048
    rows_per_step: PositiveInt = Field(16, description="of each process")
    anchors_per_row: PositiveInt = 256
    num_steps: PositiveInt = 10_000
    max_train_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="the schedule ends at whichever comes first, steps or seconds"
    )
    optimiser: Literal["adamw", "muon"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    warmup: Fraction = 0.04
    gradient_clip: Annotated[float, Field(gt=0)] = 1.0
    loss: Loss = Loss()
    evaluate_every: PositiveInt = 1000
    save_every_s: Annotated[float, Field(gt=0)] = 120
    seed: int = 0


class Evaluation(Section):
    """What the drafter is tried on."""

    natural_prompts: str
    max_new_tokens: PositiveInt = 256
    budgets: tuple[PositiveInt, ...] = (4, 8, 12, 16, 24, 32, 64)


class TrainingRun(Section):
    """The whole file."""

    target: Source = Field(description="as in a campaign: where the target comes from")
    drafter_folder: str
    corpus_folder: str
    device: Literal["auto", "cpu", "cuda"] = "auto"
    data: Data
    drafter: DrafterSize
    training: Training
    evaluation: Evaluation


def load_run(path: Path) -> TrainingRun:
    """Read and check a training run.

    Raises:
        ConfigError: one sentence with file, key, expected and got.
    """
    return check_run(read_mapping(path), path)


def check_run(values: object, origin: Path) -> TrainingRun:
    """Check parsed values of the file `origin`."""
    try:
        return TrainingRun.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        message = re.sub(r"^Value error, ", "", first["msg"])
        raise ConfigError(
            f"{origin}: {key}: expected {message}, got {first.get('input')!r}; correct the key"
        ) from None
