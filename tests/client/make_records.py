"""Records for tests that need no server."""

import itertools

from draftbench import definitions
from draftbench.records import Chunk, RequestRecord, ServiceIdentity

_numbers = itertools.count()


def make_record(send_s=0.0, times=(1.0, 2.0), tokens=None, **facts):
    """A complete record with chunks at `times` (seconds after 0) of `tokens` tokens each."""
    tokens = tokens or [1] * len(times)
    chunks = [Chunk(time_s=t, num_tokens=n) for t, n in zip(times, tokens, strict=True)]
    first, last = (times[0], times[-1]) if times else (None, None)
    values = {
        "request_id": f"request-{next(_numbers)}",
        "prompt_id": "p",
        "prompt_type": "code",
        "repeat": 0,
        "turn": 0,
        "api": "generate",
        "status": "ok",
        "error": None,
        "http_status": 200,
        "finish_reason": "length",
        "max_tokens": sum(tokens),
        "ignore_eos": True,
        "num_prompt_tokens": 10,
        "num_cached_tokens": 0,
        "num_output_tokens": sum(tokens),
        "send_s": send_s,
        "first_token_s": first,
        "last_token_s": last,
        "end_s": last if last is not None else send_s,
        "ttft_s": definitions.ttft_s(send_s, chunks),
        "tpot_s": definitions.tpot_s(chunks),
        "e2e_s": last - send_s if last is not None else None,
        "chunks": chunks,
        "num_rounds": None,
        "num_accepted_tokens": None,
        "num_proposed_tokens": None,
        "accept_histogram": None,
        "tau": None,
        "text": "",
        "output_ids": None,
    }
    return RequestRecord(**{**values, **facts})


def make_identity(pid=1, **facts):
    """Who serves, in a test."""
    values = {
        "service": "tp1-ar",
        "base_url": "http://127.0.0.1:1",
        "argv": ["serve"],
        "engine": "embedded",
        "engine_version": "1",
        "pid": pid,
        "pid_start_ticks": 7,
        "boot_id": "boot",
        "started_at": "2026-01-01T00:00:00Z",
        "server_info": {},
        "environment": {},
    }
    return ServiceIdentity(**{**values, **facts})
