r"""Measure one streamed request by hand and write its record.

Examples:
    python -m draftbench.client --base-url http://127.0.0.1:30000 --model target --prompt-file prompt.txt \
        --max-tokens 256 --out record.json
    python -m draftbench.client --base-url http://127.0.0.1:30000 --model target --prompt-file prompt.txt \
        --max-tokens 256 --api chat --no-ignore-eos --out record.json
    python -m draftbench.client --base-url http://127.0.0.1:30000 --model target --prompt-file prompt.txt \
        --max-tokens 2048 --idle-timeout-s 10 --timeout-s 300 --out record.json

The prompt file is sent as it is to `generate` and `completions`, and as one user message to `chat`. The
record is written also when the measurement fails. Exit code 0: the measurement is ok; 1: it is not; 2: wrong
usage.
"""

import argparse
import json
import logging
import sys
from pathlib import Path

from draftbench.client.plan import RequestPlan
from draftbench.client.server import is_speculative_server
from draftbench.client.stream import APIS, measure_request
from draftbench.client.transport import StreamLimits
from draftbench.errors import DraftbenchError
from draftbench.files import write_json
from draftbench.records import RequestRecord

logger = logging.getLogger("draftbench.client")
SUMMARY = ("status", "error", "num_output_tokens", "ttft_s", "tpot_s", "e2e_s", "num_rounds", "tau")


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text}")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {text}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m draftbench.client",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base-url", required=True, help="http://host:port of the server")
    parser.add_argument("--model", required=True, help="the name the server serves the target under")
    parser.add_argument("--prompt-file", required=True, type=Path, help="UTF-8 text")
    parser.add_argument("--max-tokens", required=True, type=_positive_int)
    parser.add_argument("--out", required=True, type=Path, help="where the record is written, as JSON")
    parser.add_argument("--api", choices=sorted(APIS), default="generate")
    parser.add_argument(
        "--no-ignore-eos", action="store_true", help="let the target end its answer before --max-tokens"
    )
    parser.add_argument(
        "--idle-timeout-s", type=_positive, default=60.0, help="longest time without progress"
    )
    parser.add_argument(
        "--timeout-s", type=_positive, default=900.0, help="longest time for the whole request"
    )
    return parser


def _measure(arguments: argparse.Namespace, prompt: str) -> RequestRecord:
    plan = RequestPlan(
        request_id="request-0",
        api=arguments.api,
        model=arguments.model,
        max_tokens=arguments.max_tokens,
        prompt=prompt,
        messages=({"role": "user", "content": prompt},),
        ignore_eos=not arguments.no_ignore_eos,
        prompt_id=arguments.prompt_file.name,
    )
    limits = StreamLimits(idle_s=arguments.idle_timeout_s, total_s=arguments.timeout_s)
    record = measure_request(plan, arguments.base_url, limits)
    is_without_rounds = record.status == "ok" and not record.num_rounds
    if is_without_rounds and is_speculative_server(arguments.base_url) is False:
        return record.model_copy(update={"tau": 1.0})
    return record


def main(argv: list[str] | None = None) -> int:
    """Run the command; its exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        prompt = arguments.prompt_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--prompt-file {arguments.prompt_file}: expected a readable UTF-8 text, got {error}")
    try:
        record = _measure(arguments, prompt)
    except DraftbenchError as error:
        parser.error(str(error))
    try:
        write_json(arguments.out, record.model_dump())
    except OSError as error:
        parser.error(f"--out {arguments.out}: cannot be written: {error}")
    if record.status != "ok":
        logger.error("%s: %s", record.status, record.error)
    print(json.dumps({"out": str(arguments.out), **{name: getattr(record, name) for name in SUMMARY}}))
    return 0 if record.status == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
