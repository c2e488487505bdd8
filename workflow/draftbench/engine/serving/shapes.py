"""Answers as SGLang and OpenAI write them, streamed and whole.

A shape writes one request's answer: `event` for every piece, in order, then `closing`; or `whole` at the end.
"""

import json
import time
from typing import Any

from draftbench.engine.serving.service import Generation, Piece


class GenerateShape:
    """SGLang's `/generate`: every event repeats all text and ids so far.

    The repeated parts are kept as JSON and only lengthened, so that an event costs no encoding of old tokens.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation, self._text, self._ids = generation, "", ""

    def event(self, piece: Piece) -> str:
        """JSON of the event that streams this piece."""
        self._text += json.dumps(piece.text)[1:-1]
        self._ids += "".join(f", {token_id}" for token_id in piece.token_ids)
        meta_info = json.dumps(_meta_info(self._generation))
        return f'{{"text": "{self._text}", "output_ids": [{self._ids[2:]}], "meta_info": {meta_info}}}'

    def closing(self) -> list[str]:
        """Nothing: the last piece's event is complete."""
        return []

    def whole(self) -> dict[str, Any]:
        """The answer in one object."""
        text, token_ids = "".join(self._generation.texts), self._generation.output_ids
        return {"text": text, "output_ids": token_ids, "meta_info": _meta_info(self._generation)}


class OpenAIShape:
    """OpenAI's completions and chat completions, with SGLang's additions."""

    def __init__(self, generation: Generation, model: str, *, is_chat: bool) -> None:
        self._generation, self._is_chat, self._has_begun = generation, is_chat, False
        kind = "chat.completion" if is_chat else "text_completion"
        head = {"id": generation.job.request.rid, "object": kind, "model": model}
        self._head = {**head, "created": int(time.time())}

    def event(self, piece: Piece) -> str:
        """JSON of the event that streams this piece."""
        delta = {"content": piece.text} if self._has_begun else {"role": "assistant", "content": piece.text}
        self._has_begun = True
        choice = self._choice({"delta": delta} if self._is_chat else {"text": piece.text})
        usage = {"usage": self._usage()} if self._generation.job.has_running_usage else {}
        return self._chunk([choice], **usage)

    def closing(self) -> list[str]:
        """The speculative counts and the usage, where the request asked for them."""
        job, events = self._generation.job, []
        if job.has_spec_details:
            events.append(self._chunk([], sglext=self._sglext()))
        if job.has_usage:
            events.append(self._chunk([], usage=self._usage()))
        return events

    def whole(self) -> dict[str, Any]:
        """The answer in one object."""
        text = "".join(self._generation.texts)
        body = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        answer = {**self._head, "choices": [self._choice(body)], "usage": self._usage()}
        return {**answer, "sglext": self._sglext()} if self._generation.job.has_spec_details else answer

    def _chunk(self, choices: list[dict[str, Any]], **parts: Any) -> str:
        kind = {"object": "chat.completion.chunk"} if self._is_chat else {}
        return json.dumps({**self._head, **kind, "choices": choices, **parts})

    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        finish = self._generation.finish or {"type": None}
        end = {"finish_reason": finish["type"], "matched_stop": finish.get("matched")}
        return {"index": 0, **body, "logprobs": None, **end}

    def _usage(self) -> dict[str, Any]:
        stats, num_output_tokens = self._generation.stats, len(self._generation.output_ids)
        return {
            "prompt_tokens": stats.num_prompt_tokens,
            "completion_tokens": num_output_tokens,
            "total_tokens": stats.num_prompt_tokens + num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": stats.num_cached_tokens},
        }

    def _sglext(self) -> dict[str, Any]:
        return {"spec_tokens_details": _spec_details(self._generation) or None}


Shape = GenerateShape | OpenAIShape


def _meta_info(generation: Generation) -> dict[str, Any]:
    stats = generation.stats
    counts = {
        "id": generation.job.request.rid,
        "finish_reason": generation.finish,
        "prompt_tokens": stats.num_prompt_tokens,
        "completion_tokens": len(generation.output_ids),
        "cached_tokens": stats.num_cached_tokens,
    }
    if generation.finish is None:
        return counts
    return {**counts, "e2e_latency": time.monotonic() - generation.started_s, **_spec_details(generation)}


def _spec_details(generation: Generation) -> dict[str, Any]:
    """SGLang's names for the counts of rounds; empty where there was none, as with SGLang."""
    stats = generation.stats
    if not stats.num_rounds:
        return {}
    return {
        "spec_verify_ct": stats.num_rounds,
        "spec_accept_length": len(generation.output_ids) / stats.num_rounds,
        "spec_accept_rate": stats.num_accepted_tokens / max(stats.num_proposed_tokens, 1),
        "spec_num_correct_drafts": stats.num_accepted_tokens,
        "spec_num_proposed_drafts": stats.num_proposed_tokens,
        "spec_correct_drafts_histogram": list(stats.accept_histogram),
    }
