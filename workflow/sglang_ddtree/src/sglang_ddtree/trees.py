"""Draft trees of a batch as tensors: built, laid out for attention, accepted. Knows nothing of SGLang.

No function here waits for the GPU or makes a shape depend on values, so every one runs inside a CUDA graph.

Shapes: B requests, D draft positions of a block, N nodes of the budget, W = N + 1 nodes with the root, K
ranks of a position. Node 0 is the root, the last emitted token. A parent's index is below its children's.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

MAX_BUDGET = 1024
"""Largest number of nodes, the largest that the paper measures."""


class DraftTrees(NamedTuple):
    """One tree per request.

    Attributes:
        tokens: [B, W] int64.
        parents: index of each node's parent, [B, W] int64; the root is its own.
        depths: edges to the root, [B, W] int64.
        ancestors: [B, W, W] bool, true where the column is an ancestor of the row or the row itself.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ancestors: Tensor


class Acceptance(NamedTuple):
    """What one verification keeps.

    Attributes:
        path: nodes from the root to the last accepted one, [B, A] int64, the rest zero; A as the caller
            asked.
        lengths: valid columns, [B] int64: the root and the accepted draft tokens, which is as many as tokens
            emitted.
        tokens: the target's token after each node of the path, [B, A] int64: the emitted tokens.
    """

    path: Tensor
    lengths: Tensor
    tokens: Tensor


class Builder(Protocol):
    """Makes trees of a block's marginals.

    Attributes:
        budget: nodes without the root.
        num_ranks: tokens of every position that it looks at.
    """

    budget: int
    num_ranks: int

    def __call__(self, log_probs: Tensor, token_ids: Tensor, roots: Tensor) -> DraftTrees:
        """Grow the trees.

        Args:
            log_probs: of each position's most probable tokens, descending, [B, D, K] float32.
            token_ids: theirs, [B, D, K] int64.
            roots: the last emitted tokens, [B] int64.
        """


