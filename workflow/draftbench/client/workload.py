"""From a campaign's workload to requests: what is sent in one repeat, and the batches that warm up for it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftbench.client.load import InFlight, run_closed_loop, run_session
from draftbench.client.plan import Message, RequestPlan
from draftbench.client.prompts import (
    Prompt,
    Scenario,
    check_disjoint,
    expand_prompts,
    load_prompts,
    load_scenario,
)
from draftbench.client.stream import measure_request
from draftbench.client.template import ChatTemplate
from draftbench.client.transport import StreamLimits
from draftbench.config import AgenticWorkload, Campaign, Cell, ConcurrencyWorkload, Method
from draftbench.definitions import Drafting
from draftbench.errors import MeasurementError
from draftbench.records import RequestRecord

SETTLE_TOKENS = 8


def drafting_of(method: Method) -> Drafting:
    """What a method's rounds can hold: a block of `block_size` slots has its anchor and that many - 1 drafts.

    A tree is no deeper than the block, nor than its budget of nodes.
    """
    if method.algorithm == "ar":
        return Drafting(is_speculative=False)
    depth = method.block_size - 1
    if method.budget is not None:
        depth = min(depth, method.budget)
    return Drafting(is_speculative=True, max_accepted=depth)


def verify_size_of(method: Method) -> int | None:
    """Tokens that one round verifies, root included; None for autoregressive decoding."""
    if method.algorithm == "ar":
        return None
    return method.block_size if method.budget is None else method.budget + 1


@dataclass
class Sender:
    """Sends requests of one cell to its server and remembers their input texts, for the cache check.

    Attributes:
        sent_prompts: request id -> the model's input text, in the order of sending.
        in_flight: requests under way; its `most` is the cell's.
    """

    campaign: Campaign
    cell: Cell
    base_url: str
    model_name: str
    template: ChatTemplate
    sent_prompts: dict[str, str] = field(default_factory=dict)
    in_flight: InFlight = field(default_factory=InFlight)

    def __post_init__(self) -> None:
        limits = self.campaign.limits
        self._limits = StreamLimits(idle_s=limits.idle_s, total_s=limits.request_s)
        self._drafting = drafting_of(self.campaign.methods[self.cell.service.method])

    def plan(
        self, request_id: str, messages: Sequence[Message], max_tokens: int, **facts: object
    ) -> RequestPlan:
        """A request of this cell; `facts` are further fields of the plan."""
        return RequestPlan(
            request_id=request_id,
            api=self.campaign.api,
            model=self.model_name,
            max_tokens=max_tokens,
            prompt=self.template.render(messages),
            messages=tuple(messages),
            **facts,  # type: ignore[arg-type]
        )

    def measure(self, plan: RequestPlan) -> RequestRecord:
        """Send one request."""
        self.sent_prompts[plan.request_id] = plan.prompt
        return measure_request(plan, self.base_url, self._limits, self._drafting)

    def settle(self, number: int) -> None:
        """Send one tiny request: the first after a flush finds allocators cold that no other one does.

        Raises:
            MeasurementError: it failed.
        """
        record = self.measure(
            self.plan(f"settle-{number}", [{"role": "user", "content": "0"}], SETTLE_TOKENS)
        )
        if record.status == "failed":
            raise MeasurementError(
                f"expected a request of {SETTLE_TOKENS} tokens to succeed after a flush, got: {record.error}"
            )


class Runs:
    """The repeats and warm-up batches of one cell's workload."""

    def __init__(self, sender: Sender) -> None:
        """Read the workload's files.

        Raises:
            ConfigError: one of them does not fit, or a warm-up prompt is also measured.
        """
        campaign = sender.campaign
        self._sender = sender
        self.workload = campaign.workloads[sender.cell.workload]
        self._scenario: Scenario | None = None
        self._prompts: list[Prompt] = []
        if isinstance(self.workload, AgenticWorkload):
            self._scenario = load_scenario(self.workload.scenario, self.workload.num_turns)
            texts = self._scenario.turns
        else:
            self._prompts = load_prompts(self.workload.prompts)
            texts = [prompt.text for prompt in self._prompts]
        self._warmup_prompts = load_prompts(campaign.warmup.prompts)
        check_disjoint(self._warmup_prompts, texts, campaign.warmup.prompts)

    @property
    def concurrency(self) -> int:
        """Requests in flight."""
        return self.workload.concurrency if isinstance(self.workload, ConcurrencyWorkload) else 1

    def run_repeat(self, repeat: int) -> list[RequestRecord]:
        """One pass over the workload."""
        sender, workload = self._sender, self.workload
        if self._scenario is not None:
            first = RequestPlan(
                request_id=f"r{repeat}",
                api=sender.campaign.api,
                model=sender.model_name,
                max_tokens=workload.max_tokens,
                ignore_eos=workload.ignore_eos,
                prompt_type=f"agentic-{self._scenario.scenario}",
                repeat=repeat,
            )
            return run_session(
                self._scenario, first, sender.template.render, sender.measure, sender.in_flight
            )
        num = workload.num_requests if isinstance(workload, ConcurrencyWorkload) else len(self._prompts)
        plans = [
            self._plan(prompt, f"r{repeat}-{index}", workload.max_tokens, repeat)
            for index, prompt in enumerate(expand_prompts(self._prompts, num))
        ]
        return run_closed_loop(plans, self.concurrency, sender.measure, sender.in_flight)

    def run_warmup(self, batch: int) -> list[RequestRecord]:
        """One batch of the workload's shape: as many in flight, and each slot used at least once."""
        num = max(self.concurrency, len(self._warmup_prompts))
        max_tokens = self._sender.campaign.warmup.max_tokens
        plans = [
            self._plan(prompt, f"warmup-{batch}-{index}", max_tokens, 0)
            for index, prompt in enumerate(expand_prompts(self._warmup_prompts, num))
        ]
        return run_closed_loop(plans, self.concurrency, self._sender.measure, InFlight())

    def _plan(self, prompt: Prompt, request_id: str, max_tokens: int, repeat: int) -> RequestPlan:
        return self._sender.plan(
            request_id,
            prompt.messages(),
            max_tokens,
            ignore_eos=self.workload.ignore_eos,
            prompt_id=prompt.id,
            prompt_type=prompt.type,
            repeat=repeat,
        )


def common_prefix_length(first: str, second: str) -> int:
    """Characters that both texts begin with."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
