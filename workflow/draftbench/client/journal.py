"""SGLang's decode lines, old and new: what the server's own log says of a cell."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from draftbench.errors import MeasurementError
from draftbench.records import JournalStats

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
DECODE = re.compile(r"Decode batch\b(?:\s*\[\d+\])?\s*[.,]?\s*(?P<fields>.*)")
RANK = re.compile(r"\b(?P<kind>DP|TP|PP)(?P<rank>\d+)\b")
NUMBER = re.compile(r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$")
DECODE_LOG_INTERVAL = 40  # decode steps a line covers, SGLang's default
PROBLEMS: dict[str, re.Pattern[str]] = {
    "retraction": re.compile(r"\bretract(?:ed|ing)? requests?\b", re.IGNORECASE),
    "kv-full": re.compile(r"kv cache pool is full|out of kv cache|no available kv", re.IGNORECASE),
    "out-of-memory": re.compile(r"out of memory|outofmemoryerror|\boom-kill", re.IGNORECASE),
    "xid": re.compile(r"\bxid\b.*:\s*\d+", re.IGNORECASE),
    "restart": re.compile(r"server is fired up and ready|started server process", re.IGNORECASE),
    "crash": re.compile(r"scheduler hit an exception|segmentation fault|watchdog timeout", re.IGNORECASE),
}


@dataclass(frozen=True)
class DecodeLine:
    """One decode line: what it says, and which rank printed it."""

    values: dict[str, float]
    data_rank: int = 0
    tensor_rank: int = 0

    @property
    def accept_length(self) -> float | None:
        """Tokens per verification in the line's window; None under autoregressive decoding."""
        length = self.values.get("accept len")
        return length if length else None

    @property
    def num_tokens(self) -> float:
        """Tokens generated in the line's window, `DECODE_LOG_INTERVAL` steps of each running request."""
        running = self.values.get("#running-req", 0.0)
        return running * DECODE_LOG_INTERVAL * (self.accept_length or 1.0)


def parse_decode_line(line: str) -> DecodeLine | None:
    """Read a decode line by its keys, in whichever order and form; None for any other line."""
    plain = ANSI.sub("", line)
    match = DECODE.search(plain)
    if match is None:
        return None
    values = {}
    for part in match["fields"].split(", "):
        key, separator, value = part.rpartition(":")
        value = value.strip().rstrip(",")
        if separator and NUMBER.match(value):
            values[key.strip()] = float(value)
    ranks = {found["kind"]: int(found["rank"]) for found in RANK.finditer(plain[: match.start()])}
    return DecodeLine(values, ranks.get("DP", 0), ranks.get("TP", 0))


def summarise_journal(text: str, num_draft_tokens: int | None = None) -> JournalStats:
    """Statistics of the decode lines and problems in a part of a server's log.

    The accept length is pooled: all tokens of the windows divided by all their verifications. Tensor-parallel
    ranks print the same line, so only the lowest one of each data-parallel rank counts.

    Args:
        text: the log between the cell's start and end.
        num_draft_tokens: the server's `speculative_num_draft_tokens`, root included; tells which accept rate
            the server prints.
    """
    lines = text.splitlines()
    decode = _one_rank_each([line for line in map(parse_decode_line, lines) if line is not None])
    windows = [(line.num_tokens, line.accept_length) for line in decode if line.num_tokens > 0]
    accepting = [(tokens, length) for tokens, length in windows if length is not None]
    speeds = [(line.num_tokens, line.values.get("gen throughput (token/s)", 0.0)) for line in decode]
    lengths = [length for _, length in accepting]
    told = [accept_rate_kind(line, num_draft_tokens) for line in decode if line.accept_length is not None]
    kinds = {kind for kind in told if kind is not None}
    rates = [(line.num_tokens, line.values["accept rate"]) for line in decode if "accept rate" in line.values]
    has_one_kind = len(kinds) == 1
    return JournalStats(
        num_lines=len(decode),
        accept_length=_harmonic(accepting),
        window_spread=max(lengths) - min(lengths) if lengths else None,
        gen_tok_per_s=_harmonic([(tokens, speed) for tokens, speed in speeds if speed > 0]),
        accept_rate=_mean(rates) if has_one_kind and accepting else None,
        accept_rate_kind=kinds.pop() if has_one_kind else ("unknown" if told else None),
        problems=find_problems(lines),
    )


