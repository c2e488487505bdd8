"""Each measuring client behind one interface: measure these prompts, so many in flight, print what you saw.

    python benchmarks/client_overhead_drivers.py draftbench-chat --base-url URL --loads a.json b.json
    python benchmarks/client_overhead_drivers.py guidellm-chat --version

Runs in the environment of the client it drives; only `draftbench-*` needs draftbench. A load is a JSON object
`{"num_streams": ..., "prompts": [{"text": ..., "tokens": ...}]}`. The last line of standard output is a JSON
list with a list for each load, and in it for each prompt
`{"ttft_s": ..., "gaps_s": [...], "span_s": ..., "error": ...}`: gaps are null where the client keeps none,
the span is from first token to last. `--version` prints the version once what is driven has been imported.
"""

import argparse
import asyncio
import gc
import importlib
import importlib.metadata
import itertools
import json
import os
import sys
from pathlib import Path

PRIORITY = 10
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


def outcome(ttft_s, gaps_s, error=None):
    """What a client saw of one request."""
    return {"ttft_s": ttft_s, "gaps_s": gaps_s, "span_s": sum(gaps_s), "error": error}


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
    return [outcome(record.ttft_s, chunk_gaps_s(record.chunks), record.error) for record in records]


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
        return _output_outcome(await getattr(serving, SGLANG_FUNCTIONS[api])(request))

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
                return _output_outcome(await send(request, session=session))

            return await _closed_loop(call, prompts, num_streams)

    return asyncio.run(run())


def run_aiperf(api, base_url, prompts, num_streams):
    """The inference client of aiperf's worker, on the event loop and without garbage collection as there."""
    models = importlib.import_module("aiperf.common.models")
    endpoints = importlib.import_module("aiperf.common.models.model_endpoint_info")
    inference_client = importlib.import_module("aiperf.workers.inference_client")
    model_endpoint = endpoints.ModelEndpointInfo(
        models={"models": [{"name": "target"}], "model_selection_strategy": "round_robin"},
        endpoint={"type": api, "base_urls": [base_url], "streaming": True, "use_server_token_count": True},
    )

    async def run():
        client = inference_client.InferenceClient(model_endpoint, "worker")
        await client.initialize()
        await client.start()
        numbers = itertools.count()

        async def call(prompt):
            number = next(numbers)
            texts = [models.Text(contents=[prompt["text"]])]
            names = dict.fromkeys(("conversation_id", "x_request_id", "x_correlation_id"), f"r{number}")
            request = models.RequestInfo(
                model_endpoint=model_endpoint,
                credit_num=number,
                credit_phase="profiling",
                turn_index=0,
                turns=[models.Turn(role="user", texts=texts, max_tokens=prompt["tokens"])],
                **names,
            )
            record = await client.send_request(request)
            parsed = client.endpoint.extract_response_data(record)  # the worker does so between streams, too
            times_s = [record.start_perf_ns / 1e9, *(one.perf_ns / 1e9 for one in parsed if one.data)]
            if record.error or len(times_s) == 1:
                return outcome(None, [], str(record.error or "no response with data"))
            gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
            return outcome(gaps_s[0], gaps_s[1:])

        try:
            return await _closed_loop(call, prompts, num_streams)
        finally:
            await client.stop()

    gc.collect()
    gc.disable()
    return importlib.import_module("uvloop").run(run())


def run_guidellm(api, base_url, prompts, num_streams):
    """The HTTP backend of guidellm's worker; it keeps the first and the last time of a stream, so no gaps."""
    schemas = importlib.import_module("guidellm.schemas")
    make_backend = importlib.import_module("guidellm.backends").OpenAIHTTPBackend
    make_arguments = importlib.import_module("guidellm.schemas.backends").OpenAIHTTPBackendArgs

    async def run():
        backend = make_backend(make_arguments(target=base_url, model="target", request_format=PATHS[api]))
        await backend.process_startup()

        async def call(prompt):
            request = schemas.GenerationRequest(
                columns={"text_column": [prompt["text"]]},
                output_metrics=schemas.UsageMetrics(text_tokens=prompt["tokens"]),
            )
            info = schemas.RequestInfo()
            async for _ in backend.resolve(request, info):
                pass
            times = info.timings
            first_s = times.first_token_iteration
            span_s = times.last_token_iteration - first_s
            return {"ttft_s": first_s - times.request_start, "gaps_s": None, "span_s": span_s, "error": None}

        try:
            return await _closed_loop(call, prompts, num_streams)
        finally:
            await backend.process_shutdown()

    return asyncio.run(run())  # on uvloop, which importing guidellm installs


def _output_outcome(output):
    """From the outputs of sglang and vllm."""
    return outcome(output.ttft, list(output.itl), None if output.success else str(output.error)[-300:])


async def _closed_loop(call, prompts, num_streams):
    """Run an asynchronous request function over the prompts."""
    queue, results = list(enumerate(prompts)), [None] * len(prompts)

    async def work():
        while queue:
            index, prompt = queue.pop(0)
            results[index] = await call(prompt)

    await asyncio.gather(*(work() for _ in range(num_streams)))
    return results


RUNNERS = {
    "draftbench": run_draftbench,
    "sglang": run_sglang,
    "vllm": run_vllm,
    "aiperf": run_aiperf,
    "guidellm": run_guidellm,
}
# What each runner needs most: where it is not to be imported, there is nothing to drive.
MODULES = {
    "draftbench": "draftbench.client.stream",
    "sglang": "sglang.benchmark.serving",
    "vllm": "vllm.benchmarks.lib.endpoint_request_func",
    "aiperf": "aiperf.workers.inference_client",
    "guidellm": "guidellm.backends",
}


def main():
    """Drive one client; its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("client", help=f"<tool>-<api>: {', '.join(RUNNERS)}; {', '.join(PATHS)}")
    parser.add_argument("--base-url")
    parser.add_argument("--loads", type=Path, nargs="+", default=[])
    parser.add_argument("--version", action="store_true", help="print the client's version and end")
    parser.add_argument("--realtime", action="store_true", help="run under a real-time scheduler")
    arguments = parser.parse_args()
    tool, api = arguments.client.split("-")
    importlib.import_module(MODULES[tool])
    if arguments.version:
        print("\n" + importlib.metadata.version(tool))
        return 0
    loads = [json.loads(path.read_text()) for path in arguments.loads]
    # Imports and first uses are no part of a measurement.
    RUNNERS[tool](api, arguments.base_url, loads[0]["prompts"][:1], 1)
    if arguments.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    results = [RUNNERS[tool](api, arguments.base_url, one["prompts"], one["num_streams"]) for one in loads]
    print("\n" + json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
