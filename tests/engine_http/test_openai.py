import pytest

CHAT = {"messages": [{"role": "user", "content": "quick"}], "temperature": 0}
TEXT = {"prompt": "quick", "temperature": 0, "max_tokens": 64}


def test_a_chat_answer_is_openais(start_server, tokenizer):
    server = start_server("the lazy dog")
    answer = server.post("/v1/chat/completions", CHAT | {"model": "any", "rid": "r1"}).json()
    num_prompt, num_output = (
        len(tokenizer.encode(text)) for text in ("<|user|>quick<|eos|><|assistant|>", "the lazy dog")
    )
    del answer["created"]
    assert answer == {
        "id": "r1",
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "the lazy dog"},
                "logprobs": None,
                "finish_reason": "length",
                "matched_stop": None,
            }
        ],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_a_text_answer_is_openais(start_server):
    server = start_server("the lazy dog")
    answer = server.post("/v1/completions", TEXT).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"][0]["text"] == "the lazy dog"


def test_a_chat_stream_names_the_role_once_and_sends_only_what_is_new(start_server):
    server = start_server("0123456789", group_tokens=3)
    *events, done = server.events("/v1/chat/completions", CHAT)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert len(deltas) == 4
    assert done == "[DONE]"
    assert "".join(delta["content"] for delta in deltas) == "0123456789"
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["length"]
    assert len({event["id"] for event in events}) == 1


def test_a_text_stream_sends_only_what_is_new(start_server):
    server = start_server("0123456789", group_tokens=3)
    *events, _ = server.events("/v1/completions", TEXT)
    assert "".join(event["choices"][0]["text"] for event in events) == "0123456789"
    assert {event["object"] for event in events} == {"text_completion"}


@pytest.mark.parametrize("path_and_body", [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_usage_comes_in_an_event_of_its_own_before_the_end(start_server, tokenizer, path_and_body):
    path, body = path_and_body
    server = start_server("the lazy dog")
    *events, usage, _ = server.events(path, body | {"stream_options": {"include_usage": True}})
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(tokenizer.encode("the lazy dog"))
    assert not any("usage" in event for event in events)


def test_usage_of_every_event_counts_the_tokens_so_far(start_server, tokenizer):
    server = start_server("the lazy dog", group_tokens=2)
    options = {"stream_options": {"continuous_usage_stats": True}}
    *events, _ = server.events("/v1/completions", TEXT | options)
    num_tokens = len(tokenizer.encode("the lazy dog"))
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [min(n, num_tokens) for n in range(2, num_tokens + 2, 2)]


def test_speculative_details_come_where_sglang_puts_them(start_server):
    server = start_server("0123456789", group_tokens=4)
    body = CHAT | {"return_spec_tokens_details": True, "max_tokens": 9}
    whole = server.post("/v1/chat/completions", body).json()
    *_, details, usage, _ = server.events(
        "/v1/chat/completions", body | {"stream_options": {"include_usage": True}}
    )
    assert whole["sglext"]["spec_tokens_details"]["spec_verify_ct"] == 2
    assert details["choices"] == []
    assert details["sglext"] == whole["sglext"]
    assert "sglext" not in usage


def test_speculative_details_are_null_without_speculation(start_server):
    server = start_server("the lazy dog", is_speculative=False)
    answer = server.post("/v1/completions", TEXT | {"return_spec_tokens_details": True}).json()
    assert answer["sglext"] == {"spec_tokens_details": None}


def test_a_matched_stop_string_is_named(start_server):
    server = start_server("the END of it")
    choice = server.post("/v1/completions", TEXT | {"stop": "END"}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["matched_stop"]) == ("the ", "stop", "END")


def test_the_second_turn_of_a_chat_finds_the_first_in_the_cache(start_server):
    server = start_server("the lazy dog", "draft", extra_ids=(1,))
    first = server.post("/v1/chat/completions", CHAT).json()
    messages = [*CHAT["messages"], first["choices"][0]["message"], {"role": "user", "content": "more"}]
    second = server.post("/v1/chat/completions", CHAT | {"messages": messages}).json()
    num_first = first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > num_first


def test_a_chat_without_a_limit_may_fill_the_context(start_server):
    server = start_server("the lazy dog", context_length=100)
    usage = server.post("/v1/chat/completions", CHAT).json()["usage"]
    assert server.engine.requests[0].sampling.max_new_tokens == 100 - usage["prompt_tokens"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_chat_takes_either_name_of_its_limit(start_server, name):
    server = start_server("the lazy dog")
    assert server.post("/v1/chat/completions", CHAT | {name: 2}).json()["usage"]["completion_tokens"] == 2


def test_a_text_completion_has_16_tokens_by_default(start_server):
    server = start_server("the lazy dog " * 10)
    usage = server.post("/v1/completions", {"prompt": "quick"}).json()["usage"]
    assert usage["completion_tokens"] == 16


def test_content_in_parts_is_joined(start_server, tokenizer):
    server = start_server("the lazy dog")
    parts = [{"type": "text", "text": "qui"}, {"type": "text", "text": "ck"}]
    server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}]})
    ids = server.engine.requests[0].prompt_ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|user|>quick<|eos|><|assistant|>"


def test_a_clients_template_variables_replace_nothing_of_the_servers(start_server, tokenizer):
    server = start_server("the lazy dog")
    variables = {"messages": [], "add_generation_prompt": False, "mode": "other"}
    response = server.post("/v1/chat/completions", CHAT | {"chat_template_kwargs": variables})
    assert response.status_code == 200
    ids = server.engine.requests[0].prompt_ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|user|>quick<|eos|><|assistant|>"


def test_fields_that_ask_for_nothing_are_accepted(start_server):
    server = start_server("the lazy dog")
    neutral = {
        "n": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logprobs": False,
        "user": "u",
        "stop": None,
    }
    assert server.post("/v1/chat/completions", CHAT | neutral).status_code == 200


def test_tokens_behind_a_stop_string_are_not_in_the_usage(start_server, tokenizer):
    server = start_server("the END of it all", group_tokens=16)
    answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 64, "stop": "END"}).json()
    ids = tokenizer.encode("the END of it all")
    first = next(n for n in range(len(ids)) if "END" in tokenizer.decode(ids[:n]))
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("the ", first)
