"""Invariants of a step that no output shows: a broken one would only lower tau."""

import pytest
import torch
from collecting import Collected, make_requests, submit, wait
from tiny_models import DRAFTER, TinyPair, target_features

from draftbench.engine import runner as runner_module
from draftbench.engine.cache import KVCache
from draftbench.engine.config import read_drafter_config, read_target_config
from draftbench.engine.drafter import Drafter
from draftbench.engine.llama import Llama
from draftbench.engine.profile import Profile
from draftbench.engine.proposer import Proposer
from draftbench.engine.request import Request, SamplingParams
from draftbench.engine.runner import ModelRunner
from draftbench.engine.scheduler import Engine, Resolved
from draftbench.engine.sequence import Sequence
from draftbench.engine.validation import EngineLimits
from draftbench.engine.weights import WeightReader
from draftbench.errors import ConfigError

CPU = torch.device("cpu")


def make_drafter(pair: TinyPair) -> tuple[Llama, Drafter]:
    config = read_drafter_config(pair.drafter_path)
    reader = WeightReader(pair.target_path, torch.float32, CPU)
    target = Llama(read_target_config(pair.target_path), reader, 160, config.target_layer_ids)
    cache = KVCache(config.block, 2, 160, torch.float32, CPU)
    return target, Drafter(config, WeightReader(pair.drafter_path, torch.float32, CPU), target, cache, 6)


def make_runner(pair: TinyPair, budget: int = 20) -> ModelRunner:
    target, drafter = make_drafter(pair)
    cache = KVCache(target.config.block, 2, 160, torch.float32, CPU)
    return ModelRunner(target, cache, Proposer("DDTREE", drafter, budget), Profile())


def start(runner: ModelRunner, request: Request, slot: int) -> Sequence:
    sequence = Sequence(request, Collected(), 0, frozenset(), [0] * 6)
    sequence.slot = slot
    runner.reserve(slot, 0)
    return sequence


def advance(runner: ModelRunner, sequences: list[Sequence]) -> None:
    for sequence, token_ids, _ in runner.step(sequences):
        sequence.emit(token_ids)


def test_both_caches_hold_exactly_the_committed_tokens_after_every_step(pair):
    runner = make_runner(pair)
    sequences = [
        start(runner, request, slot) for slot, request in enumerate(make_requests(2, max_new_tokens=60))
    ]
    for _ in range(12):
        advance(runner, sequences)
        for sequence in sequences:
            num_committed = len(sequence.token_ids) - 1
            assert runner.cache.lengths[sequence.slot] == num_committed
            assert runner.drafter.cache.lengths[sequence.slot] == num_committed


def test_context_rows_are_those_of_the_committed_tokens_features(pair):
    runner = make_runner(pair)
    sequences = [
        start(runner, request, slot) for slot, request in enumerate(make_requests(2, max_new_tokens=60))
    ]
    for _ in range(12):
        advance(runner, sequences)
    for sequence in sequences:
        committed = sequence.token_ids[:-1]
        _, fresh = make_drafter(pair)
        features = target_features(pair.target, committed, DRAFTER["dflash_config"]["target_layer_ids"])
        fresh.extend_context(features, [0], [len(committed)])
        kept, expected = (
            drafter.cache.rows[slot, :, :, :, : len(committed)]
            for drafter, slot in ((runner.drafter, sequence.slot), (fresh, 0))
        )
        torch.testing.assert_close(kept, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("lengths", "first", "second"),
    [
        ([6, 6], [6, 2], [6, 6]),
        ([9, 3], [8, 0], [9, 3]),
        ([8, 8], [8, 0], [8, 8]),
        ([16, 2], [8, 0], [16, 0]),
    ],
)
def test_prompts_share_the_rows_of_a_step_in_their_order(pair, monkeypatch, lengths, first, second):
    monkeypatch.setattr(runner_module, "PREFILL_ROWS_PER_STEP", 8)
    runner = make_runner(pair)
    prompts = [tuple(3 + place % 29 for place in range(length)) for length in lengths]
    sequences = [start(runner, Request(str(slot), prompt), slot) for slot, prompt in enumerate(prompts)]
    for num_rows in (first, second):
        waiting = [sequence for sequence in sequences if not sequence.has_output]
        advance(runner, waiting)
        assert runner.cache.lengths == num_rows
        assert [s.has_output for s in sequences] == [n == m for n, m in zip(num_rows, lengths, strict=True)]


@pytest.mark.parametrize("is_target", [True, False])
def test_a_step_refuses_caches_that_do_not_hold_the_committed_tokens(pair, is_target):
    runner = make_runner(pair)
    sequence = start(runner, make_requests(1)[0], 0)
    advance(runner, [sequence])
    cache = runner.cache if is_target else runner.drafter.cache
    cache.lengths[0] -= 1
    with pytest.raises(RuntimeError, match="committed rows of request 0"):
        runner.step([sequence])


class FailingRunner:
    """A runner whose device broke."""

    def __init__(self) -> None:
        self.profile = Profile()

    def reserve(self, slot: int, num_cached: int) -> None:
        pass

    def step(self, sequences: list[Sequence]) -> None:
        raise MemoryError("no room")


def test_a_failure_of_the_models_ends_every_request_with_its_reason():
    limits = EngineLimits(32, 64, max_running_requests=1, budget=0, eos_token_ids=frozenset())
    resolved = Resolved("target", None, None, None, "float32", "cpu", 1, "plain", 0, "0" * 64, None)
    engine = Engine(FailingRunner(), limits, resolved)
    found = [submit(engine, Request(str(i), (3, 4), SamplingParams(max_new_tokens=4))) for i in range(2)]
    alive = []  # while its thread still tells the requests
    engine.submit(
        Request("asks", (3,), SamplingParams(max_new_tokens=4)), lambda _: alive.append(engine.is_alive)
    )
    engine.start()
    wait(*found)
    engine.shutdown(10.0)
    assert alive == [False]
    assert [one.last.finish_type for one in found] == ["abort", "abort"]
    assert "MemoryError: no room" in found[0].last.message
    assert not engine.is_alive
    with pytest.raises(ConfigError, match="MemoryError"):
        submit(engine, Request("late", (3, 4), SamplingParams(max_new_tokens=4)))
