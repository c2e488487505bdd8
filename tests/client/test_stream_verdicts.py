"""When a request is a measurement: errors inside a 200 stream, what is missing, broken cross-checks."""

import json
from dataclasses import replace

import pytest
from fault_server import FaultServer, answer, plain
from plans import APIS, LIMITS, make_plan
from streams import DONE, Stream, event

from draftbench.client.stream import measure_request
from draftbench.definitions import Drafting

every_api = pytest.mark.parametrize("api", APIS)
openai_apis = pytest.mark.parametrize("api", ["chat", "completions"])

ERRORS = {
    "openai": {"error": {"message": "out of slots", "type": "server_error", "code": 500}},
    "bare": {"error": "out of slots"},
    "flat": {"object": "error", "message": "out of slots", "code": 400},
    "typed": {"type": "error", "error": {"message": "out of slots"}},
    "detail": {"detail": "out of slots"},
    "nested": {"error": {"error": "out of slots"}},
    "with choices": {"choices": [], "error": {"message": "out of slots"}},
}


@every_api
@pytest.mark.parametrize("shape", ERRORS)
@pytest.mark.parametrize("num_before", [0, 2, 4])
def test_an_error_object_in_a_200_stream_is_a_failure(measure, api, shape, num_before):
    steps = Stream(api).whole(4)
    at = 2 * num_before
    record = measure([*steps[:at], event(ERRORS[shape]), DONE], api)
    assert (record.status, record.http_status) == ("failed", 200)
    assert "out of slots" in record.error


@every_api
@pytest.mark.parametrize("data", [b'{"message": "out of slots"}', b"out of slots", b'"out of slots"'])
def test_an_event_named_error_is_a_failure(measure, api, data):
    record = measure([*Stream(api).whole(4)[:4], b"event: error\ndata: " + data + b"\n\n"], api)
    assert record.status == "failed"
    assert "out of slots" in record.error


@every_api
def test_an_error_object_keeps_what_came_before_it(measure, api):
    record = measure([Stream(api).token("a"), event({"error": {"message": "died"}})], api)
    assert record.text == "a"
    assert len(record.chunks) == 1


@every_api
@pytest.mark.parametrize("status", ["400 Bad Request", "429 Too Many Requests", "500 Oops", "503 Later"])
def test_an_http_error_keeps_the_servers_message(measure, api, status):
    body = {"error": {"message": "prompt too long"}}
    record = measure([answer(status, body)], api, frame=lambda steps: steps)
    assert (record.status, record.http_status) == ("failed", int(status[:3]))
    assert "prompt too long" in record.error


def test_an_http_error_without_json_keeps_its_text(measure):
    record = measure(
        [answer("502 Bad Gateway", b"<h1>bad gateway</h1>", "text/html")], frame=lambda steps: steps
    )
    assert "bad gateway" in record.error


def test_a_redirect_is_not_followed(measure):
    moved = b"HTTP/1.1 307 Moved\r\nLocation: /elsewhere\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    record = measure([moved], frame=lambda steps: steps)
    assert (record.status, record.http_status) == ("failed", 307)


@every_api
def test_one_json_answer_instead_of_a_stream_is_a_failure(measure, api):
    record = measure(
        [answer("200 OK", {"error": {"message": "no stream here"}})], api, frame=lambda steps: steps
    )
    assert record.status == "failed"
    assert "no stream here" in record.error


def test_a_body_that_is_no_stream_is_a_failure_that_shows_it(measure):
    record = measure([answer("200 OK", b"<html>login</html>", "text/html")], frame=lambda steps: steps)
    assert record.status == "failed"
    assert "login" in record.error


@every_api
@pytest.mark.parametrize("data", [b"{not json", b"[1, 2]", b"17", b"null", b'"text"'])
def test_an_event_that_is_no_json_object_is_a_failure(measure, api, data):
    record = measure([*Stream(api).whole(2)[:2], b"data: " + data + b"\n\n"], api)
    assert record.status == "failed"
    assert "JSON object" in record.error


@every_api
@pytest.mark.parametrize("reason", ["abort", "aborted", "error", "cancelled"])
def test_an_abort_is_a_failure(measure, api, reason):
    stream = Stream(api)
    if api == "generate":
        steps = [stream.token(finish=reason), DONE]
    else:
        steps = [stream.token(), *stream.end(reason)]
    record = measure(steps, api, max_tokens=1)
    assert record.status == "failed"
    assert reason in record.error


