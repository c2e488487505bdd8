"""From prompts to a corpus: the target answers them, turn by turn where a conversation grows."""

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftbench.training.chat import ChatFormat, Ids
from draftbench.training.compose import KeptOut, Prompt
from draftbench.training.corpus import Conversation
from draftbench.training.generation import GenerationSettings, generate
from draftbench.training.settings import Data
from draftbench.training.target import Target

logger = logging.getLogger(__name__)
MAX_SAMPLED_PROMPT_TOKENS = 96
MIN_SAMPLED_PROMPT_WORDS = 4


@dataclass
class Dialogue:
    """A conversation in the making.

    Attributes:
        ids: parts of the token ids so far.
        is_response: for each part, whether the target wrote it.
        follow_ups: user turns still to come.
        is_greedy: temperature 0, or the run's temperature.
        runs_past_end: decoded on after the stop token.
        is_closed: nothing more is generated.
    """

    ids: list[Ids]
    is_response: list[bool]
    follow_ups: list[str]
    is_greedy: bool
    runs_past_end: bool
    is_closed: bool = field(default=False)

    @property
    def num_tokens(self) -> int:
        """Tokens so far."""
        return sum(map(len, self.ids))

    def conversation(self) -> Conversation:
        """As the corpus keeps it."""
        mask: NDArray[np.bool_] = np.concatenate(
            [np.full(len(part), own) for part, own in zip(self.ids, self.is_response, strict=True)]
        )
        return Conversation(np.concatenate(self.ids), mask, self.is_greedy)


def sample_prompts(
    target: Target,
    chat: ChatFormat,
    systems: Sequence[str],
    *,
    cache_tokens: int,
    kept_out: KeptOut,
    seed: int,
) -> list[Prompt]:
    """User messages written by the target itself after system lines that name a topic.

    Returns:
        distinct usable ones, without those that were cut, too short, or near a kept-out text.
    """
    settings = GenerationSettings(
        max_new_tokens=MAX_SAMPLED_PROMPT_TOKENS,
        temperature=1.0,
        stop_id=chat.stop_id,
        cache_tokens=cache_tokens,
        drop_below=0.02,
    )
    sampled = generate(target, [chat.user_opening(system) for system in systems], settings, seed=seed)
    texts = {}
    for ids in sampled:
        if ids is None or not len(ids) or ids[-1] != chat.stop_id:
            continue
        text = chat.decode(ids).strip()
        if len(text.split()) >= MIN_SAMPLED_PROMPT_WORDS and not kept_out.is_near(text):
            texts[text.lower()] = text
    return [Prompt("sampled", text) for text in texts.values()]


def answer_prompts(
    target: Target, chat: ChatFormat, prompts: Sequence[Prompt], data: Data, *, deadline_s: float
) -> list[Conversation]:
    """Answer prompts, then follow-ups of some of them, until every conversation is closed or time is up.

    Args:
        target: on the device where generation runs.
        chat: its chat template.
        prompts: first turns with possible follow-ups.
        data: shares, temperature and lengths.
        deadline_s: `time.monotonic()` after which no wave starts; unanswered prompts are left out.
    """
    rng = random.Random(data.seed)  # noqa: S311  shares of the data, no secrets
    dialogues = [_open(prompt, chat, data, rng) for prompt in prompts]
    turn = 0
    while any(not item.is_closed for item in dialogues) and time.monotonic() < deadline_s:
        for is_greedy in (True, False):
            group = [item for item in dialogues if not item.is_closed and item.is_greedy == is_greedy]
            settings = GenerationSettings(
                max_new_tokens=data.max_new_tokens,
                temperature=0.0 if is_greedy else data.temperature,
                stop_id=chat.stop_id,
                cache_tokens=data.cache_tokens,
                drop_below=data.drop_below,
            )
            _answer_turn(target, group, settings, deadline_s=deadline_s, seed=data.seed + turn)
        for item in dialogues:
            if not item.is_closed:
                _advance(item, chat, data)
        turn += 1
    finished = [item.conversation() for item in dialogues if any(item.is_response)]
    logger.info(
        "%d conversations, %d response tokens", len(finished), sum(int(c.is_response.sum()) for c in finished)
    )
    return finished


def _open(prompt: Prompt, chat: ChatFormat, data: Data, rng: random.Random) -> Dialogue:
    runs_past_end = rng.random() < data.past_end_share
    is_long = not runs_past_end and rng.random() < data.multi_turn_share
    return Dialogue(
        ids=[chat.opening(prompt.text, prompt.system)],
        is_response=[False],
        follow_ups=list(prompt.follow_ups[: data.max_turns - 1]) if is_long else [],
        is_greedy=rng.random() < data.greedy_share,
        runs_past_end=runs_past_end,
    )


def _answer_turn(
    target: Target,
    group: list[Dialogue],
    settings: GenerationSettings,
    *,
    deadline_s: float,
    seed: int,
) -> None:
    if not group:
        return
    openings = [np.concatenate(item.ids) for item in group]
    can_stop = [not item.runs_past_end for item in group]
    answers = generate(target, openings, settings, seed=seed, can_stop=can_stop, deadline_s=deadline_s)
    for item, response in zip(group, answers, strict=True):
        if response is None or not len(response):
            item.is_closed = True
            continue
        item.ids.append(response)
        item.is_response.append(True)


def _advance(item: Dialogue, chat: ChatFormat, data: Data) -> None:
    """Append the next user turn, or close the conversation."""
    if not item.follow_ups:
        item.is_closed = True
        return
    turn = chat.next_turn(item.ids[-1], item.follow_ups.pop(0))
    if item.num_tokens + len(turn) + data.max_new_tokens > data.max_context_tokens:
        item.is_closed = True
        return
    item.ids.append(turn)
    item.is_response.append(False)
