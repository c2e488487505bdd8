"""How the services were launched, and how many tokens each had room for."""

from collections import defaultdict
from collections.abc import Sequence

from draftbench.config import Campaign, SglangEngine
from draftbench.records import CellResult
from draftbench.report.group import CellIndex
from draftbench.report.prose import label
from draftbench.report.summary import Room, Setting, Summary
from draftbench.report.tex import number, percent


def engine_settings(campaign: Campaign, results: Sequence[CellResult]) -> str:
    """What all services have in common and a baseline's speed depends on."""
    engine = campaign.engine
    parts = [_served(results, "dtype", engine.dtype)]
    if isinstance(engine, SglangEngine):
        parts += [
            f"attention backend {engine.attention_backend}",
            f"pages of {engine.page_size} in the KV cache",
            "prefixes kept between requests" if engine.radix_cache else "no prefixes kept between requests",
            f"{engine.mem_fraction_static} of the GPU’s memory for weights and KV cache",
        ]
    else:
        parts.append(f"device {_served(results, 'device', engine.device)}")
        parts += [f"{engine.num_threads} threads"] if engine.num_threads else []
    parts.append(f"at most {engine.max_running_requests} requests at once")
    parts += [f"context length {engine.context_length}"] if engine.context_length else []
    if isinstance(engine, SglangEngine):
        parts += [f"{name} {value}" for name, value in engine.extra_args.items()]
        parts += [f"{name}={value}" for name, value in engine.environment.items()]
    return ", ".join(parts)


def _served(results: Sequence[CellResult], key: str, planned: str) -> str:
    """What the servers say they took, which `auto` leaves to them."""
    told = dict.fromkeys(str(result.identity.server_info.get(key, planned)) for result in results)
    return " or ".join(told)


def rooms(index: CellIndex) -> list[Room]:
    """Tokens of all requests together that a method's servers could keep; the least where starts differ."""
    found: defaultdict[tuple[str, int, str], list[int]] = defaultdict(list)
    for cell in index.by_key.values():
        service, result = cell.plan.service, cell.result
        told = result.identity.server_info.get("max_total_num_tokens") if result is not None else None
        if isinstance(told, int):
            found[service.model, service.tp, service.method].append(told)
    return [
        Room(model=model, tp=tp, method=method, num_tokens=min(told))
        for (model, tp, method), told in found.items()
    ]


def room_text(summary: Summary, setting: Setting) -> str:
    """What each method's servers had room for, beside the baseline's; empty where they do not say."""
    rooms = {row.method: row.num_tokens for row in summary.rooms if (row.model, row.tp) == setting}
    base = rooms.get(summary.baseline or "")
    parts = []
    for method, num_tokens in rooms.items():
        beside = f" ({percent(num_tokens / base)})" if base and method != summary.baseline else ""
        parts.append(f"{label(summary, method)} {number(num_tokens, 0)}{beside}")
    return ", ".join(parts)
