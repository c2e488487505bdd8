"""One attention call for two masks: dense on a CPU, block-sparse on a GPU.

A mask is a predicate on indices (`Allow`) and, for the GPU, the coarse map of which tiles of keys a
tile of queries can see at all. The map may hold too many tiles, never too few.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

Allow = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Mask = Tensor | BlockMask

TILE = 128


def dense_mask(allow: Allow, batch: int, num_queries: int, num_keys: int) -> Tensor:
    """The predicate (b, h, q, k index tensors -> bool) as a bool tensor [B, 1, Q, T] on the CPU."""
    row = torch.arange(batch).view(-1, 1, 1, 1)
    query = torch.arange(num_queries).view(1, 1, -1, 1)
    key = torch.arange(num_keys).view(1, 1, 1, -1)
    return allow(row, torch.zeros_like(row), query, key)


def sparse_mask(allow: Allow, tiles: Tensor, num_queries: int, num_keys: int) -> BlockMask:
    """A block-sparse mask.

    Args:
        allow: the predicate, evaluated inside the kernel.
        tiles: [B, Q / TILE, T / TILE] bool, True = some query of the tile may see some key of the tile.
        num_queries: Q, a multiple of `TILE`.
        num_keys: T, a multiple of `TILE`.
    """
    counts = tiles.sum(dim=-1, dtype=torch.int32)[:, None]
    order = tiles.int().argsort(dim=-1, descending=True, stable=True).to(torch.int32)[:, None]
    return BlockMask.from_kv_blocks(
        counts, order.contiguous(), BLOCK_SIZE=TILE, mask_mod=allow, seq_lengths=(num_queries, num_keys)
    )


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Grouped-query attention under a mask.

    Args:
        query: [B, H, Q, D]
        key: [B, K, T, D], K divides H
        value: [B, K, T, D]
        mask: from `dense_mask` or `sparse_mask`

    Returns:
        [B, H, Q, D]
    """
    if isinstance(mask, Tensor):
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    mixed: Any = flex_attention(query, key, value, block_mask=mask, enable_gqa=True)
    return mixed  # type: ignore[no-any-return]
