"""Is it ready, and is it the one that was started? Asked over HTTP, with the process watched meanwhile."""

import re
import time
from typing import Any

import requests

from draftbench.client.server import server_info
from draftbench.errors import ServerDied, ServerError, StartTimeout, WrongServer
from draftbench.servers import proc
from draftbench.servers.base import ServiceHandle, Supervisor

POLL_S = 0.1
PROBE_LIMIT_S = 30.0
DYING_S = 1.0
TAIL_CHARACTERS = 8000
READY_TOKENS, ALIVE_TOKENS = 8, 1
OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|Cannot allocate memory|bad_alloc", re.IGNORECASE)


def wait_ready(handle: ServiceHandle, supervisor: Supervisor, limit_s: float) -> dict[str, Any]:
    """Wait for a real generation, then check the identity; returns what `/server_info` says.

    Raises:
        ServerDied: its process ended; the sentence has the log's last line.
        StartTimeout: not ready after `limit_s`; the sentence says what was waited for.
        WrongServer: something else answers.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        _refuse_dead(handle, supervisor)
        waited_for = _missing(handle)
        if waited_for is None:
            return check_identity(handle, supervisor)
        if time.monotonic() > deadline_s:
            raise StartTimeout(
                f"{handle.service}: expected {waited_for} from {handle.base_url} within {limit_s:g} s, "
                f"got none; see {handle.log}, or raise limits.ready_s"
            )
        time.sleep(POLL_S)


def is_healthy(handle: ServiceHandle, supervisor: Supervisor) -> bool:
    """It runs, generates, and is the one on record."""
    try:
        _refuse_dead(handle, supervisor)
        # Not /health: SGLang lets it take a second, and a generation says more.
        if _ungenerated(handle, ALIVE_TOKENS):
            return False
        check_identity(handle, supervisor)
    except ServerError:
        return False
    return True


def check_identity(handle: ServiceHandle, supervisor: Supervisor) -> dict[str, Any]:
    """Check that the process on record answers, with what it was started with; returns its `/server_info`.

    Raises:
        ServerDied: the process on record has ended.
        WrongServer: the port belongs to another process, or model, method or TP size differ.
    """
    _refuse_dead(handle, supervisor)
    strangers = [pid for pid in proc.owners(handle.port) if not supervisor.owns(handle, pid)]
    if strangers:
        raise WrongServer(
            f"{handle.service}: expected its own process {handle.spawned.pid} at port {handle.port}, got "
            f"process {strangers[0]} ({proc.command(strangers[0])}); end that one, or choose another port"
        )
    try:
        info = server_info(handle.base_url, PROBE_LIMIT_S)
    except ServerError:
        _await_death(handle, supervisor)
        raise
    for key, wanted in handle.expected.items():
        if info.get(key) != wanted:
            raise WrongServer(
                f"{handle.service}: expected {key} {wanted!r} in {handle.base_url}/server_info, "
                f"got {info.get(key)!r}; see {handle.log}"
            )
    return info


def _await_death(handle: ServiceHandle, supervisor: Supervisor) -> None:
    """A server that no longer answers may be about to end, which would be the better reason."""
    deadline_s = time.monotonic() + DYING_S
    while time.monotonic() < deadline_s:
        _refuse_dead(handle, supervisor)
        time.sleep(POLL_S)


def _refuse_dead(handle: ServiceHandle, supervisor: Supervisor) -> None:
    cause = supervisor.failure(handle)
    if cause is None:
        return
    tail = supervisor.log_since(handle, "")[-TAIL_CHARACTERS:]
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    last = f", its last words: {lines[-1]}" if lines else ", it had said nothing"
    reason = "oom" if OUT_OF_MEMORY.search(f"{cause} {tail}") else "crash"
    raise ServerDied(f"{handle.service}: expected it to run, but {cause}{last}; see {handle.log}", reason)


def _missing(handle: ServiceHandle) -> str | None:
    """What readiness still lacks; a server that says it is healthy must also generate."""
    answer = _ask("GET", f"{handle.base_url}/health")
    if isinstance(answer, str):
        return answer
    return "status 200 of /health" if answer.status_code != 200 else _ungenerated(handle, READY_TOKENS)


def _ungenerated(handle: ServiceHandle, num_tokens: int) -> str | None:
    """What a real generation lacks."""
    sampling = {"max_new_tokens": num_tokens, "temperature": 0.0}
    probe = {"text": "The quick brown fox", "sampling_params": sampling}
    answer = _ask("POST", f"{handle.base_url}/generate", probe)
    if isinstance(answer, str):
        return answer
    return None if answer.status_code == 200 and _has_tokens(answer) else "a generated token"


def _ask(method: str, url: str, body: dict[str, Any] | None = None) -> requests.Response | str:
    """The response, or what there is none of."""
    with requests.Session() as session:
        session.trust_env = False  # a proxy of the environment is not for this host
        try:
            return session.request(method, url, json=body, timeout=PROBE_LIMIT_S)
        except requests.ConnectionError:
            return "a connection"
        except requests.RequestException:
            return "an answer"


def _has_tokens(answer: requests.Response) -> bool:
    try:
        return int(answer.json()["meta_info"]["completion_tokens"]) > 0
    except (ValueError, KeyError, TypeError):
        return False
