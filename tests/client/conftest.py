"""Fixtures of the client's tests: one request against a server that plays a script, and one cell."""

import os

import pytest
import yaml
from fault_server import FaultServer, chunked
from make_records import make_identity
from model_server import write_model_folder
from plans import LIMITS, LONG, make_plan

from draftbench.client.cell import measure_cell
from draftbench.client.stream import measure_request
from draftbench.config import cells, load_campaign

WORKLOADS = {
    "single": {"kind": "single", "max_tokens": 5},
    "agentic": {"kind": "agentic", "num_turns": 3, "max_tokens": 5},
    "natural": {"kind": "agentic", "num_turns": 2, "max_tokens": 5, "ignore_eos": False},
    "natural-single": {"kind": "single", "max_tokens": 5, "ignore_eos": False},
    "loop": {"kind": "concurrency", "concurrency": 3, "num_requests": 9, "max_tokens": 5},
}


@pytest.fixture
def measure():
    """Measure one request that is answered with `steps`; the record. It must have been sent exactly once."""

    def run(steps, api="generate", *, max_tokens=4, limits=LIMITS, frame=chunked, drafting=None, **facts):
        with FaultServer(lambda _call: frame(steps)) as server:
            record = measure_request(make_plan(api, max_tokens, **facts), server.base_url, limits, drafting)
            assert len(server.calls) == 1
        return record

    return run


@pytest.fixture
def folder(tmp_path):
    def write(name, content):
        (tmp_path / name).write_text(yaml.safe_dump(content))
        return str(tmp_path / name)

    prompts = [{"id": f"p{i}", "type": "code", "text": f"{i} {LONG}{i}"} for i in range(4)]
    write("prompts.yaml", {"prompts": prompts})
    write("warmup.yaml", {"prompts": [{"id": "w", "type": "code", "text": "warm up"}]})
    write("talk.yaml", {"scenario": "talk", "turns": [f"{LONG}{i}" for i in range(3)]})
    write_model_folder(tmp_path / "model")
    return tmp_path


@pytest.fixture
def run(folder):
    """Measure one workload of a campaign; the result."""

    def measure(
        server, workload="single", method="ar", *, session=1, identify=make_identity, journal=None, **changes
    ):
        is_agentic = WORKLOADS[workload]["kind"] == "agentic"
        source = {"scenario": "talk.yaml"} if is_agentic else {"prompts": "prompts.yaml"}
        values = {
            "campaign": "test",
            "models": {"m": {"target": {"source": "path:x"}, "drafter": {"source": "path:y"}}},
            "engine": {"kind": "embedded"},
            "methods": {"ar": {"algorithm": "ar"}, "dflash": {"algorithm": "dflash"}},
            "workloads": {
                workload: {**WORKLOADS[workload], **{key: str(folder / name) for key, name in source.items()}}
            },
            "warmup": {"prompts": str(folder / "warmup.yaml"), "max_tokens": 3, "max_batches": 2},
            "limits": {"idle_s": 2, "request_s": 5},
            **changes,
        }
        campaign = load_campaign(values, "test.yaml")
        wanted = (method, session)
        cell = next(c for c in cells(campaign) if (c.service.method, c.service.session) == wanted)
        return measure_cell(
            campaign,
            cell,
            spec={"a": 1},
            base_url=server.base_url,
            model_dir=folder / "model",
            order_index=3,
            identify=lambda: identify(pid=os.getpid()),
            journal=journal,
        )

    return measure
