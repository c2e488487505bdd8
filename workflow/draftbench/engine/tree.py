"""Draft trees: their shape, and how DDTree grows one from a drafter's marginals."""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

Marginal = tuple[list[float], list[int]]
"""Log-probabilities of one position's most probable tokens, descending, and their token ids."""


@dataclass(frozen=True)
class DraftTree:
    """Draft tokens as a tree; node 0 is the root, the last emitted token, which no budget counts.

    Nodes are in the order in which they were chosen, so a parent comes before its children.

    Attributes:
        tokens: [N] int64.
        parents: index of each node's parent, [N] int64; the root's is -1.
        depths: edges to the root, [N] int64.
        ancestors: [N, N] bool, true where the column is an ancestor of the row or the row itself.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    depths: NDArray[np.int64]
    ancestors: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self) -> list[dict[int, int]]:
        """Of each node, the child's index by the child's token."""
        found: list[dict[int, int]] = [{} for _ in range(len(self))]
        for node, (token, parent) in enumerate(zip(self.tokens.tolist(), self.parents.tolist(), strict=True)):
            if parent >= 0:
                found[parent][token] = node
        return found


def make_tree(tokens: list[int], parents: list[int]) -> DraftTree:
    """A tree from its nodes in topological order, the root first with parent -1."""
    num_nodes, num_bytes = len(tokens), (len(tokens) + 7) // 8
    depths, masks = [0], [1]  # a mask has bit i where node i is an ancestor or the node itself
    for node, parent in enumerate(parents[1:], start=1):
        depths.append(depths[parent] + 1)
        masks.append(masks[parent] | 1 << node)
    packed = np.frombuffer(b"".join(mask.to_bytes(num_bytes, "little") for mask in masks), np.uint8)
    rows = packed.reshape(num_nodes, num_bytes)
    ancestors = np.unpackbits(rows, axis=1, count=num_nodes, bitorder="little").view(np.bool_)
    return DraftTree(np.array(tokens), np.array(parents), np.array(depths), ancestors)


def make_chain(tokens: list[int]) -> DraftTree:
    """The tree without branches: a root and its draft tokens one after another, as DFlash verifies them."""
    num_nodes = len(tokens)
    order = np.arange(num_nodes)
    return DraftTree(np.array(tokens), order - 1, order, np.tri(num_nodes, dtype=np.bool_))


def build_tree(root: int, marginals: Iterable[Marginal], budget: int, floor: float = -math.inf) -> DraftTree:
    """The `budget` most probable prefixes under the product of a block's marginals.

    Under that product the expected number of accepted draft tokens of a tree is the sum of its nodes'
    probabilities, and the most probable prefixes are closed under taking prefixes, so they are the best
    tree of this size. A heap yields them best first: a taken node makes its next sibling and its first
    child candidates, which costs O(budget log budget).

    Ties: equally probable prefixes are taken in the lexicographic order of their ranks (rank 0 is the
    most probable token of a position), so a prefix comes before what extends it.

    Args:
        root: the last emitted token.
        marginals: of the positions, in their order; one is taken only when the tree reaches it. Tokens that
            it lacks are not considered, which changes nothing where it has `budget`, or all above the floor.
        budget: nodes without the root; fewer come out where fewer prefixes exist.
        floor: no prefix of a smaller log-probability is taken.

    Source: DDTree, arXiv 2604.12989, propositions 1 and 2 and lemma 1.
    """
    unread = iter(marginals)
    levels = list(islice(unread, 1))
    tokens, parents, scores = [root], [-1], [0.0]
    heap: list[tuple[float, tuple[int, ...], int]] = [(-log_probs[0], (0,), 0) for log_probs, _ in levels]
    while heap and len(tokens) <= budget and heap[0][0] <= -floor:
        cost, ranks, parent = heapq.heappop(heap)
        level, rank = len(ranks), ranks[-1]
        log_probs, token_ids = levels[level - 1]
        node = len(tokens)
        tokens.append(token_ids[rank])
        parents.append(parent)
        scores.append(-cost)
        if rank + 1 < len(token_ids):
            sibling = scores[parent] + log_probs[rank + 1]
            heapq.heappush(heap, (-sibling, (*ranks[:-1], rank + 1), parent))
        if level == len(levels) and node < budget:
            levels.extend(islice(unread, 1))
        if level < len(levels):
            heapq.heappush(heap, (cost - levels[level][0][0], (*ranks, 0), node))
    return make_tree(tokens, parents)
