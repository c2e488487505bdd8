"""Writes a safetensors checkpoint larger than memory: shards side by side, each tensor in blocks of rows."""

import json
import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from draftbench.files import write_json
from draftbench.staging.noise import WORD_TYPES, Words

SHARD_BYTES = 1 << 30  # one thread writes one shard, so many small shards keep many cores busy
BLOCK_BYTES = 1 << 20  # fits the cache of one core
MAX_THREADS = 16


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor that is made while it is written.

    Attributes:
        name: its key in the checkpoint.
        shape: its size in each dimension.
        dtype: safetensors' name, `BF16`, `F16` or `F32`.
        start: called once by the thread that writes it; returns a function that gives rows [first, last)
            of the flattened-to-2-D tensor as words, called in order without gaps.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    start: Callable[[], Callable[[int, int], Words]]

    @property
    def num_bytes(self) -> int:
        """Size of its data."""
        return prod(self.shape) * np.dtype(WORD_TYPES[self.dtype]).itemsize


def write_checkpoint(
    tensors: Sequence[PlannedTensor], directory: Path, shard_bytes: int = SHARD_BYTES
) -> int:
    """Write `tensors` into `directory` as `model-*.safetensors` and their index; returns the bytes of data.

    One shard is named `model.safetensors` and needs no index. Memory: one block of rows a thread.

    Raises:
        OSError: the file system refused a write, for example because it is full.
    """
    shards = _group(tensors, shard_bytes)
    names = _shard_names(len(shards))
    num_threads = min(MAX_THREADS, os.cpu_count() or 1, len(shards))
    with ThreadPoolExecutor(num_threads) as pool:
        writes = [pool.submit(_write_shard, directory / n, s) for n, s in zip(names, shards, strict=True)]
        for write in writes:
            write.result()
    num_bytes = sum(tensor.num_bytes for tensor in tensors)
    if len(shards) > 1:
        places = {tensor.name: n for n, shard in zip(names, shards, strict=True) for tensor in shard}
        index = {"metadata": {"total_size": num_bytes}, "weight_map": places}
        write_json(directory / "model.safetensors.index.json", index)
    return num_bytes


def _group(tensors: Sequence[PlannedTensor], shard_bytes: int) -> list[list[PlannedTensor]]:
    shards: list[list[PlannedTensor]] = []
    room = 0
    for tensor in tensors:
        if not shards or tensor.num_bytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(tensor)
        room -= tensor.num_bytes
    return shards


def _shard_names(num_shards: int) -> list[str]:
    if num_shards == 1:
        return ["model.safetensors"]
    return [f"model-{i:05d}-of-{num_shards:05d}.safetensors" for i in range(1, num_shards + 1)]


def _write_shard(path: Path, tensors: Sequence[PlannedTensor]) -> None:
    with open(path, "wb") as stream:
        stream.write(_header(tensors))
        for tensor in tensors:
            rows_at = tensor.start()
            num_rows = tensor.shape[0]
            step = max(1, BLOCK_BYTES * num_rows // tensor.num_bytes)
            for first in range(0, num_rows, step):
                stream.write(rows_at(first, min(first + step, num_rows)).data)
        stream.flush()
        os.fsync(stream.fileno())


def _header(tensors: Sequence[PlannedTensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.num_bytes
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts on a multiple of 8 bytes
    return struct.pack("<Q", len(text)) + text
