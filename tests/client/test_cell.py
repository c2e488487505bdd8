"""A whole cell against a server of scripts: warm-up, flush, load, identity, log, verdict."""

import pytest
import yaml
from make_records import make_identity, make_record
from model_server import ModelServer
from plans import LONG

from draftbench.client import cell, validity
from draftbench.client.cell import void_reason
from draftbench.client.code_hash import client_sha256
from draftbench.client.journal import LogFile
from draftbench.client.telemetry import Sampler
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
    assert result.window_s == [result.requests[0].send_s, result.requests[-1].end_s]


def test_a_result_says_which_start_of_the_service_it_is_of(run):
    with ModelServer() as server:
        result = run(server, sessions=2, session=2)
    assert (result.session, result.service) == (2, "tp1-ar-s2")


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


@pytest.mark.parametrize(("flush", "request_id"), [(3, "r0-0"), (4, "r1-0")])
def test_a_warm_cache_in_one_repeat_voids_the_cell(run, flush, request_id):
    with ModelServer(warm_after={flush}) as server:  # two flushes are the warm-up's
        result = run(server, repeats=2)
    [violation] = result.violations
    assert violation.startswith(f"cache-warm: {request_id} found")


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


def test_later_turns_that_find_nothing_in_the_cache_are_flagged(run):
    with ModelServer(is_cold=True) as server:
        result = run(server, "agentic")
    assert "session-cache-cold: 2 later turns found nothing in the cache" in result.flags


def test_chunks_without_counts_are_flagged(run, monkeypatch):
    monkeypatch.setattr(validity, "chunk_flags", lambda records: [f"chunk-counts-unknown: {len(records)}"])
    with ModelServer() as server:
        assert "chunk-counts-unknown: 4" in run(server).flags


@pytest.mark.parametrize(("tolerance", "is_settled"), [(0.99, True), (1e-9, False)])
def test_a_warm_up_that_did_not_settle_is_flagged(run, folder, tolerance, is_settled):
    warmup = {"prompts": str(folder / "warmup.yaml"), "max_tokens": 3, "max_batches": 2}
    with ModelServer() as server:
        result = run(server, warmup=warmup | {"tolerance": tolerance})
    assert ("warmup-not-settled: 2 batches" not in result.flags) is is_settled


def test_what_disturbs_the_measurement_is_flagged(run, monkeypatch):
    class Crowded(Sampler):
        def __exit__(self, *error):
            super().__exit__(*error)
            self.foreign_gpu_pids.add(77)

    monkeypatch.setattr(cell, "Sampler", Crowded)
    with ModelServer() as server:
        flags = run(server).flags
    assert "foreign-gpu-load: processes [77] on the server's GPU" in flags


def test_doubts_are_looked_for_from_the_end_of_the_warm_up_to_the_last_token(run, monkeypatch):
    spans_s = []
    monkeypatch.setattr(
        cell, "find_doubts", lambda _samples, start_s, end_s, _pids: spans_s.append((start_s, end_s)) or []
    )
    with ModelServer() as server:
        result = run(server)
    [(start_s, end_s)] = spans_s
    assert result.start_s < start_s <= result.window_s[0]
    assert result.window_s[1] <= end_s <= result.end_s


def test_failed_requests_void_the_cell_and_say_why(run):
    with ModelServer(broken=f"2 {LONG}") as server:
        result = run(server)
    assert (result.num_attempted, result.num_ok, result.num_failed) == (4, 3, 1)
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


class TextLog:
    """A log whose part of the cell is this text; None where it was replaced."""

    def __init__(self, text):
        self.text = text

    def mark(self):
        return 0

    def read(self, start, end):
        if self.text is None:
            raise MeasurementError("expected the log to grow")
        return self.text


def decode_lines(num, length, rate=0.0):
    return f"Decode batch, #running-req: 1, accept len: {length:.2f}, accept rate: {rate:.2f}\n" * num


def test_the_log_tells_its_share_of_the_requests_tokens(run):
    with ModelServer() as server:
        result = run(server, journal=TextLog("Decode batch, #running-req: 1\n"))
    assert result.journal.coverage == 40 / 20


def test_a_log_that_counts_otherwise_than_the_requests_is_flagged(run):
    with ModelServer(is_speculative=True) as server:
        result = run(server, method="dflash", journal=TextLog(decode_lines(10, 9.0)))
    assert [flag for flag in result.flags if flag.startswith("journal-differs: accept length 9.000")]


@pytest.mark.parametrize(("told", "rate"), [({}, 2.2 / 15), ({"speculative_num_draft_tokens": 8}, 2.2 / 7)])
def test_accept_rates_are_judged_by_the_servers_draft_size_or_else_the_methods(run, told, rate):
    def identify(pid):
        return make_identity(pid, server_info=told)

    with ModelServer(is_speculative=True) as server:
        result = run(server, method="dflash", identify=identify, journal=TextLog(decode_lines(1, 3.2, rate)))
    assert result.journal.accept_rate_kind == "accepted-per-proposed"


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ("CUDA out of memory", "log-out-of-memory: CUDA out of memory"),
        (None, "log-replaced: expected the log to grow"),
    ],
)
def test_a_log_of_trouble_voids_the_cell(run, text, violation):
    with ModelServer() as server:
        assert run(server, journal=TextLog(text)).violations == [violation]


def test_requests_are_counted_by_status():
    records = [
        make_record(),
        make_record(status="short", error="few"),
        make_record(status="short", error="few"),
    ]
    assert validity.request_violations(records) == ["requests-short: 2 of 3, the first: few"]
    records += [make_record(status="invalid", error="odd"), make_record(status="failed", error="no")]
    assert validity.request_violations(records) == [
        "requests-failed: 1 of 5, the first: no",
        "requests-short: 2 of 5, the first: few",
        "requests-invalid: 1 of 5, the first: odd",
    ]


CHANGES = {
    "service": "tp1-dflash",
    "base_url": "http://127.0.0.1:2",
    "argv": ["serve", "--other"],
    "engine": "sglang",
    "engine_version": "2",
    "pid": 2,
    "pid_start_ticks": 8,
    "boot_id": "another",
    "invocation_id": "one",
    "started_at": "2026-01-01T00:00:01Z",
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_sign_of_another_server_voids_the_cell(name):
    other = make_identity(**{name: CHANGES[name]})
    assert validity.identity_violations(make_identity(), other) == [f"identity-changed: {name}"]


@pytest.mark.parametrize(
    ("counted", "concurrency", "name"),
    [
        (1, 2, "in-flight-not-reached"),
        (3, 3, "in-flight-not-reached"),
        (2, 1, "in-flight-exceeded"),
        (1, 1, "in-flight-exceeded"),
        (3, 2, "in-flight-exceeded"),
    ],
)
def test_the_number_in_flight_is_checked_by_count_and_by_times(counted, concurrency, name):
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
    records = [make_record(num_cached_tokens=0), make_record(num_cached_tokens=None)]
    assert validity.cache_flags(records)[0].startswith("cached-tokens-unknown")


def test_requests_whose_chunks_have_no_counts_are_flagged():
    records = [make_record(), make_record(has_chunk_counts=False)]
    assert validity.chunk_flags(records) == ["chunk-counts-unknown: 1 of 2 requests"]
    assert validity.chunk_flags([make_record()]) == []
