"""One step of all running requests: draft, build, verify, sample, commit."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftbench.engine.cache import KVCache
from draftbench.engine.drafter import Drafter
from draftbench.engine.layers import tree_bias
from draftbench.engine.llama import Llama, Rows
from draftbench.engine.profile import Profile
from draftbench.engine.proposer import Proposer
from draftbench.engine.sampling import choose_token
from draftbench.engine.sequence import Sequence
from draftbench.engine.tree import DraftTree, make_chain
from draftbench.engine.verify import Walk, walk_tree

PREFILL_ROWS_PER_STEP = 512
"""Prompt rows that may join one step, so that a long prompt delays the running requests little."""


@dataclass(frozen=True)
class Work:
    """One request's share of a step.

    Attributes:
        tree: to be verified; for a piece of the prompt, the root that its last token becomes.
        token_ids: of its rows, [S] int64.
        depths: of each row's position behind the first row's, [S] int64.
        logit_rows: which of its rows need logits, one per tree node, or none before the prompt's end.
    """

    sequence: Sequence
    tree: DraftTree
    token_ids: NDArray[np.int64]
    depths: NDArray[np.int64]
    logit_rows: range
    is_prompt: bool = False


class ModelRunner:
    """Target, drafter and their caches, moved forward one step at a time.

    Attributes:
        cache: the target's; the row of a token is its position.
        profile: seconds of the phases, off unless switched on.
    """

    def __init__(self, target: Llama, cache: KVCache, proposer: Proposer, profile: Profile) -> None:
        self.cache = cache
        self.profile = profile
        self._target = target
        self._proposer = proposer

    @property
    def drafter(self) -> Drafter | None:
        """The drafter, which autoregressive decoding has not."""
        return self._proposer.drafter

    def reserve(self, slot: int, num_cached: int) -> None:
        """Make a slot's first rows the committed ones of a new request."""
        self.cache.lengths[slot] = num_cached
        if self.drafter is not None:
            self.drafter.cache.lengths[slot] = num_cached

    @torch.inference_mode()
    def step(self, sequences: list[Sequence]) -> list[tuple[Sequence, list[int], int]]:
        """Run every sequence: a round for those with output, a piece of the prompt for the others.

        Returns:
            for every sequence that chose tokens: the sequence, the tokens, and how many draft tokens
            were verified for it; the caller appends them.
        """
        profile = self.profile
        decoding = [sequence for sequence in sequences if sequence.has_output]
        self._check(decoding)
        with profile.phase("draft"):
            drafts = self._proposer.draft(decoding)
        with profile.phase("build"):
            trees = self._proposer.build(decoding, drafts)
            pairs = zip(decoding, trees, strict=True)
            works = [Work(s, tree, tree.tokens, tree.depths, range(len(tree))) for s, tree in pairs]
            works += self._prompt_pieces([s for s in sequences if not s.has_output])
            rows, logit_rows = self._assemble(works)
        with profile.phase("verify"):
            logits, features = self._target.forward(rows, logit_rows)
        with profile.phase("sample"):
            walks = _walk(works, logits)
        with profile.phase("commit"):
            kept = self._commit(works, walks)
        if self.drafter is not None and features is not None:
            with profile.phase("draft"):
                slots, counts = [w.sequence.slot for w in works], [len(rows) for rows in kept]
                self.drafter.extend_context(features[self._gather(kept)], slots, counts)
        profile.num_rounds += bool(decoding)
        return [
            (work.sequence, walk.token_ids, len(work.tree) - 1)
            for work, walk in zip(works, walks, strict=True)
            if walk.token_ids
        ]

    def _check(self, decoding: list[Sequence]) -> None:
        """Committed rows belong to all tokens but the last, in both caches: only tau would show it else."""
        for sequence in decoding:
            caches = [self.cache] if self.drafter is None else [self.cache, self.drafter.cache]
            lengths = [cache.lengths[sequence.slot] for cache in caches]
            if any(length != len(sequence.token_ids) - 1 for length in lengths):
                raise RuntimeError(
                    f"expected {len(sequence.token_ids) - 1} committed rows of request "
                    f"{sequence.request.rid} in target and drafter, got {lengths}"
                )

    def _prompt_pieces(self, sequences: list[Sequence]) -> list[Work]:
        works = []
        num_left = PREFILL_ROWS_PER_STEP
        for sequence in sequences:
            start = self.cache.lengths[sequence.slot]
            piece = np.array(sequence.token_ids[start : start + num_left], dtype=np.int64)
            if len(piece) == 0:
                break
            num_left -= len(piece)
            is_end = start + len(piece) == sequence.num_prompt_tokens
            logit_rows = range(len(piece) - 1, len(piece)) if is_end else range(0)
            root = make_chain([int(piece[-1])])
            works.append(Work(sequence, root, piece, np.arange(len(piece)), logit_rows, is_prompt=True))
        return works

    def _assemble(self, works: list[Work]) -> tuple[Rows, Tensor]:
        """The flat batch of all works, and the indices of the rows whose logits are needed."""
        windows, positions, logit_rows = [], [], []
        first = 0
        for work in works:
            slot, num_rows = work.sequence.slot, len(work.token_ids)
            start = self.cache.lengths[slot]
            windows.append(self.cache.window(slot, num_rows, self._bias(work, start)))
            positions.append(start + work.depths)
            logit_rows.append(first + np.array(work.logit_rows, dtype=np.int64))
            first += num_rows
        token_ids = [work.token_ids for work in works]
        return Rows(self._gather(token_ids), self._gather(positions), windows), self._gather(logit_rows)

    def _bias(self, work: Work, num_cached: int) -> Tensor | None:
        ancestors = np.tri(len(work.token_ids), dtype=np.bool_) if work.is_prompt else work.tree.ancestors
        rows = self.cache.rows
        return tree_bias(torch.from_numpy(ancestors).to(rows.device), num_cached, rows.dtype)

    def _gather(self, parts: list[NDArray[np.int64]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(self.cache.rows.device)

    def _commit(self, works: list[Work], walks: list[Walk]) -> list[NDArray[np.int64]]:
        """Keep the cache rows of prompts and accepted paths; of each work, which of the batch's rows."""
        kept, first = [], 0
        for work, walk in zip(works, walks, strict=True):
            path = list(range(len(work.token_ids))) if work.is_prompt else walk.path
            self.cache.commit_path(work.sequence.slot, path)
            kept.append(first + np.array(path))
            first += len(work.token_ids)
        return kept


def _walk(works: list[Work], logits: Tensor) -> list[Walk]:
    """Walk every tree; a piece of a prompt that is not its end has no logits and chooses nothing."""
    walks = []
    parts = logits.split_with_sizes([len(work.logit_rows) for work in works])
    for work, part in zip(works, parts, strict=True):

        def choose(node: int, depth: int, sequence: Sequence = work.sequence, rows: Tensor = part) -> int:
            place = sequence.num_output_tokens + depth
            return choose_token(rows[node], sequence.request.sampling, sequence.seed, place)

        walks.append(walk_tree(work.tree, choose) if len(part) else Walk([], []))
    return walks
