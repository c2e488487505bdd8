"""A whole cell against a server of scripts: warm-up, flush, load, identity, log, verdict."""

import pytest
import yaml
from make_records import make_identity, make_record
from model_server import ModelServer
from plans import LONG

from draftbench.client import validity
from draftbench.client.cell import void_reason
from draftbench.client.code_hash import client_sha256
from draftbench.client.journal import LogFile
from draftbench.errors import ConfigError, MeasurementError, ServerError
from draftbench.records import CellResult


@pytest.mark.parametrize(("workload", "num"), [("single", 4), ("agentic", 3), ("loop", 9)])
def test_a_cell_of_each_kind_is_valid(run, workload, num):
    with ModelServer(token_s=0.03) as server:
        result = run(server, workload)
    assert result.violations == []
    assert void_reason(result) is None
    assert (result.num_attempted, result.num_ok) == (num, num)
    assert CellResult.model_validate_json(result.model_dump_json()) == result


def test_a_result_says_where_it_belongs(run):
    with ModelServer() as server:
        result = run(server)
    assert (result.campaign, result.cell, result.order_index) == ("test", "tp1-ar.single", 3)
    assert result.spec == {"a": 1}
    assert result.client_sha256 == client_sha256()
    assert result.window_s[0] == min(record.send_s for record in result.requests)


def test_the_template_is_applied(run):
    with ModelServer() as server:
        run(server)
    assert server.measured[0] == f"<user>0 {LONG}0</><assistant>"


def test_the_loop_is_full_and_its_prompts_are_distinct(run):
    with ModelServer(token_s=0.03) as server:
        result = run(server, "loop")
    assert result.max_in_flight == 3
    assert len(set(server.measured)) == 9
    assert [record.prompt_id for record in result.requests[3:6]] == ["p3", "p0-2", "p1-2"]


def test_every_repeat_starts_with_an_empty_cache(run):
    with ModelServer() as server:
        result = run(server, repeats=2)
    assert result.violations == []
    assert [record.repeat for record in result.requests] == [0] * 4 + [1] * 4
    num_batches = len(result.warmup.batch_tok_per_s)
    assert server.num_flushes == num_batches + 2
    assert server.busy_flushes == 0


def test_warm_up_prompts_are_not_measured_ones(run, folder):
    prompts = [{"id": "w", "type": "code", "text": f"0 {LONG}0"}]
    (folder / "warmup.yaml").write_text(yaml.safe_dump({"prompts": prompts}))
    with ModelServer() as server, pytest.raises(ConfigError, match="measured nowhere"):
        run(server)


def test_a_flush_that_is_refused_at_first_is_tried_again(run):
    with ModelServer(num_refusals=2) as server:
        result = run(server)
    assert result.violations == []
    assert server.num_flushes >= 2


def test_a_warm_cache_voids_a_cold_cell(run):
    with ModelServer(is_warm=True) as server:
        result = run(server)
    assert [violation.partition(":")[0] for violation in result.violations] == ["cache-warm"]


def test_the_first_turn_must_be_cold_too(run):
    with ModelServer(is_warm=True) as server:
        result = run(server, "agentic")
    assert [violation.partition(":")[0] for violation in result.violations] == ["cache-warm"]


def test_later_turns_find_the_session_in_the_cache(run):
    with ModelServer() as server:
        result = run(server, "agentic")
    cached = [record.num_cached_tokens for record in result.requests]
    assert cached[1] > cached[0]
    assert not [flag for flag in result.flags if flag.startswith("session-cache-cold")]


def test_failed_requests_void_the_cell_and_say_why(run):
    with ModelServer(broken=f"2 {LONG}") as server:
        result = run(server)
    assert (result.num_ok, result.num_failed) == (3, 1)
    assert "broken on purpose" in void_reason(result)


def test_a_failed_warm_up_ends_the_cell(run):
    with ModelServer(broken="warm") as server, pytest.raises(MeasurementError, match="broken on purpose"):
        run(server)


def test_a_dead_server_ends_the_cell_at_once(run):
    with ModelServer() as server:
        pass
    with pytest.raises(ServerError):
        run(server)


def test_a_server_that_changed_voids_the_cell(run):
    ticks = iter([1, 2])
    with ModelServer() as server:
        result = run(server, identify=lambda pid: make_identity(pid, pid_start_ticks=next(ticks)))
    assert result.violations == ["identity-changed: pid_start_ticks"]


def test_a_speculative_method_must_count_rounds(run):
    with ModelServer(is_speculative=True) as server:
        assert run(server, method="dflash").violations == []
    with ModelServer() as server, pytest.raises(MeasurementError, match="counted no rounds"):
        run(server, method="dflash")


def test_an_autoregressive_method_must_not_count_rounds(run):
    with ModelServer(is_speculative=True) as server, pytest.raises(MeasurementError, match="no speculative"):
        run(server, method="ar")


def test_the_log_is_read_from_the_first_measured_request_on(run, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("Decode batch, #running-req: 1, accept len: 9.00\nout of memory\n")
    with ModelServer(log=log) as server:
        result = run(server, journal=LogFile(log))
    assert result.violations == []
    assert result.journal.num_lines == 5  # the settling request and four measured ones
    assert result.journal.accept_length is None
    assert result.journal.server_accept_length == 2.0


def test_requests_are_counted_by_status():
    records = [
        make_record(),
        make_record(status="short", error="few"),
        make_record(status="short", error="few"),
    ]
    assert validity.request_violations(records) == ["requests-short: 2 of 3, the first: few"]


@pytest.mark.parametrize(
    ("counted", "concurrency", "name"),
    [(1, 2, "in-flight-not-reached"), (2, 1, "in-flight-exceeded"), (3, 2, "in-flight-exceeded")],
)
def test_the_number_in_flight_is_checked(counted, concurrency, name):
    records = [make_record(0.0, (2.0,)), make_record(1.0, (3.0,))]
    [violation] = validity.in_flight_violations(records, counted, concurrency)
    assert violation.startswith(name)


def test_a_shared_beginning_is_no_warm_cache():
    head, prompts = "x" * 30, {"a": "x" * 30 + "one" * 20, "b": "x" * 30 + "two" * 20}
    records = [
        make_record(request_id="a", num_cached_tokens=0, num_prompt_tokens=90),
        make_record(request_id="b", num_cached_tokens=len(head), num_prompt_tokens=90),
    ]
    assert validity.cache_violations(records, prompts) == []
    records[1] = records[1].model_copy(update={"num_cached_tokens": 60})
    assert validity.cache_violations(records, prompts) != []


def test_the_first_request_after_a_flush_finds_nothing():
    record = make_record(request_id="a", num_cached_tokens=1)
    assert validity.cache_violations([record], {"a": "text"}) != []


def test_cached_tokens_that_are_not_told_are_flagged():
    assert validity.cache_flags([make_record(num_cached_tokens=None)])[0].startswith("cached-tokens-unknown")
