"""Prompts composed from task lists: filled templates, each prompt once, none near a kept-out text."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from draftbench.errors import ConfigError

SLOT = re.compile(r"\{(\w+)\}")
NGRAM_WORDS = 5
MAX_TRIES_PER_PROMPT = 50


@dataclass(frozen=True)
class TaskList:
    """One kind of work.

    Attributes:
        kind: name, as in `code`.
        templates: texts with `{slot}` places.
        slots: choices of each slot, or (low, high) of a whole number; choices may hold slots again.
        endings: sentences of which some prompts get one.
        follow_ups: later user turns, with slots too.
        systems: system lines of which some prompts get one.
    """

    kind: str
    templates: tuple[str, ...]
    slots: Mapping[str, tuple[str, ...] | tuple[int, int]]
    endings: tuple[str, ...]
    follow_ups: tuple[str, ...]
    systems: tuple[str, ...]


@dataclass(frozen=True)
class Prompt:
    """A first user turn with what may follow."""

    kind: str
    text: str
    system: str | None = None
    follow_ups: tuple[str, ...] = ()


def load_task_list(path: Path) -> TaskList:
    """Read one task list.

    Raises:
        ConfigError: a template names a slot that the file lacks.
    """
    values: dict[str, Any] = yaml.safe_load(path.read_text())
    slots = {
        name: (spec["low"], spec["high"]) if isinstance(spec, dict) else tuple(map(str, spec))
        for name, spec in values.get("slots", {}).items()
    }
    tasks = TaskList(
        kind=values["kind"],
        templates=tuple(values["templates"]),
        slots=slots,
        endings=tuple(values.get("endings", ())),
        follow_ups=tuple(values.get("follow_ups", ())),
        systems=tuple(values.get("systems", ())),
    )
    for template in [*tasks.templates, *tasks.follow_ups, *tasks.endings, *tasks.systems]:
        missing = set(SLOT.findall(template)) - set(slots)
        if missing:
            raise ConfigError(
                f"{path}: templates: expected slots of the file, got {min(missing)} in {template!r}; add it"
            )
    return tasks


def fill(template: str, tasks: TaskList, rng: random.Random) -> str:
    """Fill every slot at random; a choice may hold slots itself, one level deep or more."""

    def choose(match: re.Match[str]) -> str:
        choices = tasks.slots[match[1]]
        if isinstance(choices[0], int):
            return str(rng.randint(int(choices[0]), int(choices[1])))
        return str(rng.choice(choices))

    while SLOT.search(template):
        template = SLOT.sub(choose, template)
    return template


def word_ngrams(text: str) -> set[tuple[str, ...]]:
    """Lower-case word 5-grams of a text; a shorter text is one n-gram."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[i : i + NGRAM_WORDS]) for i in range(max(1, len(words) - NGRAM_WORDS + 1))}


class KeptOut:
    """Texts that no training prompt may come near."""

    def __init__(self, texts: Iterable[str], max_overlap: float) -> None:
        self.ngrams = [word_ngrams(text) for text in texts]
        self.max_overlap = max_overlap

    def overlap(self, text: str) -> float:
        """Largest part of a kept-out text's, or of this text's, n-grams that both share."""
        own = word_ngrams(text)
        return max((len(own & ngrams) / min(len(own), len(ngrams)) for ngrams in self.ngrams), default=0.0)

    def is_near(self, text: str) -> bool:
        """Whether a prompt must be dropped."""
        return self.overlap(text) > self.max_overlap


def texts_of(path: Path) -> list[str]:
    """Every string of more than three words in a YAML file: prompts, turns, system lines, however nested."""

    def walk(value: Any) -> Iterable[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for item in value.values():
                yield from walk(item)
        elif isinstance(value, list):
            for item in value:
                yield from walk(item)

    return [text for text in walk(yaml.safe_load(path.read_text())) if len(text.split()) > 3]


def compose(lists: Sequence[TaskList], num_prompts: int, kept_out: KeptOut, seed: int) -> list[Prompt]:
    """Compose distinct prompts in random order, as many of each list until that one is used up.

    Args:
        lists: the kinds of work.
        num_prompts: how many in all.
        kept_out: texts to stay away from.
        seed: of all choices.

    Raises:
        ConfigError: all lists together are too small for so many distinct prompts.
    """
    rng = random.Random(seed)  # noqa: S311  choices of prompts, no secrets
    seen: set[str] = set()
    prompts: list[Prompt] = []
    rich = list(lists)
    while len(prompts) < num_prompts:
        for tasks in list(rich):
            prompt = _new_prompt(tasks, seen, kept_out, rng)
            if prompt is None:
                rich.remove(tasks)
            else:
                prompts.append(prompt)
        if not rich:
            raise ConfigError(
                f"task lists: expected room for {num_prompts} distinct prompts, got {len(prompts)}; add slots"
            )
    rng.shuffle(prompts)
    return prompts[:num_prompts]


def _new_prompt(tasks: TaskList, seen: set[str], kept_out: KeptOut, rng: random.Random) -> Prompt | None:
    """A prompt that was not there before; None when the list seems used up."""
    for _ in range(MAX_TRIES_PER_PROMPT):
        prompt = _compose_one(tasks, rng)
        key = " ".join(re.findall(r"\w+", prompt.text.lower()))
        if key not in seen and not kept_out.is_near(prompt.text):
            seen.add(key)
            return prompt
    return None


def _compose_one(tasks: TaskList, rng: random.Random) -> Prompt:
    text = fill(rng.choice(tasks.templates), tasks, rng)
    text = text[0].upper() + text[1:]
    if tasks.endings and rng.random() < 0.3:
        text = f"{text} {fill(rng.choice(tasks.endings), tasks, rng)}"
    has_system = tasks.systems and rng.random() < 0.15
    system = fill(rng.choice(tasks.systems), tasks, rng) if has_system else None
    num_follow_ups = min(len(tasks.follow_ups), 6)
    follow_ups = tuple(fill(turn, tasks, rng) for turn in rng.sample(tasks.follow_ups, num_follow_ups))
    return Prompt(tasks.kind, text, system, follow_ups)
