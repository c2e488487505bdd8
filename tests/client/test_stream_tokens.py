"""What counts as a token, when it came, and how many a chunk held; on all three APIs."""

import pytest
from plans import APIS
from streams import DONE, Stream, event

every_api = pytest.mark.parametrize("api", APIS)
openai_apis = pytest.mark.parametrize("api", ["chat", "completions"])
PAUSE_S = 0.1
SLACK_S = 0.6  # a shared machine may be late, never early


def about(expected_s):
    return pytest.approx(expected_s + SLACK_S / 2 - 0.005, abs=SLACK_S / 2)


@every_api
def test_a_whole_stream_is_ok(measure, api):
    record = measure(Stream(api).whole(4), api)
    assert (record.status, record.error, record.violations) == ("ok", None, [])
    assert (record.num_prompt_tokens, record.num_output_tokens) == (7, 4)
    assert record.finish_reason == "length"
    assert record.text == "abababab"


@every_api
def test_times_are_those_of_the_reads(measure, api):
    record = measure(Stream(api).whole(3, pause_s=PAUSE_S), api, max_tokens=3)
    assert record.ttft_s == about(PAUSE_S)
    assert record.tpot_s == about(PAUSE_S)
    assert record.e2e_s == about(3 * PAUSE_S)
    assert [chunk.num_tokens for chunk in record.chunks] == [1, 1, 1]


@every_api
def test_what_comes_after_the_last_token_is_not_the_requests_time(measure, api):
    *steps, done = Stream(api).whole(2)
    record = measure([*steps, PAUSE_S, done], api, max_tokens=2)
    assert record.e2e_s == record.last_token_s - record.send_s
    assert record.end_s - record.last_token_s > PAUSE_S / 2


@every_api
def test_a_token_has_the_time_of_its_bytes_not_of_their_reading(measure, api):
    record = measure([b"".join(step for step in Stream(api).whole(4) if step)], api)
    assert record.send_s <= record.last_token_s <= record.end_s


@every_api
def test_tpot_divides_by_the_tokens_after_the_first_chunk(measure, api):
    record = measure(Stream(api).whole(2, num_tokens=4, pause_s=PAUSE_S), api, max_tokens=8)
    assert [chunk.num_tokens for chunk in record.chunks] == [4, 4]
    assert record.tpot_s == pytest.approx((record.chunks[1].time_s - record.chunks[0].time_s) / 4)


@every_api
def test_tpot_of_one_token_is_undefined(measure, api):
    record = measure(Stream(api).whole(1), api, max_tokens=1)
    assert record.status == "ok"
    assert record.tpot_s is None


@every_api
def test_tpot_of_a_single_chunk_is_undefined(measure, api):
    record = measure(Stream(api).whole(1, num_tokens=4), api)
    assert record.status == "ok"
    assert record.tpot_s is None


@every_api
def test_events_of_one_packet_share_its_time(measure, api):
    stream = Stream(api)
    packet = b"".join(stream.token() for _ in range(3))
    finish = "length" if api == "generate" else None
    record = measure([packet, PAUSE_S, stream.token(finish=finish), *stream.end()], api)
    assert len({chunk.time_s for chunk in record.chunks}) == 2
    assert record.status == "ok"


@every_api
def test_a_token_that_decodes_to_nothing_counts(measure, api):
    stream = Stream(api)
    finish = "length" if api == "generate" else None
    first = [PAUSE_S, stream.token("")]
    record = measure([*first, PAUSE_S, stream.token("a", finish=finish), *stream.end()], api, max_tokens=2)
    assert record.status == "ok"
    assert record.ttft_s == about(PAUSE_S)
    assert [chunk.num_tokens for chunk in record.chunks] == [1, 1]


def test_the_role_event_is_not_the_first_token(measure):
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    record = measure([role, *Stream("chat").whole(4, pause_s=PAUSE_S)], "chat")
    assert record.ttft_s == about(PAUSE_S)
    assert record.status == "ok"


def test_a_role_event_that_claims_a_token_is_not_the_first_token(measure):
    stream = Stream("chat")
    role = {"choices": [{"index": 0, "delta": {"role": "assistant"}}], "usage": {"completion_tokens": 1}}
    record = measure([event(role), PAUSE_S, stream.token("a", 2), *stream.end()], "chat", max_tokens=2)
    assert record.ttft_s == about(PAUSE_S)
    assert [chunk.num_tokens for chunk in record.chunks] == [2]


def test_a_role_event_with_text_is_the_first_token(measure):
    stream = Stream("chat")
    first = stream.payload("a")
    first["choices"][0]["delta"]["role"] = "assistant"
    record = measure([event(first), PAUSE_S, stream.token("b"), *stream.end()], "chat", max_tokens=2)
    assert len(record.chunks) == 2
    assert record.ttft_s < PAUSE_S


