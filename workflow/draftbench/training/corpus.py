"""A corpus: conversations as token ids, with the target's own tokens marked.

On disk one `.npz` without pickles: all tokens end to end as uint16 (uint32 for larger vocabularies), one
bit a token that says whether the target wrote it, and where each conversation starts.
"""

import io
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftbench.files import write_atomic


@dataclass(frozen=True)
class Conversation:
    """One conversation.

    Attributes:
        ids: [S] int64 token ids, chat template included.
        is_response: [S] bool, True where the target wrote the token.
        is_greedy: whether the target wrote at temperature 0.
    """

    ids: NDArray[np.int64]
    is_response: NDArray[np.bool_]
    is_greedy: bool


def save_corpus(path: Path, conversations: Sequence[Conversation]) -> None:
    """Write a corpus file, atomically and deterministically."""
    lengths = np.array([len(item.ids) for item in conversations], dtype=np.int64)
    ids = np.concatenate([item.ids for item in conversations])
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        tokens=ids.astype(np.uint16 if ids.max() < 2**16 else np.uint32),
        is_response=np.packbits(np.concatenate([item.is_response for item in conversations])),
        lengths=lengths,
        is_greedy=np.array([item.is_greedy for item in conversations]),
    )
    write_atomic(path, buffer.getvalue())


def load_corpus(paths: Iterable[Path]) -> list[Conversation]:
    """Read corpus files into one list."""
    conversations = []
    for path in paths:
        with np.load(path, allow_pickle=False) as stored:
            ends = stored["lengths"].cumsum()[:-1]
            tokens = stored["tokens"].astype(np.int64)
            is_response = np.unpackbits(stored["is_response"], count=len(tokens)).astype(bool)
            parts = zip(np.split(tokens, ends), np.split(is_response, ends), stored["is_greedy"], strict=True)
            conversations += [Conversation(ids, mask, bool(greedy)) for ids, mask, greedy in parts]
    return conversations


@dataclass(frozen=True)
class Rows:
    """Conversations packed into rows of one length.

    Attributes:
        ids: [R, S] int64, 0 in the padding.
        document: [R, S] int32, number of the conversation within its row, -1 in the padding.
        positions: [R, S] int64, position within the conversation.
        is_response: [R, S] bool
    """

    ids: NDArray[np.int64]
    document: NDArray[np.int32]
    positions: NDArray[np.int64]
    is_response: NDArray[np.bool_]


def pack_rows(conversations: Sequence[Conversation], row_length: int) -> Rows:
    """Best-fit packing, longest first; conversations are cut at `row_length`.

    Args:
        conversations: any lengths.
        row_length: S tokens a row.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (free tokens, row), sorted
    order = sorted(range(len(conversations)), key=lambda index: -len(conversations[index].ids))
    for index in order:
        size = min(len(conversations[index].ids), row_length)
        place = bisect_left(free, (size, 0))
        room, row = free.pop(place) if place < len(free) else (row_length, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(index)
        insort(free, (room - size, row))
    packed = Rows(
        ids=np.zeros((len(rows), row_length), dtype=np.int64),
        document=np.full((len(rows), row_length), -1, dtype=np.int32),
        positions=np.zeros((len(rows), row_length), dtype=np.int64),
        is_response=np.zeros((len(rows), row_length), dtype=bool),
    )
    for row, members in enumerate(rows):
        start = 0
        for number, index in enumerate(members):
            size = min(len(conversations[index].ids), row_length)
            part = slice(start, start + size)
            packed.ids[row, part] = conversations[index].ids[:size]
            packed.document[row, part] = number
            packed.positions[row, part] = np.arange(size)
            packed.is_response[row, part] = conversations[index].is_response[:size]
            start += size
    return packed
