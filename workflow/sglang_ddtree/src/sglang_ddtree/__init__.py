"""DDTree for SGLang 0.5.17: draft trees from a DFlash drafter's block, verified at once.

SGLang finds `register` by the entry point group `sglang.srt.plugins` in every process that it starts.
"""


def register() -> None:
    """Make the speculative algorithm DDTREE_OOT known; a second call changes nothing."""
    # SGLang loads all plugins for all servers: nothing is imported before it asks.
    from sglang_ddtree.algorithm import register_algorithm  # noqa: PLC0415

    register_algorithm()
