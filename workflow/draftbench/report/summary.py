"""What `summary.json` holds: every number that figures, tables and prose print.

Null is "undefined" or "not measured"; a cell or comparison without a number has a `mark`, the short word
that stands in its place.
"""

from typing import Literal

from pydantic import Field

from draftbench.records import StrictModel

Kind = Literal["single", "agentic", "concurrency"]
Mark = str | None
Setting = tuple[str, int]
"""Model and TP size: where methods are compared with each other."""
State = Literal["reached", "limit", "unfinished"]


class ModelInfo(StrictModel):
    """Where a target and its drafter come from, and what was made of them."""

    target: str
    drafter: str
    scale_to: dict[str, int] | None = Field(
        description="shape of the target's cost-scaled replica; null: the model itself"
    )
    target_bytes: int | None = Field(description="when staged; null: not stated")
    drafter_bytes: int | None


class MethodInfo(StrictModel):
    """A method as the report names it."""

    name: str
    label: str
    algorithm: str
    budget: int | None


class WorkloadInfo(StrictModel):
    """A workload as the report names it."""

    name: str
    kind: Kind
    max_tokens: int
    ignore_eos: bool
    concurrency: int | None
    num_requests: int | None = Field(description="planned in a cell; null where none was measured")


class Evidence(StrictModel):
    """A speedup with all that supports it."""

    ratio: float
    low: float | None
    high: float | None
    verdict: Literal["faster", "slower", "cannot tell", "within one session"]
    num_sessions: int
    unit: Literal["prompt", "turn", "run"] = Field(description="what is resampled inside a session")
    num_units: int
    num_requests: int = Field(description="of the method; the baseline has as many")
    num_tokens: int = Field(description="of the method that are counted")
    per_unit: list[float]
    per_session: list[float]
    half_width: float | None = Field(description="of the interval, relative")


class Comparison(StrictModel):
    """A method against another, mostly the baseline, at one model and TP size.

    Either `evidence` or `mark` is set. `workload` is null for the single-request workloads with the most
    sessions together, `workloads`.
    """

    model: str
    tp: int
    method: str
    reference: str = Field(description="the method that it is compared with")
    workload: str | None
    workloads: list[str]
    evidence: Evidence | None
    mark: Mark
    reason: str | None = Field(description="a sentence where there is a mark or a session is left out")
    num_excluded_sessions: int
    num_split_sessions: int = Field(description="in which the two ran on different machines of the same kind")


class AdaptiveGroup(StrictModel):
    """How many sessions the data asked for, of the cells that got them together."""

    model: str
    tp: int
    workloads: list[str]
    num_sessions: int
    half_width: float | None = Field(
        description="of the widest interval, relative; null where a comparison has none"
    )
    state: State = Field(
        description="every interval is as narrow as asked, the limit ended it, or a result is missing"
    )


class CellRow(StrictModel):
    """One cell; also a line of cells.csv."""

    cell: str
    model: str
    tp: int
    method: str
    session: int
    workload: str
    kind: Kind
    concurrency: int | None
    order_index: int | None
    state: Literal["ok", "requests failed", "void", "cell failed", "not run"]
    mark: Mark
    message: str | None
    num_attempted: int
    num_ok: int
    num_failed: int
    num_short: int
    num_invalid: int
    output_tokens: int | None
    tok_per_s: float | None
    steady_tok_per_s: float | None
    request_tok_per_s: float | None = Field(description="median over requests")
    ttft_median_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    ttft_max_s: float | None
    tpot_median_s: float | None
    e2e_median_s: float | None
    joules_per_token: float | None = Field(description="of the GPUs; null: not sampled often enough")
    num_rounds: int | None
    tau: float | None
    num_cached_tokens: int | None
    repeated_8gram_share: float | None
    flags: list[str]
    violations: list[str]
    problems: list[str]
    started_at: str | None
    ended_at: str | None


class Acceptance(StrictModel):
    """Accepted draft tokens of a method, pooled over the whole cells of some single-request workloads."""

    model: str
    tp: int
    method: str
    workloads: list[str] = Field(description="those that the method's speedup over several covers")
    prompt_type: str | None = Field(description="null for all together")
    num_prompts: int
    tau: float | None
    tau_before_repetition: float | None = Field(
        description="up to where the first repeated 8-gram of each output begins; null: not told by chunks"
    )
    num_rounds: int
    histogram: list[int] | None
    proposed_per_round: float | None


class RoundTime(StrictModel):
    """Durations of a method's round and of the baseline's step at a workload, without prefill."""

    model: str
    tp: int
    method: str
    workload: str
    num_sessions: int = Field(description="in which both were measured")
    num_split_sessions: int = Field(description="in which the two ran on different machines of the same kind")
    round_s: float
    step_s: float
    tau: float | None = Field(description="of the same requests")

    @property
    def ratio(self) -> float:
        """Steps of the baseline that a round costs: the tau from which on the method gains."""
        return self.round_s / self.step_s


class Room(StrictModel):
    """Tokens of all requests together that a method's servers could keep in their KV cache."""

    model: str
    tp: int
    method: str
    num_tokens: int