def test_an_abort_keeps_the_servers_reason(measure):
    stream = Stream("generate")
    payload = stream.payload()
    payload["meta_info"]["finish_reason"] = {"type": "abort", "message": "KV cache is full"}
    record = measure([event(payload), DONE], max_tokens=1)
    assert "KV cache is full" in record.error


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls"])
@openai_apis
def test_other_finish_reasons_end_a_measurement(measure, api, reason):
    stream = Stream(api)
    record = measure([stream.token(), stream.token(), *stream.end(reason)], api, max_tokens=2)
    assert (record.status, record.finish_reason) == ("ok", reason)


def test_a_bare_string_as_finish_reason_is_read(measure):
    payload = Stream("generate").payload()
    payload["meta_info"]["finish_reason"] = "length"
    record = measure([event(payload), DONE], max_tokens=1)
    assert (record.status, record.finish_reason) == ("ok", "length")


@every_api
def test_a_stream_without_finish_reason_is_a_failure(measure, api):
    stream = Stream(api)
    record = measure([stream.token(), stream.token(), DONE], api, max_tokens=2)
    assert record.status == "failed"
    assert "finish reason" in record.error


@openai_apis
def test_a_stream_without_usage_is_a_failure(measure, api):
    stream = Stream(api, counts=False)
    record = measure([stream.token(), stream.token(), *stream.end(usage=False)], api, max_tokens=2)
    assert record.status == "failed"
    assert "usage" in record.error
    assert record.num_output_tokens is None  # never the requested length


def test_a_generate_stream_without_counts_is_a_failure(measure):
    meta = {"finish_reason": {"type": "length"}}
    record = measure([event({"text": "a", "output_ids": [1], "meta_info": meta}), DONE], max_tokens=1)
    assert record.status == "failed"
    assert "usage" in record.error


@every_api
def test_a_stream_without_tokens_is_a_failure(measure, api):
    stream = Stream(api)
    steps = [stream.token("", 0, "length"), DONE] if api == "generate" else stream.end()
    record = measure(steps, api)
    assert record.status == "failed"
    assert "without a generated token" in record.error


@every_api
@pytest.mark.parametrize("steps", [[], [DONE], [b": ping\n\n"], [b"\n"]])
def test_an_empty_stream_is_a_failure(measure, api, steps):
    record = measure(steps, api)
    assert (record.status, record.ttft_s, record.tpot_s, record.e2e_s) == ("failed", None, None, None)


@every_api
def test_fewer_tokens_than_asked_are_short(measure, api):
    record = measure(Stream(api).whole(3), api, max_tokens=4)
    assert record.status == "short"
    assert "expected 4 tokens, got 3" in record.error


@every_api
def test_an_answer_may_end_by_itself_when_end_of_text_is_not_ignored(measure, api):
    record = measure(Stream(api).whole(3), api, max_tokens=4, ignore_eos=False)
    assert record.status == "ok"


@every_api
def test_more_tokens_than_asked_are_invalid(measure, api):
    record = measure(Stream(api).whole(5), api, max_tokens=4)
    assert (record.status, record.violations) == ("invalid", ["tokens-over-limit"])


@every_api
@pytest.mark.parametrize("tail", [b"", b"\n", b"\n\n"])
@pytest.mark.parametrize("frame", ["chunked", "plain"])
def test_done_and_the_last_newline_may_be_missing(measure, api, tail, frame):
    *steps, last, _done = Stream(api).whole(4)
    options = {"frame": plain} if frame == "plain" else {}
    record = measure([*steps, last.rstrip(b"\n") + tail], api, **options)
    assert record.status == "ok"


@every_api
def test_done_may_be_missing_though_the_first_event_came_in_two_parts(measure, api):
    _pause, first, *steps, _done = Stream(api).whole(4)
    assert measure([first[:9], 0.1, first[9:], *steps], api).status == "ok"


@every_api
@pytest.mark.parametrize("old", [b"\r\n", b"\r"])
def test_other_line_endings_change_nothing(measure, api, old):
    steps = [step.replace(b"\n", old) if isinstance(step, bytes) else step for step in Stream(api).whole(4)]
    assert measure(steps, api).status == "ok"


