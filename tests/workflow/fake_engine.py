"""A stand-in for `python -m draftbench.engine`: the same options and answers, no model, its life on record.

Appends start, ready, request and stop events to $FAKE_EVENTS. Reads its behaviour, at every use, from the
JSON object in $FAKE_BEHAVIOUR: `token_s` (pause before each chunk), `stop_s` (pause before it ends on
SIGTERM), `drifting` (in `ar`'s n-th start the pause is n times as long in answers of so many tokens), and by
method (`ar`, `dflash`, `ddtree-b<budget>`) one of `exit` (ends at once), `out-of-memory`, `never-ready`,
`fail` (answers 500), `fail-<n>` (only where n tokens are asked for), `short` (answers a token less than asked
for), `mute` (answers without tokens), `strange` (answers as no engine does), `lie` (names another model),
`die` (ends in the middle of an answer).
"""

import argparse
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module")
    for name in ("model-path", "host", "dtype", "device", "served-model-name", "max-running-requests"):
        parser.add_argument(f"--{name}")
    for name in ("speculative-algorithm", "speculative-draft-model-path"):
        parser.add_argument(f"--{name}")
    for name in ("port", "context-length", "random-seed", "num-threads"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("speculative-dflash-block-size", "speculative-ddtree-budget"):
        parser.add_argument(f"--{name}", type=int)
    return parser.parse_args()


OPTIONS = parse()
BUDGET = OPTIONS.speculative_ddtree_budget
METHOD = (OPTIONS.speculative_algorithm or "ar").lower() + (f"-b{BUDGET}" if BUDGET else "")
TOKENS_PER_ROUND = 1 if METHOD == "ar" else 2


def record(event):
    line = {"event": event, "method": METHOD, "pid": os.getpid(), "time_s": time.monotonic()}
    line["omp"] = os.environ.get("OMP_NUM_THREADS")
    with open(os.environ["FAKE_EVENTS"], "a") as stream:
        stream.write(json.dumps(line) + "\n")


def behaviour():
    return json.loads(Path(os.environ["FAKE_BEHAVIOUR"]).read_text())


def asked_tokens(body):
    return body["sampling_params"]["max_new_tokens"]


def pause_s(max_tokens):
    is_drifting = METHOD == "ar" and behaviour().get("drifting") == max_tokens
    return behaviour().get("token_s", 0.001) * (num_starts() if is_drifting else 1)


def num_starts():
    """Of this method's servers so far, this one included."""
    events = [json.loads(line) for line in Path(os.environ["FAKE_EVENTS"]).read_text().splitlines()]
    return sum((event["event"], event["method"]) == ("start", METHOD) for event in events)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/health":
            self.answer({}, 503 if behaviour().get(METHOD) == "never-ready" else 200)
        elif self.path == "/server_info":
            info = vars(OPTIONS) | {"version": "fake", "pid": os.getpid()}
            if behaviour().get(METHOD) == "lie":
                info["model_path"] = "/somewhere/else"
            self.answer(info)
        else:
            self.answer({"error": {"message": f"no {self.path}"}}, 404)

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        if self.path == "/flush_cache":
            self.answer({})
        elif body.get("stream") and behaviour().get(METHOD) in ("fail", f"fail-{asked_tokens(body)}"):
            self.answer({"error": {"message": "a scripted fault"}}, 500)
        elif behaviour().get(METHOD) == "mute":
            self.answer({"text": "", "meta_info": {"completion_tokens": 0}})
        elif behaviour().get(METHOD) == "strange":
            self.answer({"text": "a text"})
        else:
            record("request")
            self.generate(body)

    def generate(self, body):
        max_tokens = asked_tokens(body) - (behaviour().get(METHOD) == "short")
        sizes = [1] + [TOKENS_PER_ROUND] * ((max_tokens - 1) // TOKENS_PER_ROUND)
        sizes += [max_tokens - sum(sizes)] if sum(sizes) < max_tokens else []
        if not body.get("stream"):
            self.answer(self.event(body, sizes, len(sizes)))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(1, len(sizes) + 1):
            time.sleep(pause_s(max_tokens))
            if number > 1 and behaviour().get(METHOD) == "die":
                os._exit(1)
            event = json.dumps(self.event(body, sizes, number))
            self.wfile.write(f"data: {event}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, body, sizes, number):
        num_tokens = sum(sizes[:number])
        is_last = number == len(sizes)
        meta = {
            "finish_reason": {"type": "length", "length": num_tokens} if is_last else None,
            "prompt_tokens": len(body["text"].split()),
            "completion_tokens": num_tokens,
            "cached_tokens": 0,
        }
        if is_last and METHOD != "ar":
            accepted = [size - 1 for size in sizes[1:]]
            most = max(accepted, default=0)
            meta |= {
                "spec_verify_ct": len(accepted),
                "spec_num_correct_drafts": sum(accepted),
                "spec_num_proposed_drafts": 15 * len(accepted),
                "spec_correct_drafts_histogram": [accepted.count(k) for k in range(most + 1)],
            }
        return {"text": " w" * num_tokens, "output_ids": list(range(num_tokens)), "meta_info": meta}


def main():
    record("start")
    kind = behaviour().get(METHOD)
    if kind == "exit":
        print("a beginning\na scripted end", flush=True)
        sys.exit(3)
    if kind == "out-of-memory":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
        sys.exit(1)

    def stop(*_):
        record("stop")
        time.sleep(behaviour().get("stop_s", 0))
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    server = ThreadingHTTPServer(("127.0.0.1", OPTIONS.port), Handler)
    record("ready")
    server.serve_forever()


if __name__ == "__main__":
    main()
