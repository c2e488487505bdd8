"""One request while the engine works on it: its tokens, its counts, and when it ends."""

from dataclasses import dataclass, field

from draftbench.engine.request import FinishType, Output, Request, RequestStats, Sink


@dataclass(eq=False)
class Sequence:
    """A request that has been submitted.

    Counts: the first token comes from the prompt's forward and belongs to no round. A round emits its
    accepted tokens plus one. A round cut short by the end of the text counts only what it emitted, so
    `num_output_tokens == 1 + num_rounds + num_accepted_tokens` holds under speculation at any time.

    Attributes:
        seed: of its random stream.
        eos_token_ids: the model's own ends of text.
        token_ids: prompt and output.
        slot: of the caches; -1 while it waits.
        num_cached_tokens: prompt tokens that were in the slot when it got it.
        accept_histogram: rounds by accepted tokens.
    """

    request: Request
    sink: Sink
    seed: int
    eos_token_ids: frozenset[int]
    accept_histogram: list[int]
    token_ids: list[int] = field(init=False)
    slot: int = -1
    num_cached_tokens: int = 0
    num_rounds: int = 0
    num_accepted_tokens: int = 0
    num_proposed_tokens: int = 0
    finish_type: FinishType | None = None
    matched_stop_id: int | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt_ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens emitted so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def has_output(self) -> bool:
        """The prompt's forward is done, the last token waits for its own."""
        return self.num_output_tokens > 0

    def emit(self, token_ids: list[int]) -> list[int]:
        """Append new tokens up to the end of the text; sets `finish_type` when that is reached.

        Returns:
            the tokens that were appended, at least one.
        """
        sampling = self.request.sampling
        kept = token_ids[: sampling.max_new_tokens - self.num_output_tokens]
        stops = frozenset() if sampling.ignore_eos else self.eos_token_ids | sampling.stop_token_ids
        for place, token in enumerate(kept):
            if token in stops:
                kept = kept[: place + 1]
                self.finish_type, self.matched_stop_id = "stop", token
                break
        self.token_ids.extend(kept)
        if self.finish_type is None and self.num_output_tokens == sampling.max_new_tokens:
            self.finish_type = "length"
        return kept

    def count_round(self, num_emitted: int, num_proposed: int) -> None:
        """Enter one verification into the counts."""
        self.num_rounds += 1
        self.num_accepted_tokens += num_emitted - 1
        self.num_proposed_tokens += num_proposed
        self.accept_histogram[num_emitted - 1] += 1

    def output(self, token_ids: list[int], message: str | None = None) -> Output:
        """What the request's sink is told."""
        return Output(
            rid=self.request.rid,
            token_ids=tuple(token_ids),
            stats=self._stats(),
            finish_type=self.finish_type,
            matched_stop_id=self.matched_stop_id,
            message=message,
        )

    def _stats(self) -> RequestStats:
        return RequestStats(
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self.num_output_tokens,
            num_rounds=self.num_rounds,
            num_accepted_tokens=self.num_accepted_tokens,
            num_proposed_tokens=self.num_proposed_tokens,
            accept_histogram=tuple(self.accept_histogram),
        )
