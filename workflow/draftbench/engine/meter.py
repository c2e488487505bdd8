"""Rates of decoding: SGLang's log line, and the accepted tokens of the engine's lifetime."""

import logging
from dataclasses import dataclass, field

ROUNDS_PER_LINE = 40
"""SGLang's own interval, `--decode-log-interval`."""


@dataclass
class Counts:
    """What was decoded since some moment."""

    num_tokens: int = 0
    num_rounds: int = 0
    num_accepted: int = 0
    num_proposed: int = 0

    @property
    def accept_length(self) -> float | None:
        """Emitted tokens per verification; None before the first."""
        return None if self.num_rounds == 0 else (self.num_accepted + self.num_rounds) / self.num_rounds


@dataclass
class DecodeMeter:
    """Counts emitted tokens, and logs a line in SGLang's words every 40 steps.

    Attributes:
        logger: takes the lines, at level INFO.
        num_cache_rows: of all slots, what `token usage` is a share of.
    """

    logger: logging.Logger
    num_cache_rows: int
    last_tok_per_s: float = 0.0
    _recent: Counts = field(default_factory=Counts)
    _lifetime: Counts = field(default_factory=Counts)
    _num_steps: int = 0
    _busy_s: float = 0.0

    @property
    def lifetime_accept_length(self) -> float | None:
        """Emitted tokens per verification since the last reset; None before the first and without drafts."""
        return self._lifetime.accept_length

    def reset(self) -> None:
        """Forget all counts."""
        self._recent, self._lifetime, self._num_steps, self._busy_s = Counts(), Counts(), 0, 0.0

    def count(self, num_emitted: int, num_proposed: int, *, is_round: bool) -> None:
        """Enter what one request emitted in a step; `is_round` if drafts were verified for it."""
        for counts in (self._recent, self._lifetime):
            counts.num_tokens += num_emitted
            if is_round:
                counts.num_rounds += 1
                counts.num_accepted += num_emitted - 1
                counts.num_proposed += num_proposed

    def end_step(self, step_s: float, *, num_running: int, num_waiting: int, num_tokens: int) -> None:
        """Count a step that decoded, and log when it completes an interval.

        Args:
            step_s: its duration; the time between steps, when the engine had nothing to do, is not counted.
            num_running: requests in the step.
            num_waiting: requests without a slot.
            num_tokens: committed cache rows of the running requests.
        """
        self._num_steps += 1
        self._busy_s += step_s
        if self._num_steps < ROUNDS_PER_LINE:
            return
        self.last_tok_per_s = self._recent.num_tokens / self._busy_s
        accepts = ""
        if self._recent.accept_length is not None:
            rate = self._recent.num_accepted / max(self._recent.num_proposed, 1)
            accepts = f"accept len: {self._recent.accept_length:.2f}, accept rate: {rate:.2f}, "
        self.logger.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, "
            "%sgen throughput (token/s): %.2f, #queue-req: %d",
            num_running,
            num_tokens,
            num_tokens / self.num_cache_rows,
            accepts,
            self.last_tok_per_s,
            num_waiting,
        )
        self._recent, self._num_steps, self._busy_s = Counts(), 0, 0.0
