"""Keys and values of committed tokens, in one block of memory that is allocated once."""

import torch
from torch import Tensor

from draftbench.engine.config import BlockConfig


class KVCache:
    """A static cache with one slot per running request.

    A slot's first `lengths[slot]` rows belong to committed tokens, row i to the token at position i.
    Rows from there on are scratch: a forward writes its tokens there before they are accepted or
    overwritten. Memory is not cleared, so nothing may attend to rows that no forward wrote.

    Attributes:
        rows: keys (index 0 of dim 2) and values (index 1), [L, slots, 2, K, T, D], of the model's dtype.
        lengths: committed rows of each slot.
    """

    def __init__(
        self, config: BlockConfig, num_slots: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (config.num_layers, num_slots, 2, config.num_kv_heads, capacity, config.head_dim)
        self.rows = torch.empty(shape, dtype=dtype, device=device)
        self.lengths = [0] * num_slots

    @property
    def num_slots(self) -> int:
        """Slots, so requests that the cache can hold at once."""
        return self.rows.shape[1]

    @property
    def capacity(self) -> int:
        """Rows of a slot, committed and scratch."""
        return self.rows.shape[4]

    def write(self, layer: int, slots: Tensor, positions: Tensor, rows: Tensor) -> None:
        """Write one layer's keys and values of some tokens; mutates the cache, not the lengths.

        Args:
            layer: index of the layer.
            slots: of each token, [S] int64.
            positions: row of each token in its slot, [S] int64.
            rows: keys and values, [S, 2, K, D].
        """
        self.rows[layer][slots, :, :, positions] = rows

    def read(self, layer: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Views of one slot's first `length` keys and values in a layer, each [K, length, D]."""
        rows = self.rows[layer, slot, :, :, :length]
        return rows[0], rows[1]

    def commit_path(self, slot: int, path: list[int]) -> None:
        """Keep the tokens of an accepted path, written as scratch rows, and drop the other scratch rows.

        Keys hold their absolute position (start + depth), which is where the row is moved to, so
        moving is exact.

        Args:
            slot: of the request; its length grows by the path's.
            path: scratch rows to keep, counted from the first one, strictly increasing.
        """
        start = self.lengths[slot]
        if path != list(range(len(path))):
            index = torch.tensor(path, device=self.rows.device) + start
            kept = self.rows[:, slot].index_select(3, index)
            self.rows[:, slot, :, :, start : start + len(path)] = kept
        self.lengths[slot] = start + len(path)
