"""Tokens a round, by slot and by tree budget, from drafts at every position of greedy texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftbench.engine.tree import build_tree
from draftbench.training.heldout import Drafts, walk_rounds


def tree_emitted(draft: Drafts, position: int, budget: int) -> int:
    """Tokens that a DDTree round of `budget` nodes emits from `position`, the bonus included."""
    marginals = zip(draft.logp[position].tolist(), draft.tokens[position].tolist(), strict=True)
    children = build_tree(-1, marginals, budget).children()
    node, depth = 0, 0
    while depth < draft.tokens.shape[1]:
        child = children[node].get(int(draft.ids[position + depth]))
        if child is None:
            break
        node, depth = child, depth + 1
    return depth + 1


def tree_rounds(draft: Drafts, budget: int) -> list[int]:
    """Emitted tokens of the rounds that decoding with trees would take."""
    rounds = []
    position = 1
    while position < draft.num_positions:
        emitted = tree_emitted(draft, position, budget)
        if position + emitted > draft.num_positions:
            break  # cut by the end of the text
        rounds.append(emitted)
        position += emitted
    return rounds


def slot_accuracy(drafts: Sequence[Drafts]) -> dict[str, list[float]]:
    """Part of right tokens of each slot 1, 2, ..., over positions whose whole block lies in the text.

    `marginal` counts every such position, `reached` only those where all earlier slots were right.
    """
    tables = [_correct_table(draft) for draft in drafts]
    table: NDArray[np.bool_] = np.concatenate([item for item in tables if len(item)])
    reached = np.concatenate(
        [np.ones((len(table), 1), dtype=bool), table.cumprod(axis=1)[:, :-1] > 0], axis=1
    )
    return {
        "marginal": table.mean(axis=0).round(4).tolist(),
        "reached": ((table & reached).sum(axis=0) / reached.sum(axis=0).clip(min=1)).round(4).tolist(),
    }


def _correct_table(draft: Drafts) -> NDArray[np.bool_]:
    num_slots = draft.tokens.shape[1]
    num_full = max(0, draft.num_positions - num_slots + 1)
    labels = np.lib.stride_tricks.sliding_window_view(draft.ids, num_slots)[:num_full]
    table: NDArray[np.bool_] = draft.tokens[:num_full, :, 0] == labels
    return table


def summarise(drafts: Sequence[Drafts], budgets: Sequence[int]) -> dict[str, Any]:
    """Everything about one set of greedy texts.

    Returns:
        `linear` and `trees` (by budget): tau over the rounds of decoding; `everywhere`: tau of linear
        rounds if one started at each position; `slots`: accuracy by slot; `num_texts`, `num_rounds`.
    """
    linear = [emitted for draft in drafts for _, emitted in walk_rounds(draft.linear_emitted())]
    tables = np.concatenate([_correct_table(draft) for draft in drafts])
    trees = {
        str(budget): round(float(np.mean([n for draft in drafts for n in tree_rounds(draft, budget)])), 3)
        for budget in budgets
    }
    return {
        "linear": round(float(np.mean(linear)), 3),
        "trees": trees,
        "everywhere": round(float(tables.cumprod(axis=1).sum(axis=1).mean()) + 1, 3),
        "slots": slot_accuracy(drafts),
        "num_texts": len(drafts),
        "num_rounds": len(linear),
    }
