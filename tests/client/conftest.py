"""Fixtures of the client's tests: one request against a server that plays a script."""

import pytest
from fault_server import FaultServer, chunked
from plans import LIMITS, make_plan

from draftbench.client.stream import measure_request


@pytest.fixture
def measure():
    """Measure one request that is answered with `steps`; the record. It must have been sent exactly once."""

    def run(steps, api="generate", *, max_tokens=4, limits=LIMITS, frame=chunked, drafting=None, **facts):
        with FaultServer(lambda _call: frame(steps)) as server:
            record = measure_request(make_plan(api, max_tokens, **facts), server.base_url, limits, drafting)
            assert len(server.calls) == 1
        return record

    return run
