"""The move of accepted keys and values for all layers in one launch."""

from collections.abc import Iterable

import triton
import triton.language as tl
from torch import Tensor

WORD_BYTES = 4
_TILE_WORDS = tl.constexpr(128)


def row_sizes(buffers: Iterable[Tensor]) -> list[int]:
    """Bytes of a row of each buffer.

    Raises:
        ValueError: a row is no whole number of words, or the rows are not dense.
    """
    sizes = []
    for buffer in buffers:
        size = buffer[0].numel() * buffer.element_size()
        if size % WORD_BYTES or not buffer.is_contiguous():
            raise ValueError(
                f"kv cache: expected dense rows of a multiple of {WORD_BYTES} bytes, got {size} bytes and "
                f"strides {buffer.stride()}; take another --kv-cache-dtype"
            )
        sizes.append(size)
    return sizes


def move_rows_at_once(addresses: Tensor, row_bytes: Tensor, max_row_bytes: int, moves: Tensor) -> None:
    """Copy rows within every buffer; all are read before any is written: a path may read what it writes.

    Args:
        addresses: of the buffers, [L] uint64.
        row_bytes: of a row of each buffer, [L] int64, multiples of 4.
        max_row_bytes: the largest of them.
        moves: rows to read and rows to write, contiguous [2, B, A] int64.
    """
    _, num_requests, num_rows = moves.shape
    num_tiles = triton.cdiv(max_row_bytes // WORD_BYTES, _TILE_WORDS.value)
    _move_rows[(len(addresses), num_tiles, num_requests)](
        addresses, row_bytes, moves, num_rows, max_rows=triton.next_power_of_2(num_rows), num_warps=4
    )


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types
def _move_rows(addresses, row_bytes, moves, num_rows, max_rows: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program moves one slice of words of one request's rows in one buffer."""
    buffer = tl.program_id(0)
    words = tl.program_id(1) * _TILE_WORDS + tl.arange(0, _TILE_WORDS)
    request = tl.program_id(2)
    row_words = tl.load(row_bytes + buffer) // 4
    base = tl.cast(tl.load(addresses + buffer), tl.pointer_type(tl.int32))
    rows = tl.arange(0, max_rows)
    is_row = rows < num_rows
    reads = moves + request * num_rows
    writes = reads + tl.num_programs(2) * num_rows
    source = tl.load(reads + rows, mask=is_row, other=0)
    target = tl.load(writes + rows, mask=is_row, other=0)
    moved = (is_row & (source != target))[:, None] & (words < row_words)[None, :]
    values = tl.load(base + source[:, None] * row_words + words[None, :], mask=moved)
    # Nothing is written before all of this program is read; other programs touch other words.
    tl.debug_barrier()
    tl.store(base + target[:, None] * row_words + words[None, :], values, mask=moved)
