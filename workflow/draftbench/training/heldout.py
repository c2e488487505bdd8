"""What a drafter emits on texts that the target wrote greedily, without decoding again.

Greedy speculative decoding emits exactly the target's greedy text, so a stored greedy text holds every
round that a decoding run could meet: draft at every position once, then either average over all
positions, or walk the rounds that decoding would take. The second is the tau of a real run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from draftbench.training.block_model import BlockModel
from draftbench.training.blocks import Batch
from draftbench.training.corpus import Conversation, pack_rows


@dataclass(frozen=True)
class Drafts:
    """Drafts at every position of one greedy response, R tokens after the prompt.

    Position i drafts after response token i - 1 (i = 0: after the last prompt token) and predicts
    tokens i, i + 1, ...

    Attributes:
        ids: [R + block - 1] int64, the response; -1 beyond its end.
        tokens: [R, block - 1, K] int64, the drafter's K likeliest tokens, likeliest first.
        logp: [R, block - 1, K] float32, their log-probabilities.
    """

    ids: NDArray[np.int64]
    tokens: NDArray[np.int64]
    logp: NDArray[np.float32]

    @property
    def num_positions(self) -> int:
        """R."""
        return len(self.tokens)

    def linear_emitted(self) -> NDArray[np.int64]:
        """Tokens that a linear round emits from each position, [R]; at most those left, plus one."""
        num_slots = self.tokens.shape[1]
        labels = np.lib.stride_tricks.sliding_window_view(self.ids, num_slots)[: self.num_positions]
        is_correct = self.tokens[:, :, 0] == labels
        emitted: NDArray[np.int64] = is_correct.cumprod(axis=1).sum(axis=1) + 1
        return emitted


def walk_rounds(emitted: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The rounds of a decoding run as (position, emitted); a round cut by the end of the text is left out.

    The first round starts after the first response token, which prefill emits.
    """
    rounds = []
    position = 1
    while position < len(emitted) and position + emitted[position] <= len(emitted):
        rounds.append((position, int(emitted[position])))
        position += int(emitted[position])
    return rounds


@torch.no_grad()
def draft_everywhere(
    model: BlockModel,
    conversations: Sequence[Conversation],
    top_k: int,
    row_length: int,
    batch_shape: tuple[int, int],
) -> Iterator[Drafts]:
    """Draft at every position of every conversation's last response.

    Args:
        model: target and drafter.
        conversations: greedy ones; texts beyond `row_length` are cut.
        top_k: K.
        row_length: S tokens a row.
        batch_shape: rows and anchors a call; on a GPU those of training, so that nothing compiles anew.
    """
    num_rows, num_anchors = batch_shape
    whole = [pack_rows([item], row_length) for item in conversations]
    for first in range(0, len(whole), num_rows):
        part = whole[first : first + num_rows]
        padded = [part[min(row, len(part) - 1)] for row in range(num_rows)]
        batch = _stack(padded, model.device)
        calls = [
            _draft_columns(model, batch, start, num_anchors, top_k)
            for start in range(0, row_length, num_anchors)
        ]
        tokens = np.concatenate([tokens for tokens, _ in calls], axis=1)
        logp = np.concatenate([logp for _, logp in calls], axis=1)
        for row in range(len(part)):
            yield _last_response(conversations[first + row], tokens[row], logp[row])


def _stack(parts: Sequence[object], device: torch.device) -> Batch:
    names = ("ids", "document", "positions", "is_response")
    stacked = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Batch(**{name: torch.from_numpy(array).to(device) for name, array in stacked.items()})


def _draft_columns(
    model: BlockModel, batch: Batch, start: int, num_anchors: int, top_k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Drafts anchored at columns start, start + 1, ... as two arrays [B, N, block - 1, K]."""
    num_rows, row_length = batch.ids.shape
    columns = torch.arange(start, start + num_anchors, device=model.device).clamp(max=row_length - 1)
    blocks = model.blocks(batch, columns.expand(num_rows, -1).contiguous())
    hidden, _ = model.draft_hidden(batch, blocks)
    found = [_top(part, model.target.head, top_k) for part in torch.split(hidden, 256)]
    shape = (num_rows, num_anchors, hidden.shape[1], top_k)
    tokens = torch.cat([tokens for tokens, _ in found]).view(shape)
    logp = torch.cat([logp for _, logp in found]).view(shape)
    return tokens.cpu().numpy(), logp.cpu().numpy()


def _top(hidden: Tensor, head: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    logits = functional.linear(hidden, head.to(hidden.dtype)).float()
    values, tokens = logits.topk(top_k, dim=-1)
    return tokens, values - logits.logsumexp(dim=-1, keepdim=True)


def _last_response(
    conversation: Conversation, tokens: NDArray[np.int64], logp: NDArray[np.float32]
) -> Drafts:
    is_response = conversation.is_response[: len(tokens)]
    end = int(is_response.nonzero()[0][-1]) + 1
    before = (~is_response[:end]).nonzero()[0]
    begin = int(before[-1]) + 1
    num_slots = tokens.shape[1]
    ids = np.concatenate([conversation.ids[begin:end], np.full(num_slots, -1)])
    anchors = slice(begin - 1, end - 1)
    return Drafts(ids, tokens[anchors], logp[anchors])


def summarise_linear(drafts: Sequence[Drafts]) -> dict[str, float]:
    """Linear drafting: `tau_everywhere` over full blocks, `tau_rounds` over the rounds of decoding."""
    everywhere, rounds = [], []
    for draft in drafts:
        emitted = draft.linear_emitted()
        everywhere.append(emitted[: max(0, len(emitted) - draft.tokens.shape[1] + 1)])
        rounds += [num for _, num in walk_rounds(emitted)]
    pooled = np.concatenate(everywhere)
    return {
        "tau_everywhere": float(pooled.mean()) if len(pooled) else 0.0,
        "tau_rounds": float(np.mean(rounds)) if rounds else 0.0,
        "num_rounds": float(len(rounds)),
    }
