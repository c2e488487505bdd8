"""Requests and limits of the client's tests."""

from draftbench.client.plan import RequestPlan
from draftbench.client.transport import StreamLimits

APIS = ["generate", "chat", "completions"]
LONG = "Explain at some length and with examples "
LIMITS = StreamLimits(connect_s=2.0, idle_s=2.0, total_s=10.0)


def make_plan(api="generate", max_tokens=4, **facts):
    """A request for `max_tokens` tokens, whatever they are."""
    messages = ({"role": "user", "content": "Hello"},)
    return RequestPlan("request-0", api, "target", max_tokens, prompt="Hello", messages=messages, **facts)