class TreeBuilder:
    """The `budget` most probable prefixes under the product of a block's marginals, as by DDTree's heap.

    A beam of N prefixes per depth, and of all beams the N best. Exact: of N best prefixes of a depth, each
    extends one of the N best of the depth before, and a prefix that extends the j-th best (from 0) by rank r
    is preceded by (j + 1)(r + 1) - 1 others of its depth. Equal costs come in the order of depth, then of the
    parent, then of rank, so that a parent always precedes its children.

    Source: DDTree, arXiv 2604.12989, propositions 1 and 2.
    """

    def __init__(self, num_positions: int, budget: int, device: torch.device | str) -> None:
        self.budget = budget
        self.num_ranks = budget
        self._num_depths = min(num_positions, budget)
        pairs = [(j, r) for j in range(budget) for r in range(budget // (j + 1))]
        self._beam_of_pair = torch.tensor([j for j, _ in pairs], device=device)
        self._rank_of_pair = torch.tensor([r for _, r in pairs], device=device)
        self._nodes = torch.arange(1, budget + 1, device=device)
        self._num_doublings = max(self._num_depths, 1).bit_length()

    def __call__(self, log_probs: Tensor, token_ids: Tensor, roots: Tensor) -> DraftTrees:
        """As `Builder` says."""
        num_requests, n = len(roots), self.budget
        costs, beam, rank = self._grow_beams(-log_probs[:, : self._num_depths])
        _, chosen = _cheapest(costs, n)
        depths = chosen.div(n, rounding_mode="floor") + 1
        tokens = token_ids.flatten(1).gather(1, (depths - 1) * token_ids.shape[2] + rank.gather(1, chosen))
        node_of_column = torch.zeros_like(beam)
        node_of_column.scatter_(1, chosen, self._nodes.expand(num_requests, n))
        # A node's parent lies in the beam of the depth before; the root's children have none.
        parent_column = (depths - 2) * n + beam.gather(1, chosen)
        parents = node_of_column.gather(1, parent_column.clamp(min=0)) * (depths > 1)
        zero = torch.zeros_like(roots).unsqueeze(1)
        parents = torch.cat([zero, parents], dim=1)
        return DraftTrees(
            tokens=torch.cat([roots.unsqueeze(1), tokens], dim=1),
            parents=parents,
            depths=torch.cat([zero, depths], dim=1),
            ancestors=find_ancestors(parents, self._num_doublings),
        )

    def _grow_beams(self, step_costs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Every depth's N cheapest prefixes, depth after depth, from the costs of single tokens, -log p.

        Returns:
            their costs, their parents' places in the beam before, and their ranks, [B, depths * N] each.
        """
        cost = step_costs[:, 0, : self.budget]
        costs, pairs = [cost], []
        of_pairs = step_costs[:, 1:, self._rank_of_pair]
        for depth in range(self._num_depths - 1):
            cost, pair = _cheapest(cost[:, self._beam_of_pair] + of_pairs[:, depth], self.budget)
            costs.append(cost)
            pairs.append(pair)
        # The first pairs are those of the root alone with all ranks.
        chosen = torch.cat([(self._nodes - 1).expand_as(cost), *pairs], dim=1)
        return torch.cat(costs, dim=1), self._beam_of_pair[chosen], self._rank_of_pair[chosen]


def _cheapest(costs: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The cheapest columns, equal ones by column: [B, M] float32 -> costs and columns, [B, number].

    A stable sort, since `topk` promises no order of equal values.
    """
    ordered, columns = costs.sort(dim=1, stable=True)
    return ordered[:, :number], columns[:, :number]


class ChainBuilder:
    """The tree without branches: DFlash's block as far as the budget goes. For checks against DFlash."""

    def __init__(self, num_positions: int, budget: int, device: torch.device | str) -> None:
        if budget > num_positions:
            raise ValueError(
                f"budget: expected at most {num_positions} for a chain, got {budget}; take a smaller width"
            )
        self.budget = budget
        self.num_ranks = 1
        self._order = torch.arange(budget + 1, device=device)

    def __call__(self, log_probs: Tensor, token_ids: Tensor, roots: Tensor) -> DraftTrees:
        """As `Builder` says; probabilities do not matter."""
        del log_probs
        num_requests, width = len(roots), self.budget + 1
        order = self._order.expand(num_requests, width)
        below = self._order.unsqueeze(1) >= self._order
        return DraftTrees(
            tokens=torch.cat([roots.unsqueeze(1), token_ids[:, : self.budget, 0]], dim=1),
            parents=(order - 1).clamp(min=0),
            depths=order.contiguous(),
            ancestors=below.expand(num_requests, width, width).contiguous(),
        )


def rank_tokens(logits: Tensor, num_ranks: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities at temperature 1 and ids of the most probable tokens, descending.

    Args:
        logits: [..., V] of any float dtype.
        num_ranks: how many; a single one is the first maximum, as `argmax` finds it.

    Returns:
        [..., num_ranks] float32 and int64.
    """
    log_probs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    if num_ranks == 1:
        token_ids = logits.argmax(dim=-1, keepdim=True)
        return log_probs.gather(-1, token_ids), token_ids
    best = log_probs.topk(num_ranks, dim=-1, sorted=True)
    return best.values, best.indices


def find_ancestors(parents: Tensor, num_doublings: int) -> Tensor:
    """Which nodes are ancestors, from the parents: [B, W] int64 -> [B, W, W] bool.

    After k doublings a row knows the ancestors that are less than 2^k edges away.
    """
    num_requests, width = parents.shape
    known = torch.eye(width, dtype=torch.bool, device=parents.device).expand(num_requests, width, width)
    jump = parents
    for _ in range(num_doublings):
        known = known | known.gather(1, jump.unsqueeze(2).expand(-1, -1, width))
        jump = jump.gather(1, jump)
    return known


def write_tree_mask(mask: Tensor, ancestors: Tensor, prefix_lens: Tensor) -> None:
    """Write who sees whom into a flat full mask.

    The requests follow one another, each W rows of its prefix and W tree nodes; a one means visible. Prefix
    cells are left alone: the kernel that reads this mask takes the prefix as visible.

    Args:
        mask: of at least sum(W * (prefix + W)) cells, uint8, written in place.
        ancestors: [B, W, W] bool.
        prefix_lens: tokens before the tree, [B] int64.
    """
    width = ancestors.shape[1]
    row_cells = (prefix_lens + width).view(-1, 1, 1)
    block_cells = row_cells * width
    order = torch.arange(width, device=mask.device)
    first = block_cells.cumsum(0) - block_cells + prefix_lens.view(-1, 1, 1)
    cells = first + order.unsqueeze(1) * row_cells + order
    mask.scatter_(0, cells.flatten(), ancestors.flatten().to(mask.dtype))


def accept(trees: DraftTrees, target_tokens: Tensor, max_path: int) -> Acceptance:
    """Keep the nodes whose token the target chose after their parent, and whose ancestors are kept.

    Siblings have different tokens, so the kept nodes are one path. Whatever the tree, the emitted tokens are
    those that the target chose after each kept node: lossless under greedy decoding and under sampling.

    Args:
        trees: that were verified.
        target_tokens: the target's choice after every node, [B, W] int64.
        max_path: columns of the result, more than any node's depth.
    """
    order = torch.arange(trees.tokens.shape[1], device=target_tokens.device)
    matches = (trees.tokens == target_tokens.gather(1, trees.parents)) | (order == 0)
    dropped = (trees.ancestors & ~matches.unsqueeze(1)).any(dim=2)
    # Dropped nodes are written to one column too many.
    columns = trees.depths.masked_fill(dropped, max_path)
    path = order.new_zeros(len(columns), max_path + 1).scatter_(1, columns, order.expand_as(columns))
    path = path[:, :max_path].contiguous()
    return Acceptance(path, (~dropped).sum(dim=1), target_tokens.gather(1, path))


def find_moves(slots: Tensor, acceptance: Acceptance) -> Tensor:
    """Where the kept nodes' keys and values lie and where they belong; equal where nothing moves.

    Args:
        slots: cache slot of every node, [B, W] int64; the path's end up in the first of them.
        acceptance: of the same trees, A columns.

    Returns:
        sources and targets, [2, B, A] int64.
    """
    max_path = acceptance.path.shape[1]
    targets = slots[:, :max_path]
    order = torch.arange(max_path, device=slots.device)
    valid = order < acceptance.lengths.unsqueeze(1)
    return torch.stack([slots.gather(1, acceptance.path).where(valid, targets), targets])
