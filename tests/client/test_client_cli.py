"""`python -m draftbench.client`: its record, exit code and last line, whatever the server does."""

import json
import socket
import subprocess
import sys

import pytest
from fault_server import HANG, FaultServer, answer, chunked
from plans import APIS
from streams import Stream, event

FIELDS = {
    *("status", "error", "finish_reason", "num_prompt_tokens", "num_output_tokens"),
    *("ttft_s", "tpot_s", "e2e_s", "text", "output_ids", "num_rounds", "tau"),
}


@pytest.fixture
def command(tmp_path):
    """Run the command; exit code, record or None, and what it printed."""

    def run(base_url, *options, prompt="Grüße\n"):
        prompt_file, out = tmp_path / "prompt.txt", tmp_path / "out" / "record.json"
        if prompt is not None:
            prompt_file.write_text(prompt, encoding="utf-8")
        defaults = ["--base-url", base_url, "--model", "target", "--prompt-file", prompt_file, "--out", out]
        done = subprocess.run(
            [sys.executable, "-m", "draftbench.client", *map(str, defaults), "--max-tokens", "4", *options],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        record = json.loads(out.read_text()) if out.exists() else None
        return done.returncode, record, done

    return run


def script(api, speculative_algorithm=None):
    def play(call):
        if call.path == "/server_info":
            return [answer("200 OK", {"speculative_algorithm": speculative_algorithm})]
        return chunked(Stream(api).whole(4))

    return play


@pytest.mark.parametrize("api", APIS)
def test_a_good_request_exits_with_0(command, api):
    with FaultServer(script(api)) as server:
        code, record, done = command(server.base_url, "--api", api)
        body = server.calls[0].json
    assert code == 0, done.stderr
    assert record.keys() >= FIELDS
    assert (record["status"], record["num_output_tokens"], record["tau"]) == ("ok", 4, 1.0)
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "ok"
    sent = {"generate": "text", "completions": "prompt"}
    assert (
        body["messages"] == [{"role": "user", "content": "Grüße\n"}]
        if api == "chat"
        else body[sent[api]] == "Grüße\n"
    )


def test_generate_is_the_default_and_end_of_text_is_ignored(command):
    with FaultServer(script("generate")) as server:
        command(server.base_url)
        assert server.calls[0].path == "/generate"
        assert server.calls[0].json["sampling_params"]["ignore_eos"] is True


def test_an_answer_may_end_by_itself_when_asked_for(command):
    with FaultServer(lambda _call: chunked(Stream("chat").whole(2))) as server:
        assert command(server.base_url, "--api", "chat")[1]["status"] == "short"
        code, record, _ = command(server.base_url, "--api", "chat", "--no-ignore-eos")
        assert server.calls[-2].json["ignore_eos"] is False or server.calls[-1].json["ignore_eos"] is False
    assert (code, record["status"]) == (0, "ok")


def test_tau_is_undefined_where_the_method_is_not_known(command):
    with FaultServer(script("generate", "DFLASH")) as server:
        code, record, _ = command(server.base_url)
    assert (code, record["tau"], record["num_rounds"]) == (0, None, None)


FAULTS = {
    "error in the stream": lambda _call: chunked([event({"error": {"message": "no slots"}})]),
    "http error": lambda _call: [answer("500 Oops", {"error": {"message": "no slots"}})],
    "short": lambda _call: chunked(Stream("generate").whole(2)),
    "stalled": lambda _call: chunked([Stream("generate").token(), HANG]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_measurement_exits_with_1_and_still_writes_its_record(command, fault):
    with FaultServer(FAULTS[fault]) as server:
        code, record, done = command(server.base_url, "--idle-timeout-s", "0.5")
    assert code == 1
    assert record["status"] in ("failed", "short")
    assert record["error"]
    assert json.loads(done.stdout.splitlines()[-1])["error"] == record["error"]
    assert record["error"] in done.stderr


def test_a_total_limit_is_kept(command):
    with FaultServer(lambda _call: chunked(Stream("generate").whole(40, pause_s=0.1))) as server:
        code, record, _ = command(server.base_url, "--timeout-s", "0.5")
    assert (code, record["status"]) == (1, "failed")
    assert "0.5 s" in record["error"]


def test_a_dead_server_exits_with_1_and_writes_its_record(command):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    code, record, _ = command(f"http://127.0.0.1:{port}")
    assert (code, record["status"], record["ttft_s"]) == (1, "failed", None)
    assert "refused" in record["error"]


@pytest.mark.parametrize(
    "options",
    [
        ["--max-tokens", "0"],
        ["--max-tokens", "many"],
        ["--api", "chats"],
        ["--timeout-s", "-1"],
        ["--idle-timeout-s", "nan"],
        ["--base-url", "127.0.0.1:30000"],
        ["--unknown"],
        ["--prompt-file", "absent.txt"],
    ],
)
def test_wrong_usage_exits_with_2_and_writes_nothing(command, options):
    code, record, done = command("http://127.0.0.1:9", *options)
    assert (code, record) == (2, None)
    assert done.stderr.strip()


def test_the_client_needs_no_model_library():
    code = "import sys, draftbench.client.__main__, draftbench.client.cell; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "pandas", "numpy"} & set(done.stdout.split())
