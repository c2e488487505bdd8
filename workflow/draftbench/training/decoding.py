"""A drafter tried by decoding for real, with the embedded engine."""

import queue
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftbench.engine.factory import EngineSettings, load_engine
from draftbench.engine.request import EngineProtocol, Output, Request, SamplingParams
from draftbench.errors import MeasurementError
from draftbench.training.chat import Ids

Algorithm = Literal["DFLASH", "DDTREE"]
OUTPUT_LIMIT_S = 900.0


@dataclass(frozen=True)
class Decoded:
    """One greedy decoding.

    Attributes:
        token_ids: emitted tokens.
        num_rounds: target verifications.
        num_accepted_tokens: draft tokens kept in them.
    """

    token_ids: tuple[int, ...]
    num_rounds: int
    num_accepted_tokens: int


def pooled_tau(decoded: Sequence[Decoded]) -> float:
    """Emitted tokens a round, as a ratio of sums; 0 without rounds."""
    num_rounds = sum(item.num_rounds for item in decoded)
    return sum(item.num_accepted_tokens + item.num_rounds for item in decoded) / max(1, num_rounds)


def decode_greedily(
    engine: EngineProtocol, prompts: Sequence[Ids], max_new_tokens: int, budget: int | None = None
) -> list[Decoded]:
    """Decode every prompt with a started engine, as many at once as it has slots; stops at the model's end.

    Args:
        engine: started.
        prompts: token ids, generation prompt included.
        max_new_tokens: upper limit of each.
        budget: DDTree nodes, None takes the engine's.

    Raises:
        MeasurementError: a request was aborted, or nothing came for `OUTPUT_LIMIT_S`.
    """
    outputs: queue.Queue[Output] = queue.Queue()
    sampling = SamplingParams(max_new_tokens=max_new_tokens)
    for number, prompt in enumerate(prompts):
        request = Request(str(number), tuple(prompt.tolist()), sampling, budget)
        engine.submit(request, outputs.put)
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    finished: dict[str, Decoded] = {}
    while len(finished) < len(prompts):
        try:
            output = outputs.get(timeout=OUTPUT_LIMIT_S)
        except queue.Empty:
            raise MeasurementError(
                f"decoding: expected output within {OUTPUT_LIMIT_S:.0f} s, got none; see the engine's log"
            ) from None
        tokens[output.rid] += output.token_ids
        if output.finish_type == "abort":
            raise MeasurementError(
                f"decoding prompt {output.rid}: expected a result, got an abort: {output.message}"
            )
        if output.finish_type is not None:
            stats = output.stats
            ids = tuple(tokens[output.rid])
            finished[output.rid] = Decoded(ids, stats.num_rounds, stats.num_accepted_tokens)
    return [finished[str(number)] for number in range(len(prompts))]


def open_engine(
    target: Path, drafter: Path | None, algorithm: Algorithm | None, budget: int
) -> EngineProtocol:
    """A started float32 engine on the CPU or GPU at hand; the caller shuts it down."""
    engine = load_engine(
        EngineSettings(
            model_path=target,
            draft_model_path=drafter,
            algorithm=algorithm,
            budget=budget if algorithm == "DDTREE" else None,
            dtype="float32",
            context_length=2048,
        )
    )
    engine.start()
    return engine
