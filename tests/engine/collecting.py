"""Sinks that gather a request's outputs."""

import random
import threading
from dataclasses import dataclass, field

from draftbench.engine.request import Output, Request, SamplingParams
from draftbench.engine.scheduler import Engine


@dataclass
class Collected:
    """Everything that one request was told."""

    outputs: list[Output] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def __call__(self, output: Output) -> None:
        self.outputs.append(output)
        if output.finish_type is not None:
            self.done.set()

    @property
    def token_ids(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def last(self) -> Output:
        return self.outputs[-1]


def submit(engine: Engine, request: Request) -> Collected:
    collected = Collected()
    engine.submit(request, collected)
    return collected


def wait(*collected: Collected) -> None:
    for one in collected:
        assert one.done.wait(60), "the request did not end"


def generate(engine: Engine, requests: list[Request]) -> list[Collected]:
    """Submit all at once and wait for all."""
    found = [submit(engine, request) for request in requests]
    wait(*found)
    return found


def make_requests(num_requests: int, vocab_size: int = 32, **sampling: object) -> list[Request]:
    """Prompts of 1 to 40 tokens, outputs of 8 to 40 tokens that end at nothing else."""
    source = random.Random(7)  # noqa: S311 -- prompts, not secrets
    requests = []
    for index in range(num_requests):
        prompt = tuple(source.randrange(3, vocab_size) for _ in range(source.randint(1, 40)))
        params = {"max_new_tokens": source.randint(8, 40), "ignore_eos": True, **sampling}
        requests.append(Request(str(index), prompt, SamplingParams(**params)))
    return requests
