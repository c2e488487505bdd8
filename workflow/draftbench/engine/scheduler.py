"""The engine: a thread that takes requests from a queue and moves all running ones forward together."""

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

import torch

from draftbench.engine.meter import DecodeMeter
from draftbench.engine.profile import Profile
from draftbench.engine.request import Request, Sink
from draftbench.engine.runner import ModelRunner
from draftbench.engine.sequence import Sequence
from draftbench.engine.slots import SlotPool
from draftbench.engine.validation import EngineLimits, require_valid
from draftbench.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resolved:
    """Settings after every default was filled in, for `/server_info` and the records.

    Attributes:
        order_of_one_row: of weights, see `layers.fastest_for_one_row`.
        target_sha256: of the weight files' own hashes, in the order of their names.
    """

    model_path: str
    draft_model_path: str | None
    algorithm: str | None
    block_size: int | None
    dtype: str
    device: str
    num_threads: int
    order_of_one_row: str
    random_seed: int
    target_sha256: str
    drafter_sha256: str | None


class Engine:
    """Continuous batching: requests join and leave between steps, and share every forward.

    Implements `draftbench.engine.request.EngineProtocol`. One lock guards the queue and the list of
    running requests; models and caches belong to the engine's thread alone.
    """

    def __init__(self, runner: ModelRunner, limits: EngineLimits, resolved: Resolved) -> None:
        self._runner = runner
        self._limits = limits
        self._resolved = resolved
        self._slots = SlotPool(limits.max_running_requests)
        self._meter = DecodeMeter(logger, limits.max_running_requests * limits.context_length)
        self._changed = threading.Condition()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._aborted: set[str] = set()
        self._num_submitted = 0
        self._is_stopping = False
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def is_alive(self) -> bool:
        """The engine's thread runs and has not failed."""
        return self._thread.is_alive() and self._failure is None

    @property
    def profile(self) -> Profile:
        """Seconds per phase of a round; switch it on with `profile.is_on = True`."""
        return self._runner.profile

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def submit(self, request: Request, sink: Sink) -> None:
        """Queue a request; `sink` is called from the engine's thread, once per step that emits for it.

        Raises:
            ConfigError: a value is out of range, the name is taken, or the engine has ended.
        """
        require_valid(request, self._limits)
        with self._changed:
            if self._is_stopping or self._failure:
                raise ConfigError(
                    f"expected a running engine, got one that ended ({self._failure or 'shut down'})"
                )
            if any(request.rid == other.request.rid for other in (*self._waiting, *self._running)):
                raise ConfigError(f"expected a new rid, got {request.rid!r}, which runs; choose another")
            self._waiting.append(self._sequence_of(request, sink))
            self._num_submitted += 1
            self._changed.notify()

    def _sequence_of(self, request: Request, sink: Sink) -> Sequence:
        """Without a seed of its own a request gets one from the engine's and its place in the order."""
        seed = request.sampling.seed
        if seed is None:
            seed = (self._resolved.random_seed << 32) + self._num_submitted
        num_bins = self._resolved.block_size or 0
        return Sequence(request, sink, seed, self._limits.eos_token_ids, [0] * num_bins)

    def abort(self, rid: str) -> bool:
        """End a queued or running request; its sink gets a last Output with `abort`. False if unknown."""
        with self._changed:
            is_known = any(rid == other.request.rid for other in (*self._waiting, *self._running))
            if is_known:
                self._aborted.add(rid)
                self._changed.notify()
            return is_known

    def flush_cache(self) -> bool:
        """Drop every kept prefix and the lifetime counts. False while requests run or wait."""
        with self._changed:
            if self._waiting or self._running:
                return False
            self._slots.flush()
            self._meter.reset()
            return True

    def shutdown(self, timeout_s: float) -> None:
        """Abort what runs and end the thread; return within `timeout_s`."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def describe(self) -> dict[str, object]:
        """Resolved settings and counters."""
        with self._changed:
            num_running, num_waiting = len(self._running), len(self._waiting)
        return {
            **vars(self._resolved),
            "context_length": self._limits.context_length,
            "max_running_requests": self._limits.max_running_requests,
            "budget": self._limits.budget,
            "num_running": num_running,
            "num_waiting": num_waiting,
            "avg_spec_accept_length": self._meter.lifetime_accept_length,
            "last_gen_throughput": self._meter.last_tok_per_s,
        }

    def _run(self) -> None:
        torch.set_num_threads(self._resolved.num_threads)
        message = "the engine was shut down"
        try:
            while self._wait_for_work():
                self._end_aborted()
                self._admit()
                self._step()
        except Exception as error:
            logger.exception("the engine's thread failed")
            message = self._failure = f"the engine failed: {type(error).__name__}: {error}"
        with self._changed:
            self._is_stopping = True
            ended = [*self._running, *self._waiting]
            self._running, self._waiting = [], deque()
        for sequence in ended:
            self._tell_abort(sequence, message)

    def _wait_for_work(self) -> bool:
        """Sleep while there is nothing to do. False when the engine is to end."""
        with self._changed:
            while not (self._is_stopping or self._waiting or self._running):
                self._changed.wait()
            return not self._is_stopping

    def _end_aborted(self) -> None:
        with self._changed:
            ended = [s for s in (*self._running, *self._waiting) if s.request.rid in self._aborted]
            self._aborted.clear()
            self._waiting = deque(s for s in self._waiting if s not in ended)
            self._leave([s for s in ended if s.slot >= 0])
        for sequence in ended:
            self._tell_abort(sequence, "aborted on request")

    def _admit(self) -> None:
        """Give free slots to waiting requests, in the order in which they came."""
        with self._changed:
            while self._waiting and self._slots.num_free:
                sequence = self._waiting.popleft()
                sequence.slot, sequence.num_cached_tokens = self._slots.acquire(sequence.request.prompt_ids)
                self._runner.reserve(sequence.slot, sequence.num_cached_tokens)
                self._running.append(sequence)

    def _step(self) -> None:
        """Move all running requests forward, let the finished ones go, then tell what was emitted."""
        if not self._running:
            return
        start_s = time.perf_counter()
        emissions = []
        for sequence, token_ids, num_proposed in self._runner.step(self._running):
            is_decoding = sequence.has_output
            emitted = sequence.emit(token_ids)
            emissions.append((sequence, emitted))
            if is_decoding:
                self._count(sequence, len(emitted), num_proposed)
        if any(sequence.num_output_tokens > 1 for sequence, _ in emissions):
            self._meter.end_step(
                time.perf_counter() - start_s,
                num_running=len(self._running),
                num_waiting=len(self._waiting),
                num_tokens=sum(self._runner.cache.lengths[sequence.slot] for sequence in self._running),
            )
        with self._changed:
            self._leave([sequence for sequence, _ in emissions if sequence.finish_type])
        for sequence, emitted in emissions:
            self._tell(sequence, emitted)

    def _count(self, sequence: Sequence, num_emitted: int, num_proposed: int) -> None:
        is_round = self._resolved.algorithm is not None
        if is_round:
            sequence.count_round(num_emitted, num_proposed)
        self._meter.count(num_emitted, num_proposed, is_round=is_round)

    def _leave(self, ended: list[Sequence]) -> None:
        """Free the slots of running requests; their committed rows stay, for a prompt that begins alike."""
        for sequence in ended:
            num_rows = self._runner.cache.lengths[sequence.slot]
            self._slots.release(sequence.slot, sequence.token_ids[:num_rows])
            self._aborted.discard(sequence.request.rid)  # too late, and not meant for the next of that name
        self._running = [sequence for sequence in self._running if sequence not in ended]

    def _tell(self, sequence: Sequence, token_ids: list[int], message: str | None = None) -> None:
        """Call a request's sink; one that fails ends its own request only."""
        try:
            sequence.sink(sequence.output(token_ids, message))
        except Exception:
            logger.exception("the sink of request %s failed, the request ends", sequence.request.rid)
            self.abort(sequence.request.rid)

    def _tell_abort(self, sequence: Sequence, message: str) -> None:
        sequence.finish_type = "abort"
        self._tell(sequence, [], message)
