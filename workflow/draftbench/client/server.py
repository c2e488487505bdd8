"""The few things asked of a server beside generation: its cache flushed, its own account of itself."""

import logging
import time
from typing import Any

import requests

from draftbench.errors import ServerError

logger = logging.getLogger(__name__)
RETRY_PAUSE_S = 0.2


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    return session


def flush_cache(base_url: str, limit_s: float) -> None:
    """Drop the server's prefix cache. It refuses with 400 while requests run, also just after the last one.

    Raises:
        ServerError: it did not succeed within `limit_s`.
    """
    end_s = time.monotonic() + limit_s
    answer = "no answer"
    with _session() as session:
        while True:
            try:
                response = session.post(f"{base_url}/flush_cache", timeout=max(end_s - time.monotonic(), 0.1))
            except requests.RequestException as error:
                raise ServerError(f"expected {base_url}/flush_cache to answer, got {error}") from error
            if response.status_code == 200:
                return
            answer = f"HTTP {response.status_code}: {response.text[:200]}"
            if response.status_code != 400 or time.monotonic() + RETRY_PAUSE_S > end_s:
                raise ServerError(
                    f"expected {base_url}/flush_cache to succeed within {limit_s:g} s, got {answer}; "
                    "see whether other requests run on that server"
                )
            logger.info("cache not flushed yet (%s), trying again", answer)
            time.sleep(RETRY_PAUSE_S)


def server_info(base_url: str, limit_s: float = 10.0) -> dict[str, Any]:
    """What the server says of itself, resolved settings and counters.

    Raises:
        ServerError: it does not answer with a JSON object in time.
    """
    try:
        with _session() as session:
            response = session.get(f"{base_url.rstrip('/')}/server_info", timeout=limit_s)
            response.raise_for_status()
            info = response.json()
    except (requests.RequestException, ValueError) as error:
        raise ServerError(f"expected a JSON object from {base_url}/server_info, got {error}") from error
    if not isinstance(info, dict):
        raise ServerError(f"expected a JSON object from {base_url}/server_info, got a {type(info).__name__}")
    return info


def generate(base_url: str, body: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """A whole answer of `/generate`, beside the measurement; measured requests are streamed.

    Raises:
        ServerError: it does not answer with a JSON object in time.
    """
    try:
        with _session() as session:
            response = session.post(f"{base_url}/generate", json=body, timeout=limit_s)
            if response.status_code != 200:
                raise ServerError(
                    f"expected {base_url}/generate to answer, got HTTP {response.status_code}: "
                    f"{response.text[:200]}"
                )
            answer = response.json()
    except (requests.RequestException, ValueError) as error:
        raise ServerError(f"expected a JSON object from {base_url}/generate, got {error}") from error
    if not isinstance(answer, dict):
        raise ServerError(f"expected a JSON object from {base_url}/generate, got a {type(answer).__name__}")
    return answer


def is_speculative_server(base_url: str) -> bool | None:
    """Whether the server decodes speculatively, None where it does not say."""
    try:
        info = server_info(base_url, limit_s=2.0)
    except ServerError as error:
        logger.info("the method is not known: %s", error)
        return None
    if "speculative_algorithm" not in info:
        return None
    return info["speculative_algorithm"] not in (None, "", "NONE")


def mean_accept_length(info: dict[str, Any]) -> float | None:
    """Accept length over all ranks of `/server_info`; a lifetime figure, so a cross-check only.

    Ranks are weighted by the tokens they counted where the server gives such a count, else equally: rank 0
    alone, as some clients read it, may be stale under data parallelism.
    """
    states = info.get("internal_states")
    pairs = (
        [_rank_figure(state) for state in states if isinstance(state, dict)]
        if isinstance(states, list)
        else []
    )
    known = [(length, weight) for length, weight in pairs if length is not None]
    if not known:
        return None
    total = sum(weight for _, weight in known)
    return sum(length * weight for length, weight in known) / total if total > 0 else None


def _rank_figure(state: dict[str, Any]) -> tuple[float | None, float]:
    length, weight = state.get("avg_spec_accept_length"), state.get("num_generated_tokens")
    return (
        float(length) if isinstance(length, int | float) else None,
        float(weight) if isinstance(weight, int | float) else 1.0,
    )
