"""The operations that target and drafter layers are made of, written for few calls per layer."""

import functools
import math
from collections.abc import Callable
from timeit import timeit
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from draftbench.engine.cache import Window
from draftbench.engine.config import BlockConfig, Llama3Scaling

NUM_TIMED_WEIGHTS, NUM_TURNS = 24, 5


class Heads(NamedTuple):
    """Queries [M, H, D], keys [M, K, D] and values [M, K, D] of the rows of a forward."""

    queries: Tensor
    keys: Tensor
    values: Tensor


class Linear:
    """A product with a constant weight [out, in], without bias.

    On a CPU the weight is kept in oneDNN's blocked order, from which products of several rows take about
    0.7 of the time that they take from the plain order; bfloat16 needs AVX-512 or its like for that. Which
    is better for one row depends on the processor; both orders are kept where that is the plain one.

    Attributes:
        order_of_one_row: `plain` or `blocked`.
    """

    def __init__(self, weight: Tensor) -> None:
        is_half = weight.dtype == torch.bfloat16
        is_packed = weight.is_cpu and (not is_half or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        self.order_of_one_row = fastest_for_one_row(weight.dtype) if is_packed else "plain"
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight) if is_packed else None
        self._plain = weight if self.order_of_one_row == "plain" else None

    def __call__(self, x: Tensor) -> Tensor:
        """`x @ weight.T`, from [M, in] to [M, out]."""
        if self._plain is not None and (self._packed is None or len(x) == 1):
            return functional.linear(x, self._plain)
        return _from_blocked(x, self._packed)


def _from_blocked(x: Tensor, packed: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return product


@functools.cache
def fastest_for_one_row(dtype: torch.dtype) -> str:
    """From which order of weights this CPU is faster at products of one row, autoregressive decoding's.

    Times weights of a layer's shape, more of them than caches hold, in turns; the least of the turns counts.
    Once in a process, with the threads that torch is set to by then.

    Args:
        dtype: of weights and row.

    Returns:
        `plain`, the weight's own order, or `blocked`, oneDNN's.
    """
    plain = [torch.ones(3072, 576, dtype=dtype) for _ in range(NUM_TIMED_WEIGHTS)]
    packed = [torch.ops.mkldnn._reorder_linear_weight(weight) for weight in plain]
    row = torch.ones(1, 576, dtype=dtype)
    orders: dict[str, Callable[[], list[Tensor]]] = {
        "plain": lambda: [functional.linear(row, weight) for weight in plain],
        "blocked": lambda: [_from_blocked(row, weight) for weight in packed],
    }
    turns = [{name: timeit(run, number=1) for name, run in orders.items()} for _ in range(NUM_TURNS)]
    return min(orders, key=lambda name: min(turn[name] for turn in turns))


class Rotary:
    """Rotary position embedding by a table of all positions.

    The half rotation of a head x = [x1, x2] is [-x2, x1] = roll(x, D / 2) with the first half's sign
    turned; the sign is kept in the sine table.
    """

    def __init__(
        self, config: BlockConfig, num_positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        frequencies = rotary_frequencies(config)
        angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat([cos, cos], dim=1).to(device=device, dtype=dtype)
        self._signed_sin = torch.cat([-sin, sin], dim=1).to(device=device, dtype=dtype)
        self._half = config.head_dim // 2

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The table's rows of some positions [S], twice [S, 1, D]."""
        return self._cos[positions].unsqueeze(1), self._signed_sin[positions].unsqueeze(1)

    def rotate(self, heads: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        """Heads [S, any, D] turned by their token's position."""
        cos, signed_sin = table
        return (heads * cos).addcmul_(heads.roll(self._half, -1), signed_sin)


def rotary_frequencies(config: BlockConfig) -> Tensor:
    """Radians per position of each pair of dimensions, [D / 2] float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    return frequencies if config.rope_scaling is None else _stretch(frequencies, config.rope_scaling)


def _stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3's rule: long wavelengths grow by `factor`, short ones stay, those between are mixed."""
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share_kept = ((scaling.original_length / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (share_kept + (1.0 - share_kept) / scaling.factor)


class RMSNorm:
    """Root-mean-square norm over the last dimension, computed in float32 as transformers does."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self._eps = torch.tensor([eps], dtype=torch.float32, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """The normed and scaled rows, of x's shape and dtype."""
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        mean_square = torch.addcmul(self._eps, norm, norm, value=1.0 / x.shape[-1])
        return (x * mean_square.rsqrt_()).to(x.dtype).mul_(self.weight)


def attend(heads: Heads, windows: list[Window], layer: int) -> Tensor:
    """Grouped-query attention; writes the rows' keys and values into their windows first.

    Args:
        heads: rotated queries and keys, and values, of all rows.
        windows: of the requests, which cover the rows in order.
        layer: index of the layer in the cache.

    Returns:
        [M, H * D].
    """
    num_rows = [window.num_rows for window in windows]
    queries, keys, values = (x.transpose(0, 1).split_with_sizes(num_rows, dim=1) for x in heads)
    parts = []
    for i, window in enumerate(windows):
        window.scratch[2 * layer].copy_(keys[i])
        window.scratch[2 * layer + 1].copy_(values[i])
        attended = functional.scaled_dot_product_attention(
            queries[i].unsqueeze(0),
            window.visible[2 * layer],
            window.visible[2 * layer + 1],
            attn_mask=window.bias,
            enable_gqa=True,
        )
        parts.append(attended[0].transpose(0, 1))
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)


def causal_bias(num_rows: int, num_cached: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Score bias of consecutive tokens [S, num_cached + S]; None for one row, which sees all."""
    visible = torch.ones(num_rows, num_rows, dtype=torch.bool, device=device)
    return tree_bias(visible.tril_(), num_cached, dtype)


def tree_bias(ancestors: Tensor, num_cached: int, dtype: torch.dtype) -> Tensor | None:
    """Score bias of tree nodes: each sees the cache, its ancestors and itself.

    Args:
        ancestors: [N, N] bool, true where the column is the row's ancestor or the row itself.
        num_cached: keys before the tree's own.
        dtype: of the scores.

    Returns:
        [N, num_cached + N]; None for a single node.
    """
    if len(ancestors) == 1:
        return None
    bias = torch.zeros(len(ancestors), num_cached + len(ancestors), dtype=dtype, device=ancestors.device)
    bias[:, num_cached:].masked_fill_(~ancestors, -math.inf)
    return bias