@every_api
def test_no_space_after_the_colon_changes_nothing(measure, api):
    steps = [s.replace(b"data: ", b"data:") if isinstance(s, bytes) else s for s in Stream(api).whole(4)]
    assert measure(steps, api).status == "ok"


@every_api
def test_further_fields_and_comments_change_nothing(measure, api):
    head = b": hello\nid: 1\nevent: message\nretry: 5\n"
    steps = [head + s if isinstance(s, bytes) else s for s in Stream(api).whole(4)]
    assert measure(steps, api).status == "ok"


@every_api
def test_json_over_several_data_lines_is_one_event(measure, api):
    steps = []
    for step in Stream(api).whole(4):
        if isinstance(step, bytes) and step.startswith(b"data: {"):
            payload = json.dumps(json.loads(step[6:]), indent=1)
            steps.append("".join(f"data: {line}\n" for line in payload.split("\n")).encode() + b"\n")
        else:
            steps.append(step)
    assert measure(steps, api).status == "ok"


@every_api
def test_a_line_of_ten_megabytes_is_read(measure, api):
    stream = Stream(api)
    finish = "length" if api == "generate" else None
    steps = [stream.token("x" * 10_000_000), stream.token("y", finish=finish), *stream.end()]
    record = measure(steps, api, max_tokens=2)
    assert record.status == "ok"
    assert len(record.text) == 10_000_001


@every_api
def test_nothing_after_done_is_read(measure, api):
    record = measure([*Stream(api).whole(4), event({"error": "late"})], api)
    assert record.status == "ok"


def test_a_count_that_falls_is_invalid(measure):
    stream = Stream("generate")
    steps = [
        stream.token(num_tokens=3),
        stream.token(num_tokens=-1),
        stream.token(num_tokens=2, finish="length"),
    ]
    record = measure([*steps, DONE])
    assert (record.status, record.violations) == ("invalid", ["token-count-went-back"])


def test_ids_that_are_not_as_many_as_the_usage_are_invalid(measure):
    payload = Stream("generate").payload(num_tokens=2, finish="length")
    payload["output_ids"] = [1]
    record = measure([event(payload), DONE], max_tokens=2)
    assert (record.status, record.violations) == ("invalid", ["ids-not-usage"])


@openai_apis
def test_a_usage_below_the_counted_chunks_is_invalid(measure, api):
    stream = Stream(api)
    steps = [stream.token(), stream.token(), event(stream.payload("", 0, "length"))]
    low = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})
    record = measure([*steps, low, DONE], api, max_tokens=1)
    assert (record.status, record.violations) == ("invalid", ["chunks-not-usage"])


SPEC = {
    "spec_verify_ct": 3,
    "spec_num_correct_drafts": 5,
    "spec_num_proposed_drafts": 45,
    "spec_correct_drafts_histogram": [0, 1, 2],
}


def speculative(measure, api, num_tokens=9, drafting=None, **changes):
    """A request of nine tokens: the prefill's, and 3 rounds that kept 5."""
    stream = Stream(api)
    details = {**SPEC, **changes}
    if api == "generate":
        steps = [stream.token(), stream.token("ab", num_tokens - 1, "length", **details), DONE]
    else:
        steps = [stream.token(), stream.token("ab", num_tokens - 1), *stream.end()]
        steps.insert(-2, event({"choices": [], "sglext": {"spec_tokens_details": details}}))
    return measure(steps, api, max_tokens=num_tokens, drafting=drafting)


@every_api
@pytest.mark.parametrize("drafting", [Drafting(True, 15), None])
def test_rounds_and_tau_are_the_servers_counts(measure, api, drafting):
    record = speculative(measure, api, drafting=drafting)
    assert (record.status, record.violations) == ("ok", [])
    assert (record.num_rounds, record.num_accepted_tokens, record.num_proposed_tokens) == (3, 5, 45)
    assert record.accept_histogram == [0, 1, 2]
    assert record.tau == pytest.approx(8 / 3)


@openai_apis
def test_counts_of_rounds_may_come_as_a_list_with_one_entry_a_choice(measure, api):
    stream = Stream(api)
    *steps, done = [stream.token(), stream.token("ab", 8), *stream.end()]
    record = measure(
        [*steps, event({"choices": [], "sglext": {"spec_tokens_details": [SPEC]}}), done], api, max_tokens=9
    )
    assert (record.status, record.num_rounds) == ("ok", 3)


