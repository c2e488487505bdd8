import contextlib
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import requests
from tiny_folder import write_drafter, write_target, write_tokenizer
from watching import parse_event

READY = "The server is fired up and ready to roll!"
GREEDY = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}


class Process:
    """A server process whose log is read while it runs."""

    def __init__(self, argv):
        self._process = subprocess.Popen([sys.executable, *map(str, argv)], stderr=subprocess.PIPE, text=True)
        self.log = []

    def wait_for(self, words):
        for line in self._process.stderr:
            self.log.append(line)
            if words in line:
                return self
        raise AssertionError(f"{words!r} is not in the log:\n{''.join(self.log)}")

    @property
    def url(self):
        (line,) = [line for line in self.log if "Claimed" in line]
        return line.split("Claimed ")[1].split(",")[0].strip()

    def send(self, number):
        self._process.send_signal(number)

    def end(self, number):
        """Send a signal; the exit code and the seconds until the process is gone."""
        start_s = time.monotonic()
        self.send(number)
        return self._process.wait(20), time.monotonic() - start_s

    def close(self):
        self._process.kill()
        self._process.wait(20)
        self._process.stderr.close()


@pytest.fixture
def start():
    with contextlib.ExitStack() as stack:

        def start_process(*argv):
            process = Process(argv)
            stack.callback(process.close)
            return process

        yield start_process


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_target(folder / "target")
    write_drafter(folder / "drafter")
    (folder / "tokenizer").mkdir()
    write_tokenizer(folder / "tokenizer")
    return folder


def _engine(models, *options, port=0):
    target = ("--model-path", models / "target", "--port", port, "--num-threads", 1, "--dtype", "float32")
    return ("-m", "draftbench.engine", *target, *options)


def _tree(models, budget):
    drafter = ("--speculative-draft-model-path", models / "drafter")
    return ("--speculative-algorithm", "DDTREE", *drafter, "--speculative-ddtree-budget", budget)


def _scripted(models, text, *, step_s, port=0):
    return (Path(__file__).parent / "scripted_server.py", port, models / "tokenizer", step_s, text)


def _end_while_streaming(server):
    """SIGTERM after the first events; the exit code, the seconds it took, and the last two events."""
    lines = []

    def read():
        sampling = {"max_new_tokens": 4000, "ignore_eos": True}
        body = {"text": "fox", "stream": True, "sampling_params": sampling}
        with requests.post(server.url + "/generate", json=body, stream=True, timeout=20) as response:
            lines.extend(filter(None, response.iter_lines()))

    with requests.Session() as session:
        reader = threading.Thread(target=read)
        reader.start()
        while not session.get(server.url + "/server_info", timeout=20).json()["num_running"]:
            time.sleep(0.005)
    code, seconds = server.end(signal.SIGTERM)
    reader.join()
    return code, seconds, [parse_event(line) for line in lines[-2:]]


@pytest.fixture(scope="module")
def tree_server(models):
    process = Process(_engine(models, *_tree(models, 12), "--served-model-name", "tiny"))
    yield process.wait_for(READY)
    process.close()


def test_a_real_engine_answers_with_the_tokens_of_its_rounds(tree_server):
    body = {"text": "the quick brown fox", "sampling_params": GREEDY}
    answer = requests.post(tree_server.url + "/generate", json=body, timeout=20).json()
    meta = answer["meta_info"]
    assert len(answer["output_ids"]) == meta["completion_tokens"] == 40
    assert meta["spec_verify_ct"] + meta["spec_num_correct_drafts"] >= 39
    assert sum(meta["spec_correct_drafts_histogram"]) == meta["spec_verify_ct"]


def test_a_real_engine_tells_what_it_was_started_with(tree_server):
    info = requests.get(tree_server.url + "/server_info", timeout=20).json()
    assert (info["speculative_algorithm"], info["budget"], info["dtype"]) == ("DDTREE", 12, "float32")
    assert info["speculative_num_draft_tokens"] == 13
    assert "draftbench.engine" in info["argv"]


