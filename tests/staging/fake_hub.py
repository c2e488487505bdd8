"""As much of the Hugging Face hub as one repository's download needs, on loopback."""

import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REVISION = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves `files` of the repository `some/model`, at `REVISION` alone.

    Attributes:
        gets: name and Range header (or None) of every GET of a file.
        break_after: bytes after which the next GET of a larger file ends early, once; None: never.
        num_damaged: GETs whose bytes are wrong.
        stall: a file whose bytes do not come while it is named here.
    """

    def __init__(self, files):
        self.files = files
        self.gets = []
        self.break_after = None
        self.num_damaged = 0
        self.stall = None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.answer(is_head=True)

            def do_GET(self):
                self.answer(is_head=False)

            def answer(self, *, is_head):
                if REVISION not in self.path:
                    self.send_error(404)
                elif self.path.startswith("/api/"):
                    hub.answer_info(self)
                else:
                    hub.answer_file(self, is_head=is_head)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def answer_info(self, request):
        """The repository with its files, or the tree of files alone."""
        is_tree = "/tree/" in request.path
        files = [(_tree_entry if is_tree else _sibling)(*item) for item in self.files.items()]
        value = files if is_tree else {"id": "some/model", "sha": REVISION, "siblings": files}
        body = json.dumps(value).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def answer_file(self, request, *, is_head):
        name = re.search(r"/resolve/[^/]+/(.*)$", request.path).group(1)
        content, start = self.files[name], 0
        asked = re.match(r"bytes=(\d+)-", request.headers.get("Range") or "")
        if asked and not is_head:
            start = int(asked.group(1))
        request.send_response(206 if start else 200)
        request.send_header("ETag", f'"{sha256(content)}"')
        request.send_header("X-Repo-Commit", REVISION)
        request.send_header("Accept-Ranges", "bytes")
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        if is_head:
            return
        self.gets.append((name, request.headers.get("Range")))
        while self.stall == name:
            time.sleep(0.02)
        if self.num_damaged:
            self.num_damaged -= 1
            content = bytes(len(content))
        end = len(content)
        if self.break_after is not None and end > self.break_after:
            end, self.break_after = self.break_after, None
        request.wfile.write(content[start:end])
        request.close_connection = True


def _sibling(name, content):
    lfs = {"sha256": sha256(content), "size": len(content), "pointerSize": 100}
    return {"rfilename": name, "size": len(content), "blobId": "0" * 40, "lfs": lfs}


def _tree_entry(name, content):
    lfs = {"oid": sha256(content), "size": len(content), "pointerSize": 100}
    return {"type": "file", "path": name, "size": len(content), "oid": "0" * 40, "lfs": lfs}


def sha256(content):
    return hashlib.sha256(content).hexdigest()
