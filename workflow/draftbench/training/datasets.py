"""The three corpora of a run: training, held out, and the natural prompts."""

import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from draftbench.training.chat import ChatFormat
from draftbench.training.compose import KeptOut, Prompt, compose, fill, load_task_list, texts_of
from draftbench.training.corpus import Conversation, save_corpus
from draftbench.training.generation import GenerationSettings, generate
from draftbench.training.responses import answer_prompts, sample_prompts
from draftbench.training.settings import Data, TrainingRun
from draftbench.training.target import Target

logger = logging.getLogger(__name__)


def kept_out_texts(run: TrainingRun) -> KeptOut:
    """The campaigns' prompts and the natural set, which no training prompt may come near."""
    paths = [path for folder in run.data.kept_out for path in sorted(Path(folder).glob("*.yaml"))]
    paths.append(Path(run.evaluation.natural_prompts))
    return KeptOut([text for path in paths for text in texts_of(path)], run.data.max_overlap)


def composed_prompts(data: Data, kept_out: KeptOut) -> list[Prompt]:
    """Prompts of the run's task lists: the first `num_held_out` are for evaluation only."""
    lists = [load_task_list(Path(name)) for name in data.task_lists]
    return compose(lists, data.num_composed + data.num_held_out, kept_out, data.seed)


def topic_lines(data: Data) -> list[str]:
    """`num_sampled` system lines after which the target writes user messages."""
    if data.topics is None:
        return []
    tasks = load_task_list(Path(data.topics))
    rng = random.Random(data.seed)  # noqa: S311  choices of topics, no secrets
    return [fill(rng.choice(tasks.templates), tasks, rng) for _ in range(data.num_sampled)]


def natural_prompts(path: Path) -> list[dict[str, str]]:
    """Entries with `id`, `type` and `text`."""
    prompts: list[dict[str, str]] = yaml.safe_load(path.read_text())["prompts"]
    return prompts


def answer_greedily(
    target: Target, chat: ChatFormat, prompts: Sequence[Prompt], max_new_tokens: int, cache_tokens: int
) -> list[Conversation]:
    """One greedy response a prompt, for evaluation."""
    settings = GenerationSettings(
        max_new_tokens=max_new_tokens, temperature=0.0, stop_id=chat.stop_id, cache_tokens=cache_tokens
    )
    openings = [chat.opening(prompt.text, prompt.system) for prompt in prompts]
    answers = generate(target, openings, settings, seed=0)
    return [
        Conversation(
            np.concatenate([opening, answer]),
            np.concatenate([np.zeros(len(opening), dtype=bool), np.ones(len(answer), dtype=bool)]),
            is_greedy=True,
        )
        for opening, answer in zip(openings, answers, strict=True)
        if answer is not None
    ]


def generate_evaluation_corpora(run: TrainingRun, target: Target, chat: ChatFormat) -> None:
    """Write `held-out.npz` and `natural.npz` into the corpus folder."""
    data, folder = run.data, Path(run.corpus_folder)
    held_out = composed_prompts(data, kept_out_texts(run))[: data.num_held_out]
    natural = [
        Prompt(item["type"], item["text"]) for item in natural_prompts(Path(run.evaluation.natural_prompts))
    ]
    for name, prompts in (("held-out", held_out), ("natural", natural)):
        answers = answer_greedily(target, chat, prompts, run.evaluation.max_new_tokens, data.cache_tokens)
        save_corpus(folder / f"{name}.npz", answers)


def generate_training_corpus(
    run: TrainingRun, target: Target, chat: ChatFormat, share: tuple[int, int] = (0, 1)
) -> None:
    """Write `train-<share>.npz` into the corpus folder.

    Args:
        run: the training run.
        target: on the device where generation runs.
        chat: its chat template.
        share: (number, of how many): several processes, one a device, each do a part.
    """
    data = run.data
    began_s = time.monotonic()
    deadline_s = began_s + data.max_generation_s if data.max_generation_s else float("inf")
    kept_out = kept_out_texts(run)
    number, num_shares = share
    prompts = composed_prompts(data, kept_out)[data.num_held_out :][number::num_shares]
    lines = topic_lines(data)[number::num_shares]
    if lines:
        seed = data.seed + 1000 * (number + 1)
        prompts += sample_prompts(
            target, chat, lines, cache_tokens=data.cache_tokens, kept_out=kept_out, seed=seed
        )
    logger.info("%d prompts after %.0f s", len(prompts), time.monotonic() - began_s)
    random.Random(data.seed).shuffle(prompts)  # noqa: S311
    batches = [prompts[start :: data.num_batches] for start in range(data.num_batches)]
    conversations: list[Conversation] = []
    for batch in batches:
        conversations += answer_prompts(target, chat, batch, data, deadline_s=deadline_s)
    save_corpus(Path(run.corpus_folder) / f"train-{number}.npz", conversations)
