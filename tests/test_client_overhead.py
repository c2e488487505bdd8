"""What the client benchmark makes of truth and sight, and that no public client is left out in silence."""

import sys

import pytest
from benchmarks import client_overhead as bench

SCENARIO = bench.Scenario("known delay", 8, 50, 10, 3, 1)
TRUTH = {"received_s": 10.0, "sends_s": [10.050, 10.060, 10.070]}


def _seen(gaps_s=(0.010, 0.010), *, span_s=0.020, ttft_s=0.050, error=None):
    return {
        "ttft_s": ttft_s,
        "gaps_s": None if gaps_s is None else [*gaps_s],
        "span_s": span_s,
        "error": error,
    }


def _errors(*seen):
    return bench.summarise("guidellm-chat", SCENARIO, [(TRUTH, one) for one in seen])


def _step(name, *, ttft_ms=0.1, gap_ms=0.1):
    errors = _errors(_seen())
    errors.scenario, errors.ttft_median_ms, errors.gap_median_ms = name, ttft_ms, gap_ms
    return errors


def test_errors_are_held_against_the_sends_of_the_server():
    errors = _errors(_seen((0.011, 0.0095), span_s=0.0205, ttft_s=0.053))
    assert (errors.num_failed, errors.num_gaps) == (0, 2)
    assert round(errors.ttft_median_ms, 6) == 3
    assert round(errors.gap_median_ms, 6) == 0.75
    assert round(errors.span_median_ms, 6) == 0.5


def test_a_client_that_keeps_no_gaps_is_judged_by_its_spans():
    near, far = _errors(_seen(None)), _errors(_seen(None, span_s=0.0203))
    assert (near.gap_median_ms, near.is_near) == (None, True)
    assert (far.gap_median_ms, far.is_near) == (None, False)


def test_a_client_that_keeps_gaps_is_judged_by_them():
    assert _errors(_seen(span_s=0.0203)).is_near
    assert not _errors(_seen((0.0103, 0.0103))).is_near


def test_a_failed_request_and_one_with_other_gaps_than_were_sent_are_named():
    errors = _errors(_seen(error="refused"), _seen((0.010,)), _seen())
    assert (errors.num_failed, errors.first_error, errors.is_near) == (2, "refused", False)
    assert _errors(_seen((0.010,))).first_error == "1 gaps, but 2 were sent"


def test_the_largest_load_ends_at_the_first_step_beyond_the_limits():
    steps = [_step("1"), _step("2"), _step("3", ttft_ms=0.3), _step("4"), _step("5", gap_ms=0.3), _step("6")]
    assert bench.largest_loads(steps) == {"all_errors": "2", "without_ttft": "4"}
    assert bench.largest_loads(steps[4:]) == {"all_errors": None, "without_ttft": None}


def test_a_client_that_cannot_be_driven_is_named_with_the_reason(tmp_path):
    peers = {
        "draftbench-chat": sys.executable,
        "aiperf-chat": sys.executable,
        "guidellm-chat": str(tmp_path / "python"),
    }
    versions, absent = bench.find_clients(peers)
    assert list(versions) == ["draftbench-chat"]
    assert {*versions, *absent} == {*bench.CLIENTS}
    assert absent["aiperf-chat"] == "ModuleNotFoundError: No module named 'aiperf'"
    assert "No such file" in absent["guidellm-chat"]
    assert absent["sglang-chat"] == "no --peer names its interpreter"


def test_the_table_shows_what_a_client_does_not_keep_and_why_it_failed():
    table = bench.table([_errors(_seen(None), _seen(error="refused"))])
    assert "| guidellm-chat | known delay | 8 | 0.000 | 0.000 | n/a | n/a | 0.000 | 0.000 | 2 | 1 |" in table
    assert table.endswith("guidellm-chat, known delay: refused")


def test_a_server_that_cannot_be_put_on_its_core_is_ended():
    made = bench.Bench(server_core=4000, client_core=0, interpreters={}, is_realtime=False)
    with pytest.raises(OSError, match="Invalid argument"), made:
        pass
    assert made._server.poll() is not None


def test_a_server_that_starts_says_where():
    with bench.Bench(server_core=0, client_core=0, interpreters={}, is_realtime=False) as made:
        assert made.base_url.startswith("http://127.0.0.1:")
    assert made._server.poll() is not None
