"""A stand-in for the interpreter of SGLang's environment.

    fake_sglang.py -c PROGRAM                        says what a healthy environment says of itself
    fake_sglang.py -m sglang.launch_server OPTIONS   serves, with a scheduler process on each of its GPUs

A server behaves as fake_engine.py describes, and beside that, by method: `lying-health` (is healthy, but
generates nothing), `hang` (stops in the middle of an answer), `stubborn` (ignores SIGTERM, and its schedulers
leave its session and outlive it). $FAKE_GPUS is the file of the fake GPUs.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
VERSION = "0.5.17"
SCHEDULER = "import os, sys, time\nwhile {stays} or os.getppid() == {parent}: time.sleep(0.05)"
KNOWN = ("model-path", "port", "speculative-algorithm", "speculative-dflash-block-size")


def read_options(arguments: list[str]) -> dict[str, Any]:
    """Option -> its value, a list of several, or True for a flag."""
    options: dict[str, Any] = {}
    name = ""
    for part in arguments:
        if part.startswith("--"):
            name = part[2:]
            options[name] = True
        else:
            value = int(part) if part.lstrip("-").isdigit() else part
            known = options[name]
            options[name] = (
                value if known is True else [*(known if isinstance(known, list) else [known]), value]
            )
    return options


def start_schedulers(num_gpus: int, stays: bool) -> None:
    """One process a GPU, entered into the file of the fake GPUs."""
    state = Path(os.environ["FAKE_GPUS"])
    program = SCHEDULER.format(stays=stays, parent=os.getpid())
    command = [sys.executable, "-S", "-c", program, "scheduler"]
    started = [subprocess.Popen(command, start_new_session=stays).pid for _ in range(num_gpus)]
    with state.open("r+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        content = json.load(stream)
        for gpu, pid in enumerate(started):
            content["pids"].setdefault(str(gpu), []).append(pid)
        stream.seek(0)
        stream.truncate()
        json.dump(content, stream)


def log_probabilities(body: dict[str, Any]) -> dict[str, Any]:
    """An answer of a target that counts up and is sure of it; prompts hold one token a word."""

    def entries(ids: list[int]) -> dict[str, list[Any]]:
        return {
            "token_logprobs": [[-0.1, i, None] for i in ids],
            "top_logprobs": [[[-0.1, i, None], [-5.0, i + 1, None]] for i in ids],
        }

    answer: dict[str, Any] = {}
    if "text" in body:
        answer["prompt_token_ids"] = [*range(1000, 1000 + len(body["text"].split()))]
    inputs = body.get("input_ids", [])[body.get("logprob_start_len", 0) :]
    outputs = [*range(body["sampling_params"]["max_new_tokens"])]
    meta = {f"input_{name}": values for name, values in entries(inputs).items()}
    meta |= {f"output_{name}": values for name, values in entries(outputs).items()}
    return {**answer, "meta_info": meta}


def serve(options: dict[str, Any]) -> None:
    sys.argv[1:] = [part for name in KNOWN if name in options for part in (f"--{name}", str(options[name]))]
    from tests.workflow import fake_engine  # noqa: PLC0415 - reads its options when it is imported

    def kind() -> str | None:
        return fake_engine.behaviour().get(fake_engine.METHOD)

    class Handler(fake_engine.Handler):
        def do_GET(self) -> None:  # noqa: N802 - the base class's name
            if self.path != "/server_info":
                super().do_GET()
                return
            info = {name.replace("-", "_"): value for name, value in options.items()}
            self.answer({"disable_radix_cache": False} | info | {"version": VERSION})

        def generate(self, body: dict[str, Any]) -> None:
            if kind() == "lying-health":
                self.answer({"error": {"message": "no model is loaded"}}, 500)
            elif body.get("return_logprob"):
                self.answer(log_probabilities(body))
            else:
                super().generate(body)

        def event(self, body: dict[str, Any], sizes: list[int], number: int) -> dict[str, Any]:
            if kind() == "hang" and body.get("stream") and number > 1:
                time.sleep(600)
            return super().event(body, sizes, number)

    fake_engine.Handler = Handler
    if kind() != "out-of-memory":
        start_schedulers(options["tp-size"], stays=kind() == "stubborn")
    if kind() == "stubborn":
        signal.signal = lambda *_: None  # main() of the fake engine would listen to SIGTERM
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    fake_engine.main()


if __name__ == "__main__":
    if sys.argv[1] == "-c":
        versions = {"sglang": VERSION, "torch": "2.11.0"}
        facts = {"python": "3.12.1", "versions": versions, "plugins": [], "cuda": "13.0", "error": None}
        print(json.dumps(facts))
    else:
        serve(read_options(sys.argv[3:]))
