"""Processes that are not ours."""

import contextlib
import subprocess
import sys

LISTEN = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
server.accept()
"""


@contextlib.contextmanager
def stranger(port):
    """A process that listens at `port` until the block ends."""
    process = subprocess.Popen([sys.executable, "-c", LISTEN, str(port)], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()