def test_counts_of_rounds_that_run_along_are_taken_from_the_last_event(measure):
    stream = Stream("generate")
    early = {
        **SPEC,
        "spec_verify_ct": 1,
        "spec_num_correct_drafts": 1,
        "spec_correct_drafts_histogram": [0, 1],
    }
    steps = [stream.token(), stream.token("ab", 2, **early), stream.token("ab", 6, "length", **SPEC), DONE]
    record = measure(steps, max_tokens=9, drafting=Drafting(True, 15))
    assert (record.status, record.num_rounds, record.num_accepted_tokens) == ("ok", 3, 5)


@every_api
@pytest.mark.parametrize(
    ("changes", "violation"),
    [
        (
            {"spec_verify_ct": 4, "spec_correct_drafts_histogram": [1, 1, 2], "num_tokens": 12},
            "rounds-not-usage",
        ),
        ({"num_tokens": 3}, "rounds-not-usage"),
        ({"spec_correct_drafts_histogram": [1, 1, 2]}, "histogram-not-rounds"),
        ({"spec_correct_drafts_histogram": [0, 2, 1]}, "histogram-not-accepted"),
        ({"spec_num_proposed_drafts": 4}, "accepted-over-proposed"),
        ({"drafting": Drafting(True, 1)}, "tau-out-of-range"),
        ({"drafting": Drafting(False)}, "rounds-unexpected"),
    ],
)
def test_a_broken_cross_check_makes_the_record_invalid(measure, api, changes, violation):
    record = speculative(measure, api, **changes)
    assert record.status == "invalid"
    assert violation in record.violations


@openai_apis
def test_cached_tokens_are_those_of_all_tiers_of_sglangs_cache(measure, api):
    tiers = {"cached_tokens_details": {"device": 3, "host": 2, "storage": None}}
    *steps, done = Stream(api).whole(4)
    record = measure([*steps, event({"choices": [], "sglext": tiers}), done], api)
    assert (record.status, record.num_cached_tokens) == ("ok", 5)


@every_api
def test_a_last_round_cut_by_the_limit_is_valid(measure, api):
    record = speculative(measure, api, num_tokens=8, drafting=Drafting(True, 15))
    assert record.status == "ok"


@every_api
def test_a_speculative_method_without_rounds_is_invalid(measure, api):
    record = measure(Stream(api).whole(4), api, drafting=Drafting(True, 15))
    assert record.violations == ["rounds-missing"]


@every_api
def test_autoregressive_decoding_has_a_tau_of_one(measure, api):
    record = measure(Stream(api).whole(4), api, drafting=Drafting(False))
    assert (record.status, record.tau, record.num_rounds) == ("ok", 1.0, None)


@every_api
def test_a_request_is_greedy_and_explicit_about_it(api):
    with FaultServer(lambda _call: plain(Stream(api).whole(4))) as server:
        measure_request(make_plan(api), server.base_url, LIMITS)
        call = server.calls[0]
    sampling = call.json["sampling_params"] if api == "generate" else call.json
    assert sampling["temperature"] == 0.0
    assert sampling["ignore_eos"] is True
    assert call.headers["accept-encoding"] == "identity"


COUNTS = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "return_spec_tokens_details": True,
    "return_cached_tokens_details": True,
}
TALK = tuple({"role": role, "content": role} for role in ("system", "user", "assistant", "user"))
OPENAI = {"model": "target", "max_tokens": 4, "temperature": 0.0, "ignore_eos": False, **COUNTS}
BODIES = {
    "generate": {
        "text": "Hello",
        "sampling_params": {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": False},
        "stream": True,
    },
    "chat": {**OPENAI, "messages": list(TALK)},
    "completions": {**OPENAI, "prompt": "Hello"},
}


@every_api
def test_a_body_holds_the_plan_and_asks_for_every_count(api):
    with FaultServer(lambda _call: plain(Stream(api).whole(4))) as server:
        measure_request(replace(make_plan(api, ignore_eos=False), messages=TALK), server.base_url, LIMITS)
        assert server.calls[0].json == BODIES[api]
