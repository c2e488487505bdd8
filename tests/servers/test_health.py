"""Why a server that has died did so, as its supervisor and its log tell it."""

from dataclasses import dataclass

import pytest
from tests.servers.factories import make_handle, make_spec

from draftbench.errors import ServerDied
from draftbench.servers.health import check_identity


@dataclass
class Dead:
    """A supervisor of a server that has ended."""

    cause: str
    log: str

    def failure(self, _handle):
        return self.cause

    def log_since(self, _handle, _cursor):
        return self.log


@pytest.mark.parametrize(
    ("cause", "log", "reason", "words"),
    [
        (
            "it exited with status 1",
            "loading\nno such option\n \n",
            "crash",
            "its last words: no such option;",
        ),
        ("it exited with status 1", "", "crash", "it had said nothing;"),
        ("it exited with status 1", "CUDA out of memory\nbye\n", "oom", "its last words: bye;"),
        ("the kernel ended it: out of memory", "loading\n", "oom", "its last words: loading;"),
        ("it exited with status 1", "out of memory\n" + "later\n" * 2000, "crash", "its last words: later;"),
    ],
)
def test_the_reason_is_memory_where_the_supervisor_or_the_end_of_the_log_says_so(cause, log, reason, words):
    with pytest.raises(ServerDied, match=f"tp8-ar: expected it to run, but {cause}, {words}") as error:
        check_identity(make_handle(make_spec()), Dead(cause, log))
    assert error.value.reason == reason
