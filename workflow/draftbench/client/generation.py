"""One request's answer while it streams: which events carried how many tokens, and when."""

from dataclasses import dataclass, field

from draftbench.client.events import SpecCounts, Update, Usage
from draftbench.records import Chunk


@dataclass
class _Arrival:
    time_s: float
    num_tokens: int | None  # None: generated text without a count


@dataclass
class Generation:
    """What the events of one answer said, in order.

    Attributes:
        finish_reason: of the event that ended the generation.
        usage: the last counts that the server sent.
        spec: the last speculative counts.
        violations: names of the checks that the stream itself broke.
    """

    finish_reason: str | None = None
    finish_message: str | None = None
    usage: Usage | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    spec: SpecCounts | None = None
    violations: list[str] = field(default_factory=list)
    _arrivals: list[_Arrival] = field(default_factory=list)
    _num_counted: int = 0
    _num_uncounted: int = 0
    _finish_s: float | None = None

    @property
    def is_complete(self) -> bool:
        """Nothing is missing that a number needs: only the end of the stream may still come."""
        return self.finish_reason is not None and self.usage is not None

    def take(self, update: Update, time_s: float) -> bool:
        """Take one event's update; True if it brought the request on."""
        before = (len(self._arrivals), self.finish_reason, self.usage, self.spec)
        if update.usage is not None:
            self.usage = update.usage
            for name in ("num_prompt_tokens", "num_cached_tokens"):  # a later event may leave these out
                value = getattr(update.usage, name)
                setattr(self, name, getattr(self, name) if value is None else value)
        if update.num_cached_tokens is not None:
            self.num_cached_tokens = update.num_cached_tokens
        self._take_tokens(update, time_s)
        if update.finish_reason is not None:
            self.finish_reason, self.finish_message = update.finish_reason, update.finish_message
            self._finish_s = time_s
        self.spec = update.spec or self.spec
        return update.has_text or before != (len(self._arrivals), self.finish_reason, self.usage, self.spec)

    def _take_tokens(self, update: Update, time_s: float) -> None:
        if not update.can_carry:
            return
        if update.num_so_far:
            self._take_count(update.num_so_far, time_s, has_text=update.has_text)
        elif update.num_new:
            self._num_counted += update.num_new
            self._arrivals.append(_Arrival(time_s, update.num_new))
        elif update.has_text:
            self._num_uncounted += 1
            self._arrivals.append(_Arrival(time_s, None))

    def _take_count(self, num_so_far: int, time_s: float, *, has_text: bool) -> None:
        num_new = num_so_far - self._num_counted
        if num_new < 0:
            self._note("token-count-went-back")
        if self._num_uncounted:
            # Tokens of the uncounted events cannot be told from this one's: only text makes it a chunk.
            if has_text:
                self._arrivals.append(_Arrival(time_s, None))
        elif num_new > 0:
            self._arrivals.append(_Arrival(time_s, num_new))
        self._num_counted = max(self._num_counted, num_so_far)

    def _note(self, violation: str) -> None:
        if violation not in self.violations:
            self.violations.append(violation)

    def chunks(self, *, may_end_unseen: bool) -> tuple[list[Chunk], bool]:
        """The chunks, and whether their token counts are known.

        Events without a count hold at least one token each, so when there are as many as tokens each held
        one. Otherwise their counts cannot be known; each is then given as 1.

        Args:
            may_end_unseen: tokens that decode to nothing have no event in this API; those that the usage has
                beyond the counted events arrived, at the latest, with the event that ended the generation.
        """
        total = self.usage.num_output_tokens if self.usage else None
        if self._num_uncounted:
            is_known = total == len(self._arrivals)
            return [Chunk(time_s=arrival.time_s, num_tokens=1) for arrival in self._arrivals], is_known
        chunks = [Chunk(time_s=a.time_s, num_tokens=a.num_tokens or 0) for a in self._arrivals]
        num_unseen = (total or 0) - self._num_counted
        if may_end_unseen and num_unseen > 0 and self._finish_s is not None:
            chunks.append(Chunk(time_s=self._finish_s, num_tokens=num_unseen))
        return chunks, True