@openai_apis
def test_an_early_usage_event_is_not_the_first_token(measure, api):
    early = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 0}})
    record = measure([early, *Stream(api).whole(4, pause_s=PAUSE_S)], api)
    assert record.ttft_s == about(PAUSE_S)
    assert record.num_output_tokens == 4


@every_api
@pytest.mark.parametrize("ping", [b": ping\n\n", b":\n\n", b"data:\n\n", b"event: ping\n\n", b"\n\n"])
def test_a_sign_of_life_is_not_the_first_token(measure, api, ping):
    record = measure([ping, *Stream(api).whole(2, pause_s=PAUSE_S)], api, max_tokens=2)
    assert record.ttft_s == about(PAUSE_S)
    assert record.status == "ok"


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning": "hm", "reasoning_content": "hm"},
        {"content": None, "reasoning_content": "hm"},
        {"role": "assistant", "content": "", "reasoning_content": "hm"},
        {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]},
        {"function_call": {"arguments": '{"a'}},
        {"refusal": "no"},
        {"content": [{"type": "text", "text": "hm"}]},
    ],
)
@pytest.mark.parametrize("counts", [True, False])
def test_everything_that_a_model_generates_is_a_token(measure, delta, counts):
    stream = Stream("chat", counts)
    payload = stream.payload()
    payload["choices"][0]["delta"] = delta
    record = measure(
        [PAUSE_S, event(payload), PAUSE_S, stream.token("b"), *stream.end()], "chat", max_tokens=2
    )
    assert record.ttft_s == about(PAUSE_S)
    assert [chunk.num_tokens for chunk in record.chunks] == [1, 1]
    assert record.status == "ok"


def test_reasoning_is_kept_apart_from_the_answer(measure):
    stream = Stream("chat")
    payload = stream.payload()
    payload["choices"][0]["delta"] = {"reasoning_content": "hm"}
    record = measure([event(payload), stream.token("yes"), *stream.end()], "chat", max_tokens=2)
    assert (record.reasoning_text, record.text) == ("hm", "yes")


@openai_apis
@pytest.mark.parametrize("key", ["token_ids", "output_ids"])
def test_token_ids_tell_of_tokens_without_text(measure, api, key):
    stream = Stream(api, counts=False)
    steps = []
    for ids in ([5], [6, 7]):
        payload = stream.payload("", len(ids))
        payload["choices"][0][key] = ids
        steps += [PAUSE_S, event(payload)]
    record = measure([*steps, *stream.end()], api, max_tokens=3)
    assert record.output_ids == [5, 6, 7]
    assert [chunk.num_tokens for chunk in record.chunks] == [1, 2]
    assert record.ttft_s == about(PAUSE_S)


@openai_apis
def test_one_token_events_without_counts_are_counted_by_their_number(measure, api):
    record = measure(Stream(api, counts=False).whole(4), api)
    assert record.status == "ok"
    assert record.has_chunk_counts
    assert record.tpot_s is not None


@openai_apis
def test_counts_that_cannot_be_known_are_not_invented(measure, api):
    record = measure(Stream(api, counts=False).whole(2, num_tokens=4), api, max_tokens=8)
    assert record.status == "ok"
    assert record.num_output_tokens == 8
    assert not record.has_chunk_counts
    assert record.tpot_s is None
    assert record.ttft_s is not None


@openai_apis
def test_a_usage_on_the_last_event_alone_gives_no_count_to_it(measure, api):
    stream = Stream(api, counts=False)
    steps = [stream.token("a", 4), stream.token("b", 4)]
    last = stream.payload("", 0, "length")
    record = measure([*steps, event({**last, "usage": stream.usage()}), DONE], api, max_tokens=8)
    assert len(record.chunks) == 2
    assert not record.has_chunk_counts
    assert record.status == "ok"


@openai_apis
@pytest.mark.parametrize("num_unseen", [1, 3])
def test_tokens_that_no_event_shows_came_with_the_end(measure, api, num_unseen):
    stream = Stream(api)
    steps = [stream.token("a"), PAUSE_S]
    stream.num_sent += num_unseen  # as an end-of-text token: no event of its own
    stream.counts = False
    record = measure([*steps, *stream.end("stop")], api, max_tokens=1 + num_unseen)
    assert record.status == "ok"
    assert [chunk.num_tokens for chunk in record.chunks] == [1, num_unseen]
    assert record.e2e_s == about(PAUSE_S)


@openai_apis
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_usage_may_come_in_any_event(measure, api, place):
    stream = Stream(api, counts=False)
    steps = [stream.token(), stream.token(), *stream.end(usage=False)]
    usage = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
    steps.insert({"first": 0, "middle": 1, "last": len(steps) - 1}[place], usage)
    record = measure(steps, api, max_tokens=2)
    assert (record.status, record.num_output_tokens) == ("ok", 2)


@openai_apis
def test_the_last_usage_wins(measure, api):
    stream = Stream(api, counts=False)
    wrong = event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    record = measure([stream.token(), wrong, stream.token(), *stream.end()], api, max_tokens=2)
    assert (record.num_prompt_tokens, record.num_output_tokens) == (7, 2)


