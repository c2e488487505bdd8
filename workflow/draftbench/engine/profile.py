"""Where the time of a round goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

PHASES = ("draft", "build", "verify", "sample", "commit")


@dataclass
class Profile:
    """Seconds per phase, summed over rounds; measures nothing while it is off.

    Phases: draft (the drafter's forward and its context rows), build (marginals, trees, masks, row
    indices), verify (the target's forward), sample (choosing tokens), commit (cache compaction).
    """

    is_on: bool = False
    num_rounds: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase of a round. A CUDA device is waited for at both ends, only while it is on."""
        if not self.is_on:
            yield
            return
        start_s = _synchronised_s()
        yield
        self.seconds[name] += _synchronised_s() - start_s

    def reset(self) -> None:
        """Start again from nothing."""
        self.num_rounds = 0
        self.seconds = dict.fromkeys(PHASES, 0.0)

    def round_ms(self) -> dict[str, float]:
        """Mean milliseconds of a round, by phase."""
        return {name: 1e3 * total / max(self.num_rounds, 1) for name, total in self.seconds.items()}

    def table(self) -> str:
        """The profile as lines of text: phase, milliseconds per round, share."""
        phases = self.round_ms()
        whole = sum(phases.values())
        lines = [f"{'phase':<8}{'ms/round':>10}{'share':>8}"]
        lines += [f"{name:<8}{ms:>10.3f}{ms / (whole or 1):>8.1%}" for name, ms in phases.items()]
        return "\n".join([*lines, f"{'round':<8}{whole:>10.3f}   over {self.num_rounds} rounds"])


def _synchronised_s() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
