import threading

import pytest
from watching import parse_event, wait_until

LONG = "the lazy dog " * 15


def test_a_server_with_a_living_engine_is_healthy(start_server):
    server = start_server("ab")
    assert server.get("/health").status_code == 200
    assert server.get("/health_generate").status_code == 200
    assert server.engine.requests[0].sampling.max_new_tokens == 1


def test_a_server_whose_engine_failed_is_not_healthy(start_server):
    server = start_server("ab")
    server.engine.fail()
    assert server.get("/health").status_code == 503
    assert server.get("/health_generate").status_code == 503
    response = server.post("/generate", {"text": "x"})
    assert response.status_code == 503
    assert "engine has failed" in response.json()["error"]["message"]


def test_a_server_that_stops_takes_nothing_new(start_server):
    server = start_server("ab")
    server.service.is_draining = True
    assert server.post("/generate", {"text": "x"}).status_code == 503
    assert server.get("/health").status_code == 503


def test_an_engine_that_fails_ends_a_stream_with_an_error_event(start_server):
    server = start_server(LONG, step_s=0.02)
    with server.post("/v1/chat/completions", _chat(stream=True), stream=True) as response:
        lines = filter(None, response.iter_lines())
        next(lines)
        server.engine.fail()
        *_, last = lines
    error = parse_event(last)["error"]
    assert error["code"] == 500
    assert "RuntimeError: scripted" in error["message"]


def test_an_engine_that_fails_ends_a_whole_answer_with_status_500(start_server):
    server = start_server(LONG, step_s=0.02)
    killer = threading.Timer(0.1, server.engine.fail)
    killer.start()
    response = server.post("/v1/chat/completions", _chat())
    killer.join()
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "InternalServerError"


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_joins_the_launch_with_the_engines_own_words(start_server, path):
    server = start_server("ab")
    info = server.get(path).json()
    assert info["model_path"] == "/models/tiny"
    assert info["dtype"] == "float32"
    assert info["status"] == "ready"
    assert info["internal_states"] == [{}]
    assert info["pid"] > 0


def test_the_served_model_is_listed(start_server):
    server = start_server("ab")
    (model,) = server.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", 256)
    assert server.get("/model_info").json()["model_path"] == "/models/tiny"


@pytest.mark.parametrize("method", ["get", "post"])
def test_an_idle_servers_cache_is_flushed(start_server, method):
    server = start_server("ab")
    prompt = {"text": "the lazy dog the lazy dog"}
    server.post("/generate", prompt)
    assert server.post("/generate", prompt).json()["meta_info"]["cached_tokens"] > 0
    response = server.get("/flush_cache") if method == "get" else server.post("/flush_cache", None)
    assert response.status_code == 200
    assert server.post("/generate", prompt).json()["meta_info"]["cached_tokens"] == 0


def test_a_busy_servers_cache_is_not_flushed_unless_the_caller_waits(start_server):
    server = start_server("the lazy dog", step_s=0.05)
    with server.post("/generate", {"text": "x", "stream": True}, stream=True) as response:
        lines = response.iter_lines()
        next(lines)
        refused = server.get("/flush_cache")
        assert refused.status_code == 400
        assert "requests run" in refused.json()["error"]["message"]
        assert server.get("/flush_cache?timeout=5").status_code == 200


@pytest.mark.parametrize("timeout", ["soon", "nan", "-1"])
def test_a_flush_with_a_bad_timeout_is_refused(start_server, timeout):
    server = start_server("ab")
    assert server.get(f"/flush_cache?timeout={timeout}").status_code == 400


@pytest.mark.parametrize("order", [{"rid": "r1"}, {"abort_all": True}])
def test_an_aborted_request_ends_with_that_reason(start_server, order):
    server = start_server(LONG, step_s=0.02)
    with server.post("/generate", {"text": "x", "rid": "r1", "stream": True}, stream=True) as response:
        lines = filter(None, response.iter_lines())
        next(lines)
        assert server.post("/abort_request", order).json() == {"num_aborted": 1}
        *_, last, done = lines
    assert parse_event(last)["meta_info"]["finish_reason"] == {
        "type": "abort",
        "message": "aborted on request",
    }
    assert parse_event(done) == "[DONE]"


def test_aborting_an_unknown_request_does_nothing(start_server):
    server = start_server("ab")
    assert server.post("/abort_request", {"rid": "nobody"}).json() == {"num_aborted": 0}


def test_an_abort_without_a_name_is_refused(start_server):
    server = start_server("ab")
    assert server.post("/abort_request", {"abort_all": 1}).status_code == 400


def test_requests_run_side_by_side(start_server):
    server = start_server(LONG, step_s=0.005)
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(server.post("/generate", {"text": "x"}).json()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.engine.num_in_flight == 8)
    for thread in threads:
        thread.join()
    assert [answer["text"] for answer in answers] == [answers[0]["text"]] * 8


def _chat(**options):
    return {"messages": [{"role": "user", "content": "fox"}], **options}


def test_a_tree_is_verified_with_its_root(start_server, monkeypatch):
    server = start_server("the lazy dog")
    told = server.engine.describe()
    monkeypatch.setattr(server.engine, "describe", lambda: told | {"budget": 8})
    assert server.get("/server_info").json()["speculative_num_draft_tokens"] == 9
