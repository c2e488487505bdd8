"""The walk through a verified tree: which draft tokens are kept, and the token after them."""

from collections.abc import Callable
from dataclasses import dataclass

from draftbench.engine.tree import DraftTree


@dataclass(frozen=True)
class Walk:
    """What one verification decided.

    Attributes:
        path: node indices from the root to the last accepted node.
        token_ids: the emitted tokens: the accepted ones and the target's own one after them.
    """

    path: list[int]
    token_ids: list[int]


def walk_tree(tree: DraftTree, choose: Callable[[int, int], int]) -> Walk:
    """Descend from the root while the target's choice is a child; lossless at every temperature.

    Each choice is drawn from the target's distribution after the node's path and is emitted whether or
    not the tree holds it, so the emitted tokens are distributed as the target's own, whatever the tree.

    Args:
        tree: that was verified.
        choose: the target's token after node `node` at depth `depth`; called once per node of the path.

    Source: the verification of DDTree, arXiv 2604.12989; for a chain, that of DFlash, arXiv 2602.06036,
    under greedy decoding.
    """
    children = tree.children()
    path, token_ids = [0], [choose(0, 0)]
    while (child := children[path[-1]].get(token_ids[-1])) is not None:
        path.append(child)
        token_ids.append(choose(child, len(path) - 1))
    return Walk(path, token_ids)
