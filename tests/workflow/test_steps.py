"""The steps of a run, each by itself: what they leave where something fails."""

import pytest
from tests.workflow.workspace import small_campaign

from draftbench import host
from draftbench.config import load_campaign
from draftbench.errors import MeasurementError, ServerError, StagingError
from draftbench.plan import Plan
from draftbench.steps import Steps, write_session


@pytest.fixture
def begun(workspace, monkeypatch):
    """Begins a run of a changed campaign in this process; gives its steps."""
    for name, value in workspace.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(workspace.path)

    def begin(**changes):
        session = host.sessions_directory() / "own"
        write_session(session, Plan(load_campaign(small_campaign() | changes, "small")))
        return Steps(session)

    return begin


LIMITS = {"ready_s": 10, "stop_s": 2}


NONE_SUCCEEDED = r"2 requests .* but 2 did not; the first, \S+ \(measured-0\), "


@pytest.mark.parametrize(
    ("behaviour", "limits", "expected"),
    [
        ({"ar": "fail-4"}, {}, ("error", f"{NONE_SUCCEEDED}failed: .*a scripted fault")),
        ({"ar": "short"}, {}, ("error", f"{NONE_SUCCEEDED}short: expected 4 tokens, got 3")),
        ({"token_s": 2}, {"idle_s": 1, "request_s": 20}, ("timeout", "the idle limit")),
        ({"token_s": 0.6}, {"idle_s": 1, "request_s": 1}, ("timeout", "total limit of 1 s")),
    ],
)
def test_a_cell_without_a_result_has_a_record_of_why(workspace, begun, behaviour, limits, expected):
    reason, words = expected
    steps = begun(limits=LIMITS | limits)
    steps.start("tp1-ar", workspace.path / "token")
    workspace.behave(**behaviour)
    with pytest.raises(MeasurementError, match=words):
        steps.measure("tp1-ar.short")
    failure = workspace.failure("tp1-ar.short")
    assert (failure["reason"], failure["spec"]) == (reason, steps.plan.specs["tp1-ar.short"])
    assert not workspace.result("tp1-ar.short").exists()


def test_a_model_that_cannot_be_staged_fails_the_missing_cells_of_its_service_alone(workspace, begun):
    steps = begun()
    steps.measure("tp1-ar.short")
    (workspace.path / "staged").rename(workspace.path / "lost")
    (workspace.path / "models/target/config.json").unlink()
    with pytest.raises(StagingError):
        steps.start("tp1-ar", workspace.path / "token")
    assert not (workspace.path / "token").exists()
    failures = [path.name for path in (workspace.path / "results/small").glob("*.failed.json")]
    assert failures == ["tp1-ar.pair.failed.json"]
    assert workspace.failure("tp1-ar.pair")["reason"] == "staging"


def test_a_model_that_cannot_be_staged_is_the_reason_of_all_its_missing_cells_and_of_no_others(
    workspace, begun
):
    models = small_campaign()["models"] | {"other": {"target": {"source": "path:models/none"}}}
    steps = begun(models=models, methods={"ar": {"algorithm": "ar"}}, sessions=2)
    steps.measure("tiny-tp1-ar.short")
    with pytest.raises(StagingError):
        steps.stage("other", workspace.path / "token")
    assert not (workspace.path / "token").exists()
    names = {path.name for path in (workspace.path / "results/small").glob("*.failed.json")}
    services, workloads = ("other-tp1-ar", "other-tp1-ar-s2"), ("short", "pair")
    assert names == {f"{service}.{workload}.failed.json" for service in services for workload in workloads}
    assert workspace.failure("other-tp1-ar-s2.pair")["reason"] == "staging"


def test_a_result_replaces_the_record_of_why_there_was_none(workspace, begun):
    steps = begun()
    workspace.behave(ar="fail-4")
    with pytest.raises(MeasurementError):
        steps.measure("tp1-ar.short")
    workspace.behave()
    steps.measure("tp1-ar.short")
    assert [path.name for path in (workspace.path / "results/small").iterdir()] == ["tp1-ar.short.json"]


def test_a_server_that_dies_in_a_cell_is_the_reason_to_be_told(workspace, begun):
    steps = begun()
    steps.start("tp1-ar", workspace.path / "token")
    workspace.behave(ar="die")
    with pytest.raises(ServerError, match="tp1-ar: expected it to run, but process"):
        steps.measure("tp1-ar.short")
    assert workspace.failure("tp1-ar.short")["reason"] == "crash"


def test_what_was_staged_is_recorded_with_every_result(workspace, begun):
    steps = begun()
    staged = steps.stage("tiny", workspace.path / "token")
    environment = steps.measure("tp1-dflash.short").identity.environment
    assert environment["target_sha256"] == staged.target_sha256
    assert environment["drafter_sha256"] == staged.drafter_sha256
    assert staged.target_sha256 != staged.drafter_sha256


@pytest.mark.parametrize(("step", "name"), [("stage", "tiny"), ("start", "tp1-dflash")])
def test_a_block_that_the_drafter_was_not_trained_for_stops_a_step(workspace, begun, step, name):
    steps = begun(methods={"ar": {"algorithm": "ar"}, "dflash": {"algorithm": "dflash", "block_size": 17}})
    with pytest.raises(StagingError, match=r"methods\.dflash\.block_size: expected at most 16"):
        getattr(steps, step)(name, workspace.path / "token")
