"""Tiny models, and engines that end with their test."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from collecting import Collected, generate
from tiny_models import TinyPair, write_pair

from draftbench.engine.factory import EngineSettings, load_engine
from draftbench.engine.request import Request
from draftbench.engine.scheduler import Engine


@pytest.fixture(scope="session", autouse=True)
def single_thread() -> None:
    """The models are too small to share, and other processes may use the other cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return write_pair(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def settings(pair: TinyPair) -> EngineSettings:
    """Autoregressive float32 on the CPU."""
    return EngineSettings(Path(pair.target_path), dtype="float32", device="cpu", num_threads=1)


@pytest.fixture(scope="session")
def draft_settings(settings: EngineSettings, pair: TinyPair) -> EngineSettings:
    """The same with DFlash."""
    return replace(settings, algorithm="DFLASH", draft_model_path=pair.drafter_path)


@pytest.fixture
def start_engine(settings: EngineSettings, draft_settings: EngineSettings) -> Iterator[Callable[..., Engine]]:
    """Loads and starts an engine with some settings changed; an algorithm comes with the drafter."""
    engines = []

    def start(**changes: object) -> Engine:
        engine = load_engine(replace(draft_settings if "algorithm" in changes else settings, **changes))
        engines.append(engine)
        engine.start()
        return engine

    yield start
    for engine in engines:
        engine.shutdown(10.0)


@pytest.fixture
def run_engine(start_engine: Callable[..., Engine]) -> Callable[..., list[Collected]]:
    """Generates for some requests, all at once, with an engine of its own."""

    def run(requests: list[Request], **changes: object) -> list[Collected]:
        return generate(start_engine(**changes), requests)

    return run
