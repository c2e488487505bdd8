"""An engine whose outputs are written in advance: the HTTP layer's other side in these tests."""

import threading
from dataclasses import dataclass, field

from draftbench.engine.request import Output, RequestStats
from draftbench.errors import ConfigError

EOS_ID = 1
NUM_PROPOSED = 15


@dataclass
class Track:
    """One request on its way; `groups` are the steps still to come."""

    request: object
    sink: object
    groups: list
    num_cached: int
    output_ids: list = field(default_factory=list)
    histogram: list = field(default_factory=lambda: [0] * (NUM_PROPOSED + 1))

    def stats(self):
        rounds = sum(self.histogram)
        return RequestStats(
            num_prompt_tokens=len(self.request.prompt_ids),
            num_cached_tokens=self.num_cached,
            num_output_tokens=len(self.output_ids),
            num_rounds=rounds,
            num_accepted_tokens=sum(k * count for k, count in enumerate(self.histogram)),
            num_proposed_tokens=rounds * NUM_PROPOSED,
            accept_histogram=tuple(self.histogram) if rounds else (),
        )


class ScriptedEngine:
    """Gives every running request the next group of its script in each step.

    Args:
        script: from a request to its groups of token ids, one group a step.
        step_s: pause before each step.
        is_speculative: every group after the first counts as a round.
    """

    def __init__(self, script, *, step_s=0.0, context_length=256, max_running=8, is_speculative=True):
        self._script, self._step_s, self._max_running = script, step_s, max_running
        self._context_length, self._is_speculative = context_length, is_speculative
        self._changed = threading.Condition()
        self._waiting, self._running, self._kept = [], [], []
        self._is_stopping = self._has_failed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.requests = []

    def submit(self, request, sink):
        if len(request.prompt_ids) + request.sampling.max_new_tokens > self._context_length:
            raise ConfigError(
                f"expected at most {self._context_length} tokens of prompt and output, got more"
            )
        if not request.prompt_ids:
            raise ConfigError("expected a prompt of at least one token, got none")
        with self._changed:
            if any(track.request.rid == request.rid for track in self._waiting + self._running):
                raise ConfigError(f"expected a new rid, got {request.rid!r}, which runs")
            self.requests.append(request)
            num_cached = max((_common(request.prompt_ids, kept) for kept in self._kept), default=0)
            self._waiting.append(Track(request, sink, list(self._script(request)), num_cached))
            self._changed.notify()

    def abort(self, rid):
        with self._changed:
            for track in self._waiting + self._running:
                if track.request.rid == rid:
                    self._end(track, (), finish_type="abort", message="aborted on request")
                    return True
            return False

    def flush_cache(self):
        with self._changed:
            if self._waiting or self._running:
                return False
            self._kept.clear()
            return True

    def start(self):
        self._thread.start()

    def shutdown(self, timeout_s):
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def fail(self):
        """Break down as a real engine does: the thread ends, and every request is told why."""
        with self._changed:
            self._has_failed = True
            for track in self._waiting + self._running:
                self._end(track, (), finish_type="abort", message="the engine failed: RuntimeError: scripted")
            self._changed.notify()
        self._thread.join(5)

    def describe(self):
        state = {"dtype": "float32", "avg_spec_accept_length": None, "num_running": self.num_in_flight}
        return state | {"context_length": self._context_length}

    @property
    def is_alive(self):
        return self._thread.is_alive() and not self._has_failed

    @property
    def num_in_flight(self):
        with self._changed:
            return len(self._waiting) + len(self._running)

    def _run(self):
        while True:
            with self._changed:
                while not (self._is_stopping or self._has_failed or self._waiting or self._running):
                    self._changed.wait()
                if self._is_stopping or self._has_failed:
                    return
                self._changed.wait(self._step_s)
                while self._waiting and len(self._running) < self._max_running:
                    self._running.append(self._waiting.pop(0))
                for track in list(self._running):
                    self._step(track)

    def _step(self, track):
        sampling = track.request.sampling
        group = track.groups.pop(0)[: sampling.max_new_tokens - len(track.output_ids)]
        stops = sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else {EOS_ID})
        ends = [place for place, token_id in enumerate(group) if token_id in stops]
        group = group[: ends[0] + 1] if ends else group
        if track.output_ids and self._is_speculative:
            track.histogram[len(group) - 1] += 1
        track.output_ids += group
        if ends:
            self._end(track, group, finish_type="stop", matched_stop_id=group[-1])
        elif len(track.output_ids) == sampling.max_new_tokens or not track.groups:
            self._end(track, group, finish_type="length")
        else:
            track.sink(Output(track.request.rid, tuple(group), track.stats()))

    def _end(self, track, group, **end):
        for tracks in (self._waiting, self._running):
            if track in tracks:
                tracks.remove(track)
        self._kept.append((*track.request.prompt_ids, *track.output_ids))
        track.sink(Output(track.request.rid, tuple(group), track.stats(), **end))


def _common(prompt_ids, kept):
    pairs = list(zip(prompt_ids[:-1], kept, strict=False))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
