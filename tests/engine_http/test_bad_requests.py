import pytest
import requests

from draftbench.engine.serving.app import MAX_BODY_BYTES

GENERATE, CHAT, TEXT = "/generate", "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "fox"}]


@pytest.fixture
def server(start_server):
    return start_server("the lazy dog")


def _assert_refused(response, fragment, code=400, kind="BadRequestError"):
    assert response.status_code == code
    error = response.json()["error"]
    assert fragment in error["message"]
    assert "\n" not in error["message"]
    assert (error["code"], error["type"]) == (code, kind)


@pytest.mark.parametrize(
    ("path", "body", "fragment"),
    [
        (GENERATE, {}, "expected either text or input_ids"),
        (GENERATE, {"text": "x", "input_ids": [5]}, "expected either text or input_ids"),
        (GENERATE, {"text": ["x"]}, "text: input should be a valid string, got ['x']"),
        (GENERATE, {"text": ""}, "at least one token"),
        (GENERATE, {"input_ids": [-1]}, "input_ids.0: input should be greater than or equal to 0, got -1"),
        (GENERATE, {"input_ids": [True]}, "input_ids.0"),
        (GENERATE, {"text": "x", "stream": "yes"}, "stream: input should be a valid boolean"),
        (GENERATE, {"text": "x", "max_tokens": 5}, "unknown field max_tokens"),
        (
            GENERATE,
            {"text": "x", "sampling_params": {"max_token": 5}},
            "unknown field sampling_params.max_token",
        ),
        (GENERATE, {"text": "x", "sampling_params": {"max_new_tokens": 0}}, "sampling_params.max_new_tokens"),
        (GENERATE, {"text": "x", "sampling_params": {"max_new_tokens": "9"}}, "valid integer, got '9'"),
        (GENERATE, {"text": "x", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        (GENERATE, {"text": "x", "sampling_params": {"top_p": 0}}, "sampling_params.top_p"),
        (GENERATE, {"text": "x", "sampling_params": {"top_k": -2}}, "sampling_params.top_k"),
        (GENERATE, {"text": "x", "sampling_params": {"stop": 5}}, "sampling_params.stop: input should be"),
        (GENERATE, {"text": "x", "sampling_params": {"n": 2}}, "sampling_params.n"),
        (GENERATE, {"text": "x", "sampling_params": {"max_new_tokens": 300}}, "256 tokens"),
        (GENERATE, {"text": "fox " * 300}, "256 tokens"),
        (GENERATE, {"text": "x", "return_logprob": True}, "return_logprob"),
        (GENERATE, {"text": "x", "rid": ""}, "rid"),
        (GENERATE, {"text": "\ud800"}, "body: invalid JSON"),
        (GENERATE, {"text": "x", "sampling_params": {"temperature": float("nan")}}, "temperature: input"),
        (CHAT, {}, "the field messages is missing"),
        (CHAT, {"messages": []}, "messages: list should have at least 1 item"),
        (CHAT, {"messages": [{"role": "boss", "content": "x"}]}, "messages.0.role: input should be 'system'"),
        (CHAT, {"messages": [{"role": "user"}]}, "the field messages.0.content is missing"),
        (CHAT, {"messages": USER, "n": 2}, "n: input should be less than or equal to 1, got 2"),
        (CHAT, {"messages": USER, "logprobs": True}, "logprobs: input should be False, got True"),
        (CHAT, {"messages": USER, "tools": [{}]}, "unknown field tools"),
        (CHAT, {"messages": USER, "max_tokens": 300}, "256 tokens"),
        (CHAT, {"messages": USER, "stream_options": {"usage": True}}, "unknown field stream_options.usage"),
        (CHAT, {"messages": USER, "chat_template_kwargs": {"mode": "refuse"}}, "refused by the template"),
        (CHAT, {"messages": USER, "max_tokens": 0}, "max_tokens"),
        (TEXT, {"prompt": ["a", "b"]}, "prompt"),
        (TEXT, {"prompt": "x", "seed": -1}, "seed"),
        (TEXT, {"prompt": "x", "frequency_penalty": 0.5}, "frequency_penalty"),
    ],
)
def test_a_bad_value_is_answered_in_one_sentence(server, path, body, fragment):
    _assert_refused(server.post(path, body), fragment)


def test_a_bad_value_in_a_streamed_request_is_an_error_status_too(server):
    body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 300}}
    _assert_refused(server.post(GENERATE, body), "256 tokens")


@pytest.mark.parametrize(
    ("raw", "fragment"),
    [
        (b"{", "body: invalid JSON"),
        (b"", "body: invalid JSON"),
        (b"[1]", "body: input should be an object, got [1]"),
        (b'{"rid": "\\ud800"}', "body: invalid JSON"),
        (b"\xff\xfe{}", "body: invalid JSON"),
        (b"[" * 200_000, "body: invalid JSON"),
    ],
)
@pytest.mark.parametrize("path", [GENERATE, CHAT, "/abort_request"])
def test_a_body_that_is_no_json_object_is_refused(server, path, raw, fragment):
    _assert_refused(requests.post(server.url + path, data=raw, timeout=20), fragment)


def test_a_body_beyond_the_limit_is_refused(server):
    response = requests.post(server.url + GENERATE, data=b" " * (MAX_BODY_BYTES + 1), timeout=20)
    _assert_refused(response, "at most 16777216 bytes", 413, "RequestEntityTooLargeError")


def test_a_wrong_path_is_not_found(server):
    _assert_refused(server.get("/v2/nothing"), "GET /v2/nothing", 404, "NotFoundError")


def test_a_wrong_method_is_not_allowed(server):
    _assert_refused(server.get("/generate"), "GET /generate", 405, "MethodNotAllowedError")


def test_a_name_that_runs_already_is_refused(start_server):
    server = start_server("the lazy dog " * 10, step_s=0.02)
    body = {"text": "x", "rid": "twin", "stream": True}
    with server.post(GENERATE, body, stream=True) as running:
        lines = running.iter_lines()
        next(lines)
        _assert_refused(server.post(GENERATE, body), "expected a new rid, got 'twin'")


def test_a_refused_request_leaves_nothing_behind(server):
    server.post(GENERATE, {"text": "fox " * 300})
    assert server.engine.num_in_flight == 0
    assert server.post(GENERATE, {"text": "fox"}).status_code == 200