def test_a_real_engine_reuses_the_first_turn_of_a_chat(tree_server):
    messages = [{"role": "user", "content": "draft, verify"}]
    counts = []
    for _ in range(2):
        body = {"messages": messages, "temperature": 0, "max_tokens": 8}
        answer = requests.post(tree_server.url + "/v1/chat/completions", json=body, timeout=20).json()
        counts.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "more"}]
    assert counts[0] == 0 < counts[1]
    assert answer["model"] == "tiny"


def test_an_interrupt_ends_an_idle_server(start, models):
    assert start(*_scripted(models, "ab", step_s=0)).wait_for(READY).end(signal.SIGINT)[0] == 0


def test_a_signal_aborts_a_real_stream_within_five_seconds(start, models):
    code, seconds, (last, done) = _end_while_streaming(start(*_engine(models)).wait_for(READY))
    assert (code, done) == (0, "[DONE]")
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert seconds < 5


def test_a_signal_lets_a_nearly_finished_request_end(start, models):
    server = start(*_scripted(models, "0123456789", step_s=0.1)).wait_for(READY)
    code, _, (last, done) = _end_while_streaming(server)
    assert (code, done) == (0, "[DONE]")
    assert last["text"] == "0123456789"


def test_a_second_signal_does_not_wait_for_requests(start, models):
    server = start(*_scripted(models, "0123456789" * 20, step_s=0.1)).wait_for(READY)
    with requests.post(server.url + "/generate", json={"text": "x", "stream": True}, stream=True, timeout=20):
        server.send(signal.SIGINT)
        time.sleep(0.3)
        code, seconds = server.end(signal.SIGINT)
    assert code == 0
    assert seconds < 1.9


def test_a_signal_while_the_model_loads_ends_the_process(start, models):
    server = start(*_engine(models)).wait_for("Claimed")
    assert server.end(signal.SIGTERM)[0] == 0


def test_a_port_serves_again_at_once(start, models):
    first = start(*_scripted(models, "ab", step_s=0)).wait_for(READY)
    requests.post(first.url + "/generate", json={"text": "x"}, timeout=20)
    first.end(signal.SIGTERM)
    second = start(*_scripted(models, "ab", step_s=0, port=first.url.rsplit(":", 1)[1])).wait_for(READY)
    assert requests.get(second.url + "/health", timeout=20).status_code == 200


def test_a_short_answer_on_a_kept_connection_does_not_wait_for_acknowledgements(start, models):
    server = start(*_scripted(models, "ab", step_s=0)).wait_for(READY)
    seconds = []
    with requests.Session() as session:
        for _ in range(15):
            start_s = time.monotonic()
            session.post(server.url + "/generate", json={"text": "x"}, timeout=20)
            seconds.append(time.monotonic() - start_s)
    assert statistics.median(seconds) < 0.035  # 44 ms with Nagle's algorithm, under 2 ms without


def test_a_taken_port_is_told_before_the_model_is_read(models):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, log = _run(*_engine(models, port=taken.getsockname()[1]))
    assert code == 1
    assert log.startswith("error: expected a free address, got 127.0.0.1:")
    assert "Address already in use" in log
    assert log.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "code", "fragment"),
    [
        (("--speculative-draft-model-path", "drafter"), 1, "got no algorithm and drafter; give both or none"),
        (("--speculative-ddtree-budget", "8"), 1, "expected budget with DDTREE only, got it with None"),
        (("--model-path", "nowhere"), 1, "expected a tokenizer in nowhere/tokenizer.json"),
        (("--speculative-algorithm", "EAGLE"), 2, "invalid choice: 'EAGLE'"),
        (("--dtype", "int8"), 2, "invalid choice: 'int8'"),
        (("--port", "70000"), 1, "port must be 0-65535"),
        (("--unknown", "1"), 2, "unrecognized arguments: --unknown"),
    ],
)
def test_a_wrong_option_ends_the_start(models, options, code, fragment):
    result, log = _run(*_engine(models), *options)
    assert result == code
    assert fragment in log.splitlines()[-1]


def test_a_budget_of_0_ends_the_start(models):
    code, log = _run(*_engine(models, *_tree(models, 0)))
    assert code == 1
    assert "expected budget from 1" in log.splitlines()[-1]


def _run(*argv):
    done = subprocess.run(
        [sys.executable, *map(str, argv)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr
