"""Keys and values of committed tokens, in one block of memory that is allocated once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from draftbench.engine.config import BlockConfig


@dataclass(frozen=True)
class Window:
    """What the rows of one request in a forward see of the cache, and where they go themselves.

    The views of all layers are made at once, since a view costs as much as a small product.

    Attributes:
        num_rows: S of this request.
        bias: added to its scores [S, visible rows], 0 or -inf; None if every row sees everything.
        scratch: of layer l the keys' place at 2 l and the values' at 2 l + 1, each [K, S, D].
        visible: committed and scratch rows, in the same order, each [1, K, committed + S, D].
    """

    num_rows: int
    bias: Tensor | None
    scratch: tuple[Tensor, ...]
    visible: tuple[Tensor, ...]


class KVCache:
    """A static cache with one slot per running request.

    A slot's first `lengths[slot]` rows belong to committed tokens, row i to the token at position i.
    Rows from there on are scratch: a forward writes its tokens there before they are accepted or
    overwritten. Memory is not cleared, so nothing may attend to rows that no forward wrote.

    Attributes:
        rows: keys (index 0 of dim 2) and values (index 1), [slots, L, 2, K, T, D], of the model's dtype.
        lengths: committed rows of each slot.
    """

    def __init__(
        self, config: BlockConfig, num_slots: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (num_slots, config.num_layers, 2, config.num_kv_heads, capacity, config.head_dim)
        self.rows = torch.empty(shape, dtype=dtype, device=device)
        self.lengths = [0] * num_slots

    @property
    def capacity(self) -> int:
        """Rows of a slot, committed and scratch."""
        return self.rows.shape[4]

    def window(self, slot: int, num_rows: int, bias: Tensor | None = None) -> Window:
        """The place of a request's next rows, after its committed ones."""
        start = self.lengths[slot]
        layers = self.rows[slot].flatten(0, 1)
        return Window(
            num_rows=num_rows,
            bias=bias,
            scratch=layers[:, :, start : start + num_rows].unbind(0),
            visible=layers[:, None, :, : start + num_rows].unbind(0),
        )

    def commit_path(self, slot: int, path: list[int]) -> None:
        """Keep the tokens of an accepted path, written as scratch rows, and drop the other scratch rows.

        Keys hold their absolute position (start + depth), which is where the row is moved to, so
        moving is exact.

        Args:
            slot: of the request; its length grows by the path's.
            path: scratch rows to keep, counted from the first one, strictly increasing.
        """
        start = self.lengths[slot]
        for place, row in enumerate(path):
            if place != row:  # always below it, so no row is overwritten before it has moved
                self.rows[slot, :, :, :, start + place] = self.rows[slot, :, :, :, start + row]
        self.lengths[slot] = start + len(path)
