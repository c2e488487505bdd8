"""A well-behaved model server made of scripts, whose cache, rounds and faults a test can set."""

import json
import threading
import time
from dataclasses import dataclass, field

from fault_server import FaultServer, answer, chunked
from streams import DONE, event

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"


@dataclass
class ModelServer:
    """Answers `/generate` with as many tokens as asked, one an event, `token_s` apart.

    Attributes:
        broken: request texts that hold this string are answered with an error.
        is_warm: cached tokens are all but one of the prompt's, also after a flush.
        warm_after: only after the flushes of these numbers, the first being 1.
        is_cold: nothing is ever cached.
        num_refusals: flushes that are answered with 400 before one succeeds.
        busy_flushes: flushes that came while a request ran.
        begun: of each request, in order: text, tokens asked for, requests that ran when it began.
        audit: body of a request for log probabilities -> its answer.
    """

    token_s: float = 0.002
    broken: str | None = None
    is_warm: bool = False
    warm_after: frozenset[int] = frozenset()
    is_cold: bool = False
    is_speculative: bool = False
    num_refusals: int = 0
    busy_flushes: int = 0
    num_flushes: int = 0
    prompts: list[str] = field(default_factory=list)
    begun: list[tuple[str, int, int]] = field(default_factory=list)
    log: object = None
    audit: object = None

    def __enter__(self):
        self._lock = threading.Lock()
        self._cache = []
        self._num_running = 0
        self._server = FaultServer(self._answer)
        self._server.__enter__()
        self.base_url = self._server.base_url
        return self

    def __exit__(self, *error):
        self._server.__exit__(*error)

    @property
    def measured(self):
        """Texts since the last warm-up batch."""
        return [text for text in self.prompts if "warm" not in text and "<user>0</>" not in text]

    def _answer(self, call):
        if call.path == "/flush_cache":
            return [self._flush()]
        if call.path == "/server_info":
            return [answer("200 OK", {"internal_states": [{"avg_spec_accept_length": 2.0}]})]
        body = call.json
        if body.get("return_logprob"):
            return [answer("200 OK", self.audit(body))]
        self.prompts.append(body["text"])
        if self.broken is not None and self.broken in body["text"]:
            return chunked([event({"error": {"message": "broken on purpose"}})])
        return chunked(self._generate(body["text"], body["sampling_params"]["max_new_tokens"]))

    def _flush(self):
        with self._lock:
            if self._num_running:
                self.busy_flushes += 1
            if self.num_refusals > 0:
                self.num_refusals -= 1
                return answer("400 Bad Request", b"pending requests", "text/plain")
            self.num_flushes += 1
            self._cache.clear()
            return answer("200 OK", b"Cache flushed.", "text/plain")

    def _cached(self, text):
        """One token a character; what an earlier text has in common is cached."""
        if self.is_warm or self.num_flushes in self.warm_after:
            return len(text) - 1
        if self.is_cold:
            return 0
        lengths = [0]
        for other in self._cache:
            same = [a == b for a, b in zip(text, other, strict=False)]
            lengths.append(same.index(False) if False in same else len(same))
        return min(max(lengths), len(text) - 1)

    def _generate(self, text, num_tokens):
        with self._lock:
            self._num_running += 1
            self.begun.append((text, num_tokens, self._num_running))
            cached = self._cached(text)
        for index in range(num_tokens):
            yield self.token_s
            is_last = index == num_tokens - 1
            meta = {"prompt_tokens": len(text), "completion_tokens": index + 1, "cached_tokens": cached}
            meta["finish_reason"] = {"type": "length", "length": num_tokens} if is_last else None
            if is_last and self.is_speculative:
                meta |= {"spec_verify_ct": num_tokens - 1, "spec_num_correct_drafts": 0}
            if is_last:
                self._end(text + "y" * num_tokens)
            yield event({"text": "y" * (index + 1), "output_ids": [7] * (index + 1), "meta_info": meta})
        yield DONE

    def _end(self, text):
        with self._lock:
            self._num_running -= 1
            self._cache.append(text)
            if self.log is not None:
                with self.log.open("a") as stream:
                    stream.write(
                        f"[{time.ctime()}] Decode batch, #running-req: 1, gen throughput (token/s): 9.00\n"
                    )


def write_model_folder(folder):
    """A staged model as far as the client reads it."""
    folder.mkdir()
    config = {"chat_template": TEMPLATE, "bos_token": None, "eos_token": "</>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
