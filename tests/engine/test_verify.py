"""The walk through a verified tree."""

from draftbench.engine.tree import make_chain, make_tree
from draftbench.engine.verify import walk_tree

TREE = make_tree([50, 10, 11, 20, 21, 30], [-1, 0, 0, 2, 2, 4])


def walk(tree, choices):
    return walk_tree(tree, lambda node, _: choices[node])


def test_a_first_choice_outside_the_tree_emits_that_choice_alone():
    result = walk(TREE, [99, 0, 0, 0, 0, 0])
    assert (result.path, result.token_ids) == ([0], [99])


def test_the_walk_follows_children_and_ends_with_the_targets_own_token():
    result = walk(TREE, [11, 0, 21, 0, 30, 77])
    assert (result.path, result.token_ids) == ([0, 2, 4, 5], [11, 21, 30, 77])


def test_a_token_that_only_another_branch_holds_ends_the_walk():
    assert walk(TREE, [10, 21, 0, 0, 0, 0]).path == [0, 1]


def test_a_chain_accepts_the_leading_matches_only():
    result = walk(make_chain([5, 6, 7, 8]), [6, 99, 8, 1])
    assert (result.path, result.token_ids) == ([0, 1], [6, 99])


def test_choices_are_drawn_on_the_path_only_and_know_their_depth():
    asked = []

    def choose(node, depth):
        asked.append((node, depth))
        return {0: 11, 2: 20}.get(node, 99)

    walk_tree(TREE, choose)
    assert asked == [(0, 0), (2, 1), (3, 2)]
