"""The argument list of this project's own engine."""

import sys
from pathlib import Path
from typing import Any

from draftbench.config import EmbeddedEngine, Method
from draftbench.servers.base import HOST, Launch

ALGORITHMS = {"ar": None, "dflash": "DFLASH", "ddtree": "DDTREE"}


def build_embedded_launch(
    engine: EmbeddedEngine, method: Method, target: Path, drafter: Path | None, *, port: int, seed: int
) -> Launch:
    """`python -m draftbench.engine …` for one method; `drafter` is None for autoregressive decoding."""
    algorithm = ALGORITHMS[method.algorithm]
    options: dict[str, Any] = {
        "model-path": target,
        "host": HOST,
        "port": port,
        "served-model-name": "target",
        "dtype": engine.dtype,
        "device": engine.device,
        "max-running-requests": engine.max_running_requests,
        "context-length": engine.context_length,
        "num-threads": engine.num_threads,
        "random-seed": seed,
    }
    expected: dict[str, Any] = {"model_path": str(target), "speculative_algorithm": algorithm}
    if algorithm is not None:
        options |= {
            "speculative-algorithm": algorithm,
            "speculative-draft-model-path": drafter,
            "speculative-dflash-block-size": method.block_size,
            "speculative-ddtree-budget": method.budget,
        }
        expected |= {
            "speculative_draft_model_path": str(drafter),
            "speculative_dflash_block_size": method.block_size,
            "speculative_ddtree_budget": method.budget,
        }
    given = [part for name, v in options.items() if v is not None for part in (f"--{name}", str(v))]
    argv = (engine.python or sys.executable, "-m", "draftbench.engine", *given)
    return Launch(argv=argv, environment={}, expected=expected, engine="embedded")
