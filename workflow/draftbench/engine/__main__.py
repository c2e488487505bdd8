r"""Serve a model over SGLang's HTTP interface, with or without speculative decoding.

    python -m draftbench.engine --model-path models/target --port 30000
    python -m draftbench.engine --model-path models/target --port 30000 \
        --speculative-algorithm DFLASH --speculative-draft-model-path models/drafter
    python -m draftbench.engine --model-path models/target --port 30000 \
        --speculative-algorithm DDTREE --speculative-draft-model-path models/drafter \
        --speculative-ddtree-budget 15

SIGTERM and SIGINT end the server in order within 5 s. Exit code: 0 stopped by a signal, 1 it could not start
(one sentence on stderr), 2 wrong usage.
"""

import argparse
import logging
import shlex
import signal
import sys
import time
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from draftbench.engine.huge_pages import ask_for_huge_pages
from draftbench.engine.serving.lifecycle import claim_port, serve
from draftbench.engine.serving.service import Service
from draftbench.engine.serving.tokenizer import Tokenizer
from draftbench.errors import DraftbenchError

# Options whose names, SGLang's, are longer than those of the engine's settings.
OPTIONS = {
    "algorithm": "speculative_algorithm",
    "draft_model_path": "speculative_draft_model_path",
    "block_size": "speculative_dflash_block_size",
    "budget": "speculative_ddtree_budget",
}


def main() -> int:
    """Serve until a signal; the exit code."""
    arguments = _parser().parse_args()
    level, form, date_form = arguments.log_level.upper(), "[%(asctime)s] %(message)s", "%Y-%m-%d %H:%M:%S"
    logging.basicConfig(level=level, format=form, datefmt=date_form)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    try:
        with claim_port(arguments.host, arguments.port) as listener:
            address = listener.getsockname()
            logging.info("Claimed http://%s:%d, loading %s", address[0], address[1], arguments.model_path)
            serve(_build(arguments), listener)
    except DraftbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _leave(_number: int, _frame: FrameType | None) -> None:
    """A signal while the model is being loaded: there is nothing to put in order."""
    raise SystemExit(0)


def _build(arguments: argparse.Namespace) -> Service:
    """Load the tokenizer and the engine, and start the engine."""
    started_s = time.monotonic()
    tokenizer = Tokenizer(arguments.model_path)
    # Imported here because torch takes a second, and a taken port or a missing file needs no torch.
    from draftbench.engine.factory import EngineSettings, load_engine  # noqa: PLC0415

    values, names = vars(arguments), [field.name for field in fields(EngineSettings)]
    engine = load_engine(EngineSettings(**{name: values[OPTIONS.get(name, name)] for name in names}))
    engine.start()
    return Service(engine, tokenizer, _launch_info(arguments, time.monotonic() - started_s))


def _launch_info(arguments: argparse.Namespace, startup_s: float) -> dict[str, Any]:
    """What `/server_info` says of the launch, under SGLang's names; paths as given."""
    info = {name: str(v) if isinstance(v, Path) else v for name, v in vars(arguments).items()}
    info["served_model_name"] = arguments.served_model_name or str(arguments.model_path)
    info |= {"argv": sys.orig_argv, "launch_command": shlex.join(sys.orig_argv)}
    return info | {"version": version("draftbench"), "startup_time": startup_s}


def _parser() -> argparse.ArgumentParser:
    options: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser("python -m draftbench.engine", description=__doc__, **options)
    add = parser.add_argument
    add("--model-path", type=Path, required=True, help="folder of the target and its tokenizer")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)")
    add("--port", type=int, default=30000, help="port, 0 takes a free one (default: %(default)s)")
    add("--served-model-name", help="name in answers and /v1/models (default: the model path)")
    add("--speculative-algorithm", choices=["DFLASH", "DDTREE"], help="default: no speculation")
    add("--speculative-draft-model-path", type=Path, help="folder of a DFlash drafter of this target")
    add("--speculative-dflash-block-size", type=int, help="anchor included (default: the drafter's own)")
    add("--speculative-ddtree-budget", type=int, help="tree nodes without the root (default: block size - 1)")
    add("--dtype", choices=["auto", "float32", "bfloat16", "float16"], default="auto")
    add("--device", choices=["auto", "cpu", "cuda"], default="auto")
    add("--max-running-requests", type=int, default=8, help="share a round (default: %(default)s)")
    add("--context-length", type=int, help="prompt and output tokens of a request (default: the target's)")
    add("--random-seed", type=int, default=0, help="default: %(default)s")
    add("--num-threads", type=int, help="of torch on the CPU (default: torch's choice)")
    add("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    return parser


if __name__ == "__main__":
    ask_for_huge_pages()
    sys.exit(main())