@openai_apis
def test_an_empty_usage_takes_nothing_away(measure, api):
    stream = Stream(api)
    late = event({"choices": [], "usage": None})
    record = measure([*stream.whole(4)[:-1], late, DONE], api)
    assert (record.status, record.num_output_tokens) == ("ok", 4)


@openai_apis
def test_a_later_usage_without_prompt_tokens_takes_nothing_away(measure, api):
    stream = Stream(api)
    details = {"prompt_tokens_details": {"cached_tokens": 3}}
    early = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 0, **details}})
    late = event({"choices": [], "usage": {"completion_tokens": 4}})
    record = measure([early, *stream.whole(4)[:-2], late, DONE], api)
    assert (record.num_prompt_tokens, record.num_cached_tokens) == (7, 3)


def incremental(pieces, with_counts=True, with_ids=True):
    """A `/generate` stream of a server that sends only what is new."""
    num = 0
    for text, ids in pieces:
        num += len(ids)
        finish = {"type": "length"} if num == sum(len(ids) for _, ids in pieces) else None
        meta = {"prompt_tokens": 7, "finish_reason": finish}
        if with_counts or finish:
            meta["completion_tokens"] = num
        yield event({"text": text, **({"output_ids": ids} if with_ids else {}), "meta_info": meta})
    yield DONE


REPEATING = [("ha", [5]), ("ha", [5]), ("ha", [5]), ("ha ha", [5, 5])]


def test_incremental_streams_are_told_from_cumulative_ones(measure):
    record = measure(list(incremental(REPEATING)), max_tokens=5)
    assert record.output_ids == [5, 5, 5, 5, 5]
    assert record.text == "hahahaha ha"
    assert [chunk.num_tokens for chunk in record.chunks] == [1, 1, 1, 2]
    assert record.status == "ok"


def test_incremental_text_without_ids_is_joined(measure):
    record = measure(list(incremental([("a", [1]), ("b", [2]), ("c", [3])], with_ids=False)), max_tokens=3)
    assert record.text == "abc"
    assert record.output_ids is None


def test_ids_tell_of_tokens_where_the_server_counts_only_at_the_end(measure):
    record = measure(list(incremental([("a", [1]), ("b", [2, 3]), ("c", [4])], with_counts=False)))
    assert record.output_ids == [1, 2, 3, 4]
    assert [chunk.num_tokens for chunk in record.chunks] == [1, 2, 1]
    assert record.status == "ok"


def test_repeated_ids_tell_of_their_new_tokens_alone_and_none_of_nothing(measure):
    steps = [
        event({"text": text, "output_ids": ids, "meta_info": {}})
        for text, ids in [("a", [1]), ("ab", [1, 2, 3]), ("ab", []), ("abc", [1, 2, 3, 4])]
    ]
    meta = {"completion_tokens": 4, "prompt_tokens": 7, "finish_reason": {"type": "length"}}
    record = measure([*steps, event({"text": "", "output_ids": [], "meta_info": meta}), DONE])
    assert [chunk.num_tokens for chunk in record.chunks] == [1, 2, 1]
    assert (record.status, record.output_ids, record.text) == ("ok", [1, 2, 3, 4], "abc")


def test_ids_that_run_ahead_of_their_count_are_still_cumulative(measure):
    """SGLang hands the list by reference, so an event may show ids of the step after it."""
    steps = [
        event({"text": "a", "output_ids": [1, 2], "meta_info": {"completion_tokens": 1}}),
        event({"text": "ab", "output_ids": [1, 2, 3], "meta_info": {"completion_tokens": 2}}),
        event(
            {
                "text": "abc",
                "output_ids": [1, 2, 3],
                "meta_info": {
                    "completion_tokens": 3,
                    "prompt_tokens": 7,
                    "finish_reason": {"type": "length"},
                },
            }
        ),
    ]
    record = measure([*steps, DONE], max_tokens=3)
    assert (record.status, record.output_ids, record.text) == ("ok", [1, 2, 3], "abc")


def test_text_of_every_event_may_be_held_back_and_come_later(measure):
    stream = Stream("generate")
    steps = [stream.token(""), stream.token(""), stream.token("é", finish="length"), DONE]
    record = measure(steps, max_tokens=3)
    assert (record.text, [chunk.num_tokens for chunk in record.chunks]) == ("é", [1, 1, 1])


@every_api
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_text_split_anywhere_is_equal_byte_for_byte(measure, api, size):
    stream = Stream(api)
    finish = "length" if api == "generate" else None
    data = b"".join([stream.token("grüße 🎉"), stream.token("日本語", finish=finish), *stream.end()])
    record = measure([data[i : i + size] for i in range(0, len(data), size)], api, max_tokens=2)
    assert record.text == "grüße 🎉日本語"
    assert record.status == "ok"
