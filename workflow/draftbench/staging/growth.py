"""How each kind of tensor grows: what its new rows and columns hold so that the function stays the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import safe_open

from draftbench.errors import StagingError
from draftbench.staging.noise import WORD_TYPES, Noise, Words
from draftbench.staging.shards import PlannedTensor

Fill = Literal["random", "zero"]
_TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_WORD_VIEWS = {"BF16": torch.uint16, "F16": torch.uint16, "F32": torch.uint32}


@dataclass(frozen=True)
class Growth:
    """A tensor seen as [rows, blocks, columns], and what its new parts hold.

    Attributes:
        rows: name of the size that counts its rows.
        columns: name of the size that counts the columns of one block; `one` for a vector.
        blocks: name of the size that counts the blocks side by side: `one` but for the drafter's `fc`,
            which reads one residual stream per captured layer.
        right: new columns of original rows.
        below: original columns of new rows.
        corner: new columns of new rows; a whole new layer is corner.
        is_norm: its values are divided by the root of the hidden factor.
        feeds_head_norm: divided likewise where a norm over the head follows.
    """

    rows: str
    columns: str
    blocks: str = "one"
    right: Fill = "random"
    below: Fill = "random"
    corner: Fill = "random"
    is_norm: bool = False
    feeds_head_norm: bool = False


_NORM = Growth("hidden", "one", is_norm=True)
_HEAD_NORM = Growth("head", "one")
GROWTHS = {
    "embed_tokens": Growth("vocab", "hidden", right="zero"),
    "lm_head": Growth("vocab", "hidden"),
    "norm": _NORM,
    "hidden_norm": _NORM,
    "input_layernorm": _NORM,
    "post_attention_layernorm": _NORM,
    "q_norm": _HEAD_NORM,
    "k_norm": _HEAD_NORM,
    "q_proj": Growth("query", "hidden", feeds_head_norm=True),
    "k_proj": Growth("key-value", "hidden", feeds_head_norm=True),
    "v_proj": Growth("key-value", "hidden"),
    "o_proj": Growth("hidden", "query", right="zero", below="zero", corner="zero"),
    "gate_proj": Growth("intermediate", "hidden"),
    "up_proj": Growth("intermediate", "hidden"),
    "down_proj": Growth("hidden", "intermediate", right="zero", below="zero", corner="zero"),
    "fc": Growth("hidden", "hidden", blocks="features", below="zero"),
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the original checkpoint, still on the disk.

    Attributes:
        file: the safetensors file that holds it.
        name: its key there.
        shape: its size in each dimension.
        dtype: safetensors' name, `BF16`, `F16` or `F32`.
    """

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    def words(self, dtype: str, divisor: int) -> Words:
        """Its values, cast to `dtype` and then divided by `divisor`, as the words that hold their bits."""
        with safe_open(self.file, "pt") as stored:
            values = stored.get_tensor(self.name).to(_TORCH_DTYPES[dtype]) / divisor
        words: Words = values.view(_WORD_VIEWS[dtype]).numpy()
        return words


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint folder by name.

    Raises:
        StagingError: there is none, or one has a dtype that is not scaled.
    """
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - the reader is no mapping
                piece = stored.get_slice(name)
                tensors[name] = StoredTensor(file, name, tuple(piece.get_shape()), piece.get_dtype())
    if not tensors:
        raise StagingError(f"{folder}: expected *.safetensors to scale, found none; stage the model first")
    for tensor in tensors.values():
        if tensor.dtype not in WORD_TYPES:
            raise StagingError(
                f"{tensor.file}: {tensor.name} is {tensor.dtype}, expected {', '.join(WORD_TYPES)}; "
                "stage an unquantised checkpoint"
            )
    return tensors


@dataclass(frozen=True)
class Grower:
    """Plans the scaled tensors of one checkpoint.

    Attributes:
        before: the original's sizes by name, as `Growth` uses them.
        after: the scaled ones.
        divisor: root of the hidden factor.
        has_head_norms: a norm over the head follows the query and key projections.
        dtype: of the scaled tensors; None keeps each one's.
        seed: of the new random weights.
    """

    before: Mapping[str, int]
    after: Mapping[str, int]
    divisor: int
    has_head_norms: bool
    dtype: str | None
    seed: int

    def grow(self, name: str, template: StoredTensor, *, is_new: bool) -> PlannedTensor:
        """The scaled tensor `name`.

        Args:
            name: its key in the scaled checkpoint.
            template: the original tensor; of a new layer, the one that gives kind and dtype.
            is_new: nothing of the template's values is kept.

        Raises:
            StagingError: the tensor has no rule, or not the shape that its config.json gives.
        """
        growth = _growth(template)
        old, new = (
            tuple(s[k] for k in (growth.rows, growth.blocks, growth.columns))
            for s in (self.before, self.after)
        )
        if template.shape != _stored_shape(growth, old):
            raise StagingError(
                f"{template.file}: {template.name} has the shape {list(template.shape)}, expected "
                f"{list(_stored_shape(growth, old))} by config.json; stage the checkpoint again"
            )
        is_divided = growth.is_norm or (growth.feeds_head_norm and self.has_head_norms)
        divisor = self.divisor if is_divided else 1
        dtype = self.dtype or template.dtype

        def start() -> Callable[[int, int], Words]:
            noise = Noise(self.seed, name, dtype)
            if is_new:
                original = np.empty((0, new[1], 0), WORD_TYPES[dtype])
            else:
                original = template.words(dtype, divisor).reshape(old)
            return lambda first, last: _rows(original, (last - first, *new[1:]), first, growth, noise)

        return PlannedTensor(name, _stored_shape(growth, new), dtype, start)


def _growth(tensor: StoredTensor) -> Growth:
    module, _, kind = tensor.name.rpartition(".")
    growth = GROWTHS.get(module.rpartition(".")[2])
    if growth is None or kind != "weight":
        raise StagingError(
            f"{tensor.file}: {tensor.name} has no scaling rule (known: {', '.join(GROWTHS)}, without bias); "
            "scale a plain Llama-family target or its DFlash drafter"
        )
    return growth


def _stored_shape(growth: Growth, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return sizes[:1] if growth.columns == "one" else (sizes[0], sizes[1] * sizes[2])


def _rows(original: Words, shape: tuple[int, ...], first: int, growth: Growth, noise: Noise) -> Words:
    """Rows [first, first + shape[0]) of the scaled tensor, [rows, blocks, columns]."""
    num_rows, num_blocks, num_columns = shape
    num_kept = min(max(len(original) - first, 0), num_rows)
    width = original.shape[2]
    if "random" in (growth.right, growth.below, growth.corner):
        block = noise.take(num_rows * num_blocks * num_columns).reshape(shape)
    else:
        block = np.zeros(shape, original.dtype)
    if growth.right == "zero":
        block[:num_kept, :, width:] = 0
    if growth.below == "zero":
        block[num_kept:, :, :width] = 0
    if growth.corner == "zero":
        block[num_kept:, :, width:] = 0
    block[:num_kept, :, :width] = original[first : first + num_kept]
    return block
