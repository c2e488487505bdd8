"""Each measuring client behind one interface: measure these prompts, so many in flight, print what you saw.

    python benchmarks/client_overhead_drivers.py draftbench-chat --base-url URL --streams 8 --prompts a.json

Runs in the environment of the client it drives; only `draftbench-*` needs draftbench. The last line of
standard output is a JSON list with a list for each prompt file, and in it for each prompt
`{"ttft_s": ..., "gaps_s": [...], "error": ...}`.
"""

import argparse
import asyncio
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PRIORITY = 10
TOKENIZER = "./tokenizer"  # of aiperf: a folder in the working directory, it takes no absolute path
PATHS = {
    "generate": "/generate",
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
}
SGLANG_FUNCTIONS = {
    "generate": "async_request_sglang_generate",
    "chat": "async_request_openai_chat_completions",
}
# What `sglang.bench_serving` sets itself when it is run as a command.
SGLANG_ARGUMENTS = {
    **{"backend": "sglang", "temperature": 0.0, "top_p": 1.0, "logprob_start_len": -1, "top_logprobs_num": 0},
    **dict.fromkeys(
        ("disable_ignore_eos", "disable_stream", "return_logprob", "return_routed_experts"), False
    ),
    **dict.fromkeys(("cache_report", "print_requests", "plot_throughput"), False),
    **dict.fromkeys(("header", "token_ids_logprob"), None),
}


def run_draftbench(api, base_url, prompts, num_streams):
    """This project's client."""
    chunk_gaps_s = importlib.import_module("draftbench.definitions").chunk_gaps_s
    load = importlib.import_module("draftbench.client.load")
    make_plan = importlib.import_module("draftbench.client.plan").RequestPlan
    measure_request = importlib.import_module("draftbench.client.stream").measure_request
    limits = importlib.import_module("draftbench.client.transport").StreamLimits()
    plans = [
        make_plan(
            f"r{index}",
            api,
            "target",
            prompt["tokens"],
            prompt=prompt["text"],
            messages=({"role": "user", "content": prompt["text"]},),
        )
        for index, prompt in enumerate(prompts)
    ]
    records = load.run_closed_loop(
        plans, num_streams, lambda plan: measure_request(plan, base_url, limits), load.InFlight()
    )
    return [{"ttft_s": r.ttft_s, "gaps_s": chunk_gaps_s(r.chunks), "error": r.error} for r in records]


def run_sglang(api, base_url, prompts, num_streams):
    """The request functions of `sglang.bench_serving`."""
    serving = importlib.import_module("sglang.benchmark.serving")
    serving.set_global_args(argparse.Namespace(**SGLANG_ARGUMENTS))
    common = {"api_url": base_url + PATHS[api], "prompt_len": 8, "model": "target", "lora_name": ""}

    async def call(prompt):
        request = serving.RequestFuncInput(
            prompt=prompt["text"],
            output_len=prompt["tokens"],
            image_data=None,
            extra_request_body={},
            **common,
        )
        return await getattr(serving, SGLANG_FUNCTIONS[api])(request)

    return asyncio.run(_closed_loop(call, prompts, num_streams))


def run_vllm(api, base_url, prompts, num_streams):
    """The request functions of `vllm bench serve`, all on one session as there."""
    functions = importlib.import_module("vllm.benchmarks.lib.endpoint_request_func")
    aiohttp = importlib.import_module("aiohttp")
    send = getattr(functions, f"async_request_openai_{PATHS[api].removeprefix('/v1/').replace('/', '_')}")
    common = {"api_url": base_url + PATHS[api], "prompt_len": 8, "model": "target"}

    async def run():
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def call(prompt):
                request = functions.RequestFuncInput(
                    prompt=prompt["text"], output_len=prompt["tokens"], **common
                )
                return await send(request, session=session)

            return await _closed_loop(call, prompts, num_streams)

    return asyncio.run(run())


async def _closed_loop(call, prompts, num_streams):
    """Run an asynchronous request function over the prompts."""
    queue, results = list(enumerate(prompts)), [None] * len(prompts)

    async def work():
        while queue:
            index, prompt = queue.pop(0)
            output = await call(prompt)
            error = None if output.success else str(output.error)[-300:]
            results[index] = {"ttft_s": output.ttft, "gaps_s": list(output.itl), "error": error}

    await asyncio.gather(*(work() for _ in range(num_streams)))
    return results


def run_aiperf(api, base_url, prompts, num_streams):
    """The command `aiperf profile`; needs a folder `tokenizer` in the working directory."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.jsonl"
        inputs.write_text("".join(json.dumps({"text": prompt["text"]}) + "\n" for prompt in prompts))
        command = [
            *(str(Path(sys.executable).with_name("aiperf")), "profile", "-m", "target", "-u", base_url),
            *("--endpoint-type", api, "--streaming", "--ui", "none", "--export-level", "raw"),
            *("--input-file", str(inputs), "--custom-dataset-type", "single_turn"),
            *("--concurrency", str(num_streams), "--request-count", str(len(prompts))),
            *("--tokenizer", TOKENIZER, "--use-server-token-count", "--artifact-dir", folder),
        ]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        sessions = json.loads((Path(folder) / "inputs.json").read_text())["data"]
        lines = (Path(folder) / "profile_export.jsonl").read_text().splitlines()
    texts = {session["session_id"]: session["payloads"][0]["messages"][0]["content"] for session in sessions}
    seen = {}
    for record in map(json.loads, lines):
        metrics = record["metrics"]
        gaps = [value / 1000 for value in metrics["inter_chunk_latency"]["value"]]
        first = metrics["time_to_first_token"]["value"] / 1000
        text = texts[record["metadata"]["conversation_id"]]
        seen[text] = {"ttft_s": first, "gaps_s": gaps, "error": None}
    missing = {"ttft_s": None, "gaps_s": None, "error": "no record in its export"}
    return [seen.get(prompt["text"], missing) for prompt in prompts]


RUNNERS = {"draftbench": run_draftbench, "sglang": run_sglang, "vllm": run_vllm, "aiperf": run_aiperf}


def main():
    """Drive one client; its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "client", help="<tool>-<api>: draftbench, sglang, vllm, aiperf; generate, chat, completions"
    )
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="JSON lists of {text, tokens}")
    parser.add_argument("--realtime", action="store_true", help="run under a real-time scheduler")
    arguments = parser.parse_args()
    tool, api = arguments.client.split("-")
    runs = [json.loads(path.read_text()) for path in arguments.prompts]
    RUNNERS[tool](
        api, arguments.base_url, runs[0][:1], 1
    )  # imports and first uses are no part of a measurement
    if arguments.realtime and tool != "aiperf":  # a process of aiperf's spins, and would take the whole core
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    results = [RUNNERS[tool](api, arguments.base_url, prompts, arguments.streams) for prompts in runs]
    print("\n" + json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
