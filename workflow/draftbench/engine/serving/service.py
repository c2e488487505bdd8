"""The requests in flight: engine outputs in, pieces of text out."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from draftbench.engine.request import EngineProtocol, Output, RequestStats
from draftbench.engine.serving.detokenize import Detokenizer, StopStrings
from draftbench.engine.serving.protocol import HttpError, Job
from draftbench.engine.serving.tokenizer import Tokenizer


class Piece(NamedTuple):
    """What one engine step added to a request: text that is complete, and all new token ids."""

    text: str
    token_ids: list[int]


class Generation:
    """One request from its submission to its last token.

    Attributes:
        texts: the text so far, in the pieces in which it came.
        output_ids: generated so far; the token that ended the request is the last one.
        finish: SGLang's `finish_reason` object, None while the request runs.
        started_s: when the request came, of the monotonic clock.
        is_engine_done: the engine has let go of the request.
    """

    def __init__(self, job: Job, tokenizer: Tokenizer, engine: EngineProtocol) -> None:
        self.job = job
        self.texts: list[str] = []
        self.output_ids: list[int] = []
        self.stats = RequestStats(len(job.request.prompt_ids), 0, 0, 0, 0, 0, ())
        self.finish: dict[str, Any] | None = None
        self.is_engine_done = False
        self.started_s = time.monotonic()
        self._engine = engine
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()
        self._detokenizer = Detokenizer(
            partial(tokenizer.decode, skip_special_tokens=job.skip_special_tokens)
        )
        self._stops = StopStrings(job.stop)

    def put(self, output: Output) -> None:
        """Take an engine output, in the event loop's thread."""
        self.is_engine_done |= output.finish_type is not None
        self._outputs.put_nowait(output)

    async def pieces(self) -> AsyncIterator[Piece]:
        """One piece for each engine output; the last one sets `finish`.

        Raises:
            HttpError: the engine failed; no more tokens come.
        """
        while self.finish is None:
            output = await self._outputs.get()
            if output.finish_type == "abort" and not self._engine.is_alive:
                raise HttpError(f"{output.message}; start the server again", 500)
            yield self._absorb(output)

    def _absorb(self, output: Output) -> Piece:
        self.stats = output.stats
        num_before = len(self.output_ids)
        # Token by token only where a stop string may end the output between two tokens of a round.
        steps = [[token_id] for token_id in output.token_ids] if self.job.stop else [list(output.token_ids)]
        text = "".join(self._push(step, output.matched_stop_id) for step in steps if self.finish is None)
        if self.finish is None and output.finish_type is not None:
            text += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
            self.finish = self._finish_reason(output)
        self.texts.append(text)
        return Piece(text, self.output_ids[num_before:])

    def _push(self, token_ids: list[int], matched_stop_id: int | None) -> str:
        self.output_ids += token_ids
        is_end = bool(token_ids) and token_ids[-1] == matched_stop_id
        text = self._stops.push(self._detokenizer.push(token_ids[:-1] if is_end else token_ids))
        if self._stops.matched is not None:
            self.finish = {"type": "stop", "matched": self._stops.matched}
        return text

    def _finish_reason(self, output: Output) -> dict[str, Any]:
        if output.finish_type == "length":
            return {"type": "length", "length": len(self.output_ids)}
        if output.finish_type == "stop":
            return {"type": "stop", "matched": output.matched_stop_id}
        return {"type": "abort", "message": output.message or "aborted"}


class Service:
    """The engine, its tokenizer and the requests in flight.

    Attributes:
        info: how the server was launched, for `/server_info`.
        max_context_tokens: prompt and output of one request.
        is_draining: the server stops; nothing new is taken.
    """

    def __init__(self, engine: EngineProtocol, tokenizer: Tokenizer, info: dict[str, Any]) -> None:
        self.engine, self.tokenizer, self.info = engine, tokenizer, info
        self.max_context_tokens = int(str(engine.describe()["context_length"]))
        self.is_draining = False
        self._running: set[Generation] = set()

    @property
    def is_healthy(self) -> bool:
        """New requests are taken and will be served."""
        return self.engine.is_alive and not self.is_draining

    @contextmanager
    def run(self, job: Job) -> Iterator[Generation]:
        """Submit a job; on leaving, whatever the reason, the engine no longer works on it.

        Raises:
            HttpError: the server stops, or the engine has failed.
            ConfigError: the engine refuses the request.
        """
        if not self.is_healthy:
            raise HttpError("the server is stopping or its engine has failed; start it again", 503)
        generation = Generation(job, self.tokenizer, self.engine)
        loop = asyncio.get_running_loop()

        def sink(output: Output) -> None:
            loop.call_soon_threadsafe(generation.put, output)

        self.engine.submit(job.request, sink)
        self._running.add(generation)
        try:
            yield generation
        finally:
            self._running.remove(generation)
            if not generation.is_engine_done:
                self.engine.abort(job.request.rid)

    def abort_all(self) -> int:
        """End every request in flight; how many the engine still knew."""
        return sum(self.engine.abort(generation.job.request.rid) for generation in self._running)
