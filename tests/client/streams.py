"""Streams of the three APIs, as well-behaved servers send them; tests then break one thing."""

import json
from dataclasses import dataclass

DONE = b"data: [DONE]\n\n"
NUM_PROMPT_TOKENS = 7


def event(payload):
    """One event with a JSON payload."""
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


@dataclass
class Stream:
    """Builds the events of one API; keeps count of what was sent so far.

    `counts` False is a server that counts tokens only at the end.
    """

    api: str
    counts: bool = True
    text: str = ""
    num_sent: int = 0

    def usage(self, num_tokens=None):
        num = self.num_sent if num_tokens is None else num_tokens
        return {"prompt_tokens": NUM_PROMPT_TOKENS, "completion_tokens": num, "total_tokens": num + 7}

    def payload(self, piece="", num_tokens=1, finish=None, **meta):
        """What one event says after `num_tokens` more tokens that show as `piece`."""
        self.text += piece
        self.num_sent += num_tokens
        if self.api == "generate":
            counts = {
                "prompt_tokens": NUM_PROMPT_TOKENS,
                "completion_tokens": self.num_sent,
                "cached_tokens": 0,
            }
            reason = {"type": finish, **({"length": self.num_sent} if finish == "length" else {})}
            return {
                "text": self.text,
                "output_ids": list(range(self.num_sent)),
                "meta_info": {"id": "x", "finish_reason": reason if finish else None, **counts, **meta},
            }
        body = {"delta": {"content": piece}} if self.api == "chat" else {"text": piece}
        choice = {"index": 0, **body, "finish_reason": finish}
        return {"choices": [choice], **({"usage": self.usage()} if self.counts else {}), **meta}

    def token(self, piece="ab", num_tokens=1, finish=None, **meta):
        """One event with tokens."""
        return event(self.payload(piece, num_tokens, finish, **meta))

    def end(self, finish="length", usage=True):
        """The events after the last token."""
        if self.api == "generate":
            return [DONE]
        last = event(self.payload("", 0, finish))
        totals = [event({"choices": [], "usage": self.usage()})] if usage else []
        return [last, *totals, DONE]

    def whole(self, num_events=4, num_tokens=1, pause_s=0.0):
        """A complete stream; each event after its pause."""
        steps = []
        for index in range(num_events):
            is_last = index == num_events - 1
            finish = "length" if is_last and self.api == "generate" else None
            steps += [pause_s, self.token(num_tokens=num_tokens, finish=finish)]
        return [*steps, *self.end()]
