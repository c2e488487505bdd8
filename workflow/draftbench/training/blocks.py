"""Blocks of a packed batch: random anchors, what each block may see, and what it must predict.

A block starts at its anchor, the last committed token, and predicts the following ones at their own
positions. Facts that every port got wrong once, each with a test: the context ends strictly before the
anchor (its feature is not computed yet when a round drafts), slot 0 holds the real token and not the
mask, a block sees all of itself and nothing of other blocks, and labels are not shifted.
Source: DFlash (arXiv 2602.06036), A.1; several conversations a row are ours.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from draftbench.training.attention import TILE, Allow, Mask, dense_mask, sparse_mask


@dataclass(frozen=True)
class Batch:
    """Packed rows on the device.

    Attributes:
        ids: [B, S] int64
        document: [B, S] int32, -1 in the padding
        positions: [B, S] int64
        is_response: [B, S] bool
    """

    ids: Tensor
    document: Tensor
    positions: Tensor
    is_response: Tensor


@dataclass(frozen=True)
class Blocks:
    """Blocks of a batch, N a row.

    Attributes:
        anchors: [B, N] int64, sorted columns of the rows.
        ids: [B, N * block] int64, the anchor's token and then mask tokens.
        positions: [B, N * block] int64
        labels: [B, N, block - 1] int64, tokens at anchor + 1 and on.
        is_valid: [B, N, block - 1] bool, where the label is the target's own token of the same conversation.
        columns: [B, N, block - 1] int64, column of each label in its row.
    """

    anchors: Tensor
    ids: Tensor
    positions: Tensor
    labels: Tensor
    is_valid: Tensor
    columns: Tensor


def choose_anchors(batch: Batch, num_anchors: int, generator: torch.Generator | None) -> Tensor:
    """Random anchors without replacement, sorted.

    A column can be one when the next token is the target's own and of the same conversation; so the
    last prompt token is the first of them, as in decoding. Rows with fewer get other columns too,
    whose labels are then not valid.

    Returns:
        [B, N] int64
    """
    is_candidate = batch.is_response[:, 1:] & (batch.document[:, 1:] == batch.document[:, :-1])
    score = torch.rand(is_candidate.shape, generator=generator, device=batch.ids.device)
    score = score + is_candidate
    return score.topk(num_anchors, dim=1).indices.sort(dim=1).values


def make_blocks(batch: Batch, anchors: Tensor, block_size: int, mask_token_id: int) -> Blocks:
    """Inputs, labels and validity of the blocks at `anchors` [B, N]."""
    num_rows, row_length = batch.ids.shape
    offset = torch.arange(block_size, device=anchors.device)
    ids = torch.full((*anchors.shape, block_size), mask_token_id, device=anchors.device)
    ids[..., 0] = batch.ids.gather(1, anchors)
    positions = batch.positions.gather(1, anchors)[..., None] + offset
    columns = anchors[..., None] + offset[1:]
    inside = columns.clamp(max=row_length - 1)
    flat = inside.flatten(1)
    is_same = batch.document.gather(1, flat).view_as(inside) == batch.document.gather(1, anchors)[..., None]
    is_own = batch.is_response.gather(1, flat).view_as(inside)
    return Blocks(
        anchors=anchors,
        ids=ids.view(num_rows, -1),
        positions=positions.view(num_rows, -1),
        labels=batch.ids.gather(1, flat).view_as(inside),
        # a label after a foreign token would be predicted from a text that no round can meet
        is_valid=((columns < row_length) & is_same & is_own).long().cumprod(dim=-1).bool(),
        columns=inside,
    )


def allow_target(batch: Batch) -> Allow:
    """Causal attention inside each conversation."""
    document = batch.document

    def allow(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (document[row, query] == document[row, key])

    return allow


def allow_blocks(batch: Batch, anchors: Tensor, block_size: int) -> Allow:
    """Keys are [S context columns; N * block slots]: context of the same conversation strictly before
    the anchor, and the whole own block."""  # noqa: D205, D209
    document, num_context = batch.document, batch.ids.shape[1]

    def allow(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        anchor = anchors[row, query // block_size]
        column = key.clamp(max=num_context - 1)
        is_context = (key < anchor) & (document[row, column] == document[row, anchor])
        is_own_block = (key >= num_context) & ((key - num_context) // block_size == query // block_size)
        return ((key < num_context) & is_context) | is_own_block

    return allow


def _document_starts(document: Tensor) -> Tensor:
    """Column where the conversation of each column begins, [B, S]."""
    column = torch.arange(document.shape[1], device=document.device).expand_as(document)
    is_start = torch.ones_like(document, dtype=torch.bool)
    is_start[:, 1:] = document[:, 1:] != document[:, :-1]
    return torch.where(is_start, column, 0).cummax(dim=1).values


def target_tiles(batch: Batch) -> Tensor:
    """Tiles of the target's mask, [B, S / TILE, S / TILE] bool: the conversation's start to the diagonal."""
    num_tiles = batch.ids.shape[1] // TILE
    tile = torch.arange(num_tiles, device=batch.ids.device)
    first = _document_starts(batch.document)[:, ::TILE] // TILE
    return (tile >= first[..., None]) & (tile <= tile[:, None])


def block_tiles(batch: Batch, anchors: Tensor, block_size: int) -> Tensor:
    """Tiles of the blocks' mask, [B, N * block / TILE, (S + N * block) / TILE] bool.

    Sorted anchors keep the context of a tile of queries together; of the blocks it sees only its own tile.
    """
    blocks_per_tile = TILE // block_size
    num_context_tiles = batch.ids.shape[1] // TILE
    starts = _document_starts(batch.document).gather(1, anchors)
    first = starts[:, ::blocks_per_tile] // TILE
    last = anchors[:, blocks_per_tile - 1 :: blocks_per_tile] // TILE
    num_query_tiles = first.shape[1]
    tile = torch.arange(num_context_tiles + num_query_tiles, device=anchors.device)
    is_context = (tile < num_context_tiles) & (tile >= first[..., None]) & (tile <= last[..., None])
    return is_context | (tile == tile[:num_query_tiles, None] + num_context_tiles)


def target_mask(batch: Batch) -> Mask:
    """Mask of the target's forward pass over a batch."""
    num_rows, length = batch.ids.shape
    allow = allow_target(batch)
    if batch.ids.device.type == "cpu":
        return dense_mask(allow, num_rows, length, length)
    return sparse_mask(allow, target_tiles(batch), length, length)


def block_mask(batch: Batch, blocks: Blocks, block_size: int) -> Mask:
    """Mask of the drafter's forward pass over all blocks of a batch."""
    num_rows, length = batch.ids.shape
    num_queries = blocks.ids.shape[1]
    allow = allow_blocks(batch, blocks.anchors, block_size)
    if batch.ids.device.type == "cpu":
        return dense_mask(allow, num_rows, num_queries, length + num_queries)
    tiles = block_tiles(batch, blocks.anchors, block_size)
    return sparse_mask(allow, tiles, num_queries, length + num_queries)
