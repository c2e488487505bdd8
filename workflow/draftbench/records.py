"""What a cell's file holds. Every write is checked by these models, and `schemas/` holds their JSON schema.

Times named `*_s` without another word are seconds of the client's monotonic clock, durations are seconds.
Undefined is null, never 0 and never NaN.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal["ok", "failed", "short", "invalid"]


class StrictModel(BaseModel):
    """A record without unknown fields and without NaN."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Chunk(StrictModel):
    """One streamed event that carried generated tokens."""

    time_s: float = Field(description="when its bytes were read, before they were parsed")
    num_tokens: int = Field(ge=0, description="generated tokens it carried")


class RequestRecord(StrictModel):
    """One request as the client saw it."""

    request_id: str
    prompt_id: str = Field(description="names the prompt; equal over methods, so that they can be paired")
    prompt_type: str
    repeat: int = Field(ge=0)
    turn: int = Field(ge=0, description="turn of an agentic session, 0 elsewhere")
    api: Literal["generate", "chat", "completions"]
    status: Status
    error: str | None = Field(description="one sentence, the server's own message where it gave one")
    violations: list[str] = Field(default_factory=list, description="names of the cross-checks it broke")
    http_status: int | None
    finish_reason: str | None
    max_tokens: int
    ignore_eos: bool
    num_prompt_tokens: int | None
    num_cached_tokens: int | None
    num_output_tokens: int | None = Field(description="by the server's usage, never by chunks")
    send_s: float
    first_token_s: float | None
    last_token_s: float | None
    end_s: float
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    chunks: list[Chunk]
    has_chunk_counts: bool = Field(
        default=True,
        description="False: the server gave no counts by chunk, each is noted as 1 and tpot_s is undefined",
    )
    num_rounds: int | None = Field(description="target verifications; null where the server counts none")
    num_accepted_tokens: int | None
    num_proposed_tokens: int | None
    accept_histogram: list[int] | None = Field(description="[k] = rounds that kept k draft tokens")
    tau: float | None = Field(description="emitted tokens / rounds; 1.0 for autoregressive decoding")
    text: str
    reasoning_text: str = Field(default="", description="what a reasoning model streamed before its answer")
    output_ids: list[int] | None


class ServiceIdentity(StrictModel):
    """Which server answered; equal before and after a cell, or the cell is invalid."""

    service: str
    base_url: str
    argv: list[str]
    engine: str
    engine_version: str
    pid: int
    pid_start_ticks: int = Field(description="field 22 of /proc/<pid>/stat: tells a reused pid apart")
    boot_id: str
    invocation_id: str | None = Field(default=None, description="systemd's, where a unit serves")
    started_at: str = Field(description="wall clock, ISO 8601, UTC")
    server_info: dict[str, Any] = Field(description="what the server says of itself, resolved")
    environment: dict[str, Any] = Field(
        description="packages, hardware, driver, kernel, hashes of target and drafter, git commit"
    )


class Warmup(StrictModel):
    """The batches before the measurement."""

    batch_tok_per_s: list[float]
    converged: bool = Field(description="two batches in a row agreed within the campaign's tolerance")


class JournalStats(StrictModel):
    """What the server's own decode lines say, between the cell's start and end."""

    num_lines: int
    accept_length: float | None = Field(description="token-weighted, null without accept figures")
    window_spread: float | None = Field(
        default=None, description="largest less smallest accept length of the log's windows"
    )
    gen_tok_per_s: float | None
    accept_rate: float | None = Field(default=None, description="token-weighted, by `accept_rate_kind`")
    accept_rate_kind: str | None = Field(
        default=None,
        description="`accepted-per-proposed`, `emitted-per-draft-size` (old SGLang) or `unknown`",
    )
    coverage: float | None = Field(
        default=None, description="tokens in the printed windows / tokens of the requests"
    )
    server_accept_length: float | None = Field(
        default=None,
        description="of `/server_info`, over all ranks; a lifetime figure, so a cross-check only",
    )
    problems: list[str] = Field(description="retractions, out-of-memory, restarts found in the log")


class Telemetry(StrictModel):
    """1 Hz samples of what could disturb the measurement."""

    interval_s: float
    columns: list[str]
    samples: list[list[float | None]]


class NearTie(StrictModel):
    """The target's best candidates before one output token, best first."""

    position: int = Field(ge=0, description="index of the output token")
    token_ids: list[int]
    gaps: list[float] = Field(description="logit of the best - logit of each; the first is 0")


class OutputAudit(StrictModel):
    """One teacher-forced pass of the server's own target along one output."""

    request_ids: list[str] = Field(description="requests of the cell with this input and this output")
    near_ties: list[NearTie] = Field(
        description="positions whose second candidate lies within the margin, or whose token is not the best"
    )


class GapNoise(StrictModel):
    """By how much the gap of the two best tokens changes from decoding to the teacher-forced pass."""

    num_positions: int = Field(ge=1)
    rms: float = Field(ge=0)
    largest: float = Field(ge=0, description="absolute")


class OutputAudits(StrictModel):
    """What the server's own target says along the outputs of a cell."""

    margin: float = Field(description="at positions not kept, every other token's gap is above this")
    noise: GapNoise | None = Field(description="null: no position was computed both ways")
    outputs: list[OutputAudit]
    duration_s: float | None = Field(default=None, ge=0, description="null: not stored")


class CellResult(StrictModel):
    """One service x one workload."""

    format_version: Literal[1] = 1
    campaign: str
    cell: str
    service: str
    workload: str
    session: int = Field(ge=1, description="which start of the service: the outer unit of the statistics")
    order_index: int = Field(ge=0, description="place in the campaign's seeded random order")
    spec: dict[str, Any] = Field(description="everything that decides what the cell measures")
    client_sha256: str = Field(description="of the measuring code")
    started_at: str
    ended_at: str
    start_s: float
    end_s: float
    window_s: list[float] = Field(description="[first send, last end] of the measured requests")
    identity: ServiceIdentity
    warmup: Warmup
    requests: list[RequestRecord]
    num_attempted: int
    num_ok: int
    num_failed: int
    num_short: int
    num_invalid: int
    max_in_flight: int
    flags: list[str] = Field(description="doubts about the cell that the report prints beside its number")
    violations: list[str] = Field(description="broken rules that make the cell's numbers void")
    journal: JournalStats | None
    telemetry: Telemetry | None
    audit: OutputAudits | None = Field(
        default=None, description="of a baseline's outputs on a server that tells log probabilities"
    )


class CellFailure(StrictModel):
    """Stands beside a missing result and says why it is missing."""

    campaign: str
    cell: str
    service: str
    workload: str
    reason: str = Field(description="`oom`, `timeout`, `crash`, `port`, `identity`, `staging`, `error`")
    message: str
    failed_at: str
    spec: dict[str, Any]