class TurnPoint(StrictModel):
    """A turn of an agentic scenario, pooled over sessions and repeats."""

    model: str
    tp: int
    method: str
    workload: str
    turn: int
    num_requests: int
    ttft_median_s: float | None
    tok_per_s: float | None
    prompt_tokens_median: float | None
    cached_share: float | None


class LoadPoint(StrictModel):
    """A concurrency workload, pooled over sessions."""

    model: str
    tp: int
    method: str
    workload: str
    concurrency: int
    num_sessions: int
    num_requests: int
    tok_per_s: float | None = Field(description="all requests together")
    steady_tok_per_s: float | None = Field(description="mean over sessions; null where one has no window")
    request_tok_per_s: float | None = Field(description="median over requests")
    ttft_median_s: float | None
    ttft_max_s: float | None
    chunk_gap_p99_s: float | None = Field(description="of all requests; null: too few gaps to tell it")
    mark: Mark


class Exactness(StrictModel):
    """Outputs of a method against the baseline, token for token."""

    model: str
    tp: int
    method: str
    kind: Kind
    num_compared: int
    num_prompts: int = Field(description="that these outputs answer")
    num_equal: int
    num_tokens: int = Field(description="of the baseline's outputs")
    num_compared_tokens: int = Field(description="of them up to and with the first that differs")
    num_ties: int
    largest_tie_gap: float | None = Field(description="between the logits of the two tokens of a tie")
    tie_limit: float | None = Field(description="greatest gap that would have been one where outputs parted")
    near_tie_share: float | None = Field(
        description="of the baseline's tokens that have another within that limit; null: not audited"
    )
    num_faults: int
    num_unmeasured: int
    first_position: int | None = Field(description="earliest differing token")
    median_position: float | None
    is_baseline: bool = Field(description="the baseline against its own other runs")


class TimeSpent(StrictModel):
    """Where the wall time of one boot of a machine went, as far as the results tell."""

    first_started_at: str = Field(description="of its first service")
    num_starts: int = Field(description="of services that left a result")
    num_cells: int
    wall_s: float = Field(description="from the first service's start to the last result's end")
    start_s: float = Field(description="from each service's start to its first result's")
    warmup_s: float
    measured_s: float = Field(description="from the first send to the last end, all results together")
    audit_s: float | None = Field(
        description="audits of the baseline's outputs; null: a result does not store how long its audit took"
    )

    @property
    def rest_s(self) -> float:
        """Between cells: stops, staging, pauses, and audits whose time is not stored."""
        return self.wall_s - self.start_s - self.warmup_s - self.measured_s - (self.audit_s or 0.0)

    @property
    def measured_share(self) -> float | None:
        """Measured and audits, of the time without starts and warm-ups; without `audit_s` it is more."""
        available_s = self.wall_s - self.start_s - self.warmup_s
        return (self.measured_s + (self.audit_s or 0.0)) / available_s if available_s > 0 else None


class Counts(StrictModel):
    """Where everything went."""

    num_cells: int
    num_ok_cells: int
    num_requests_failed_cells: int
    num_void_cells: int
    num_failed_cells: int
    num_missing_cells: int
    num_attempted: int
    num_ok: int
    num_flagged_cells: int


class Summary(StrictModel):
    """The whole of it."""

    campaign: str
    description: str
    engine: str
    engine_versions: list[str]
    api: str
    engine_settings: str = Field(description="that all services have in common")
    rooms: list[Room] = Field(description="empty where servers do not say")
    prompt_tokens: dict[Kind, tuple[int, int]] = Field(description="of the shortest and longest prompt")
    warmup_tokens: int = Field(description="of a reply of the warm-up")
    sessions: int = Field(description="starts of a service before the data are looked at")
    max_sessions: int = Field(description="starts of a service at most")
    asked_half_width: float = Field(description="of an interval, relative")
    adaptive: list[AdaptiveGroup]
    repeats: int
    seed: int
    is_partial: bool
    baseline: str | None
    models: dict[str, ModelInfo]
    tps: list[int]
    methods: list[MethodInfo]
    workloads: list[WorkloadInfo]
    counts: Counts
    cells: list[CellRow]
    comparisons: list[Comparison]
    before_repetition: list[Comparison] = Field(
        description="of single requests, over the tokens before either output repeats an 8-gram"
    )
    over_line: list[Comparison] = Field(description="of trees with the linear block, over single requests")
    over_line_before_repetition: list[Comparison]
    acceptance: list[Acceptance]
    round_times: list[RoundTime]
    turns: list[TurnPoint]
    loads: list[LoadPoint]
    exactness: list[Exactness]
    times: list[TimeSpent]
    environment: list[list[str]] = Field(description="[key, value] that all services share")
    environment_differences: list[list[str]] = Field(description="[key, value, services]")
    definitions: list[list[str]] = Field(description="[term, definition]")
    stale_cells: list[str]
    unplanned_files: list[str]
    first_started_at: str
    last_ended_at: str
