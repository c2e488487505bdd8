"""How requests arrive: the closed loop and the session."""

import sys
import threading
import time
from dataclasses import replace

import pytest
from make_records import make_record
from plans import make_plan

from draftbench.client.load import MAX_FAILURES, InFlight, run_closed_loop, run_session
from draftbench.client.prompts import Scenario


class FakeServer:
    """Takes its time for each request and remembers what it saw."""

    def __init__(self, span_s=0.02, failing=(), status="failed"):
        self.span_s, self.failing, self.status = span_s, failing, status
        self.plans, self.threads = [], set()
        self._lock = threading.Lock()

    def measure(self, plan):
        with self._lock:
            self.plans.append(plan)
            self.threads.add(threading.get_ident())
        send_s = time.monotonic()
        time.sleep(self.span_s)
        status = self.status if plan.request_id in self.failing else "ok"
        end_s = time.monotonic()
        facts = {"request_id": plan.request_id, "turn": plan.turn, "text": f"reply {len(self.plans)}"}
        return make_record(send_s, (end_s,), status=status, error=None if status == "ok" else "no", **facts)


def plans(num):
    return [replace(make_plan(), request_id=f"r{index}") for index in range(num)]


@pytest.mark.parametrize("concurrency", [1, 2, 4, 8])
def test_the_loop_is_filled_and_never_overfilled(concurrency):
    server, in_flight = FakeServer(span_s=0.1), InFlight()
    records = run_closed_loop(plans(3 * concurrency), concurrency, server.measure, in_flight)
    assert in_flight.most == concurrency
    assert len(server.threads) <= concurrency
    assert [record.request_id for record in records] == [f"r{index}" for index in range(3 * concurrency)]


def test_a_loop_of_one_is_sequential_and_in_order():
    server = FakeServer(span_s=0.005)
    run_closed_loop(plans(6), 1, server.measure, InFlight())
    assert [plan.request_id for plan in server.plans] == [f"r{index}" for index in range(6)]


def test_a_slot_sends_its_next_request_as_soon_as_it_is_free():
    server = FakeServer(span_s=0.05)
    records = run_closed_loop(plans(4), 2, server.measure, InFlight())
    ends = sorted(record.end_s for record in records)[:2]
    starts = sorted(record.send_s for record in records)[2:]
    assert all(0 <= start - end < 0.2 for start, end in zip(starts, ends, strict=True))


def test_after_three_failures_a_broken_server_is_left_alone():
    server = FakeServer(span_s=0.0, failing={f"r{index}" for index in range(10)})
    records = run_closed_loop(plans(10), 1, server.measure, InFlight())
    assert len(server.plans) == MAX_FAILURES
    assert [record.status for record in records] == ["failed"] * 10
    assert records[-1].error == "not sent, because 3 requests failed before: no"


def test_answers_that_are_short_do_not_end_the_loop():
    server = FakeServer(span_s=0.0, failing={f"r{index}" for index in range(10)}, status="short")
    run_closed_loop(plans(10), 1, server.measure, InFlight())
    assert len(server.plans) == 10


def test_the_most_in_flight_is_kept_when_fewer_are_sent_later():
    in_flight = InFlight()
    with in_flight, in_flight:
        pass
    with in_flight:
        pass
    assert in_flight.most == 2


def test_threads_change_often_while_the_loop_runs_and_only_then():
    usual_s, turns_s = sys.getswitchinterval(), []

    def measure(_plan):
        turns_s.append(sys.getswitchinterval())
        return make_record()

    run_closed_loop(plans(2), 1, measure, InFlight())
    assert max(turns_s) < 1e-3 < usual_s == sys.getswitchinterval()


def test_an_error_of_the_client_itself_is_not_swallowed():
    def explode(_plan):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_closed_loop(plans(4), 2, explode, InFlight())


SCENARIO = Scenario(scenario="talk", system="Be brief.", turns=["one", "two", "three", "four", "five"])


def hold_session(server):
    return run_session(SCENARIO, make_plan(), repr, server.measure, InFlight())


def test_each_real_reply_is_fed_back():
    server = FakeServer(span_s=0.0)
    hold_session(server)
    last = server.plans[-1].messages
    assert [message["role"] for message in last] == ["system", *["user", "assistant"] * 4, "user"]
    assert [message["content"] for message in last[1:4]] == ["one", "reply 1", "two"]
    assert server.plans[-1].prompt == repr(list(last))


def test_turns_are_numbered_and_named():
    records = hold_session(FakeServer(span_s=0.0))
    assert [record.turn for record in records] == [1, 2, 3, 4, 5]
    server = FakeServer(span_s=0.0)
    hold_session(server)
    assert [plan.prompt_id for plan in server.plans] == [f"talk-turn-{turn}" for turn in range(1, 6)]


@pytest.mark.parametrize("status", ["failed", "short", "invalid"])
@pytest.mark.parametrize("failing", [1, 3, 5])
def test_a_turn_that_is_not_ok_ends_the_session(failing, status):
    server = FakeServer(span_s=0.0, failing={f"request-0-t{failing}"}, status=status)
    records = hold_session(server)
    assert len(server.plans) == failing
    assert [record.status for record in records] == [
        *["ok"] * (failing - 1),
        status,
        *["failed"] * (5 - failing),
    ]
    assert {record.error for record in records[failing:]} <= {f"turn {failing} failed"}
    assert [record.turn for record in records] == [1, 2, 3, 4, 5]


def test_a_session_without_system_message_begins_with_the_user():
    server = FakeServer(span_s=0.0)
    scenario = Scenario(scenario="talk", turns=["one"])
    run_session(scenario, make_plan(), str, server.measure, InFlight())
    assert server.plans[0].messages == ({"role": "user", "content": "one"},)