def num_window_tokens(text: str) -> float:
    """Tokens in the windows of a log's decode lines; the last, unfinished window is never printed."""
    decode = _one_rank_each([line for line in map(parse_decode_line, text.splitlines()) if line is not None])
    return sum(line.num_tokens for line in decode)


def accept_rate_kind(line: DecodeLine, num_draft_tokens: int | None) -> str | None:
    """Which of SGLang's two accept rates a line prints, told from its own accept length.

    Until April 2026 (pull request 23530) the rate was accept length / draft tokens, since then
    accepted / (verifications x (draft tokens - 1)). Both round to two digits, and near full acceptance
    they are the same number: such a line tells nothing, None.
    """
    length, rate = line.accept_length, line.values.get("accept rate")
    if length is None or rate is None or num_draft_tokens is None or num_draft_tokens < 2:
        return "unknown"
    is_new = abs(rate - (length - 1) / (num_draft_tokens - 1)) <= 0.011
    is_old = abs(rate - length / num_draft_tokens) <= 0.011
    if is_new and is_old:
        return None
    if not is_new and not is_old:
        return "unknown"
    return "accepted-per-proposed" if is_new else "emitted-per-draft-size"


def find_problems(lines: Iterable[str]) -> list[str]:
    """`name: line` of the first line of each kind of problem."""
    found: dict[str, str] = {}
    for line in lines:
        plain = ANSI.sub("", line).strip()
        if DECODE.search(plain):
            continue
        for name, pattern in PROBLEMS.items():
            if name not in found and pattern.search(plain):
                found[name] = f"{name}: {plain[:200]}"
    return list(found.values())


def _one_rank_each(lines: Sequence[DecodeLine]) -> list[DecodeLine]:
    lowest: dict[int, int] = {}
    for line in lines:
        lowest[line.data_rank] = min(line.tensor_rank, lowest.get(line.data_rank, line.tensor_rank))
    return [line for line in lines if line.tensor_rank == lowest[line.data_rank]]


def _harmonic(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Rate over several windows: sum of amounts / sum of (amount / rate)."""
    whole = sum(amount / rate for amount, rate in pairs)
    return sum(amount for amount, _ in pairs) / whole if whole > 0 else None


def _mean(pairs: Sequence[tuple[float, float]]) -> float | None:
    weight = sum(amount for amount, _ in pairs)
    return sum(amount * value for amount, value in pairs) / weight if weight > 0 else None


class Journal(Protocol):
    """A server's log that can be cut at two moments: a file by offsets, a systemd unit by cursors."""

    def mark(self) -> Any:
        """Where the log ends now."""

    def read(self, start: Any, end: Any) -> str:
        """What was written between two marks.

        Raises:
            MeasurementError: the log was replaced in between, as by a restart.
        """


class LogFile:
    """A log file as a journal; a mark is the file's identity and size."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)

    def mark(self) -> tuple[int, int]:
        """Inode and size; zeros while the file does not exist."""
        if not self._path.exists():
            return (0, 0)
        status = self._path.stat()
        return (status.st_ino, status.st_size)

    def read(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        """The text between two marks."""
        if start[0] not in (0, end[0]) or end[1] < start[1]:
            raise MeasurementError(
                f"expected {self._path} to grow during the cell, got another or a shorter file; "
                "leave the log alone while it is measured"
            )
        if not end[0]:
            return ""
        with open(self._path, "rb") as stream:
            stream.seek(start[1])
            return stream.read(end[1] - start[1]).decode(errors="replace")
