"""Which slot a request gets, and what is kept in the others."""

from draftbench.engine.slots import SlotPool


def filled(*texts: tuple[int, ...]) -> SlotPool:
    """A pool that held these texts one after the other, each in a slot of its own, and one more slot."""
    pool = SlotPool(len(texts) + 1)
    slots = [pool.acquire(text)[0] for text in texts]
    for slot, text in zip(slots, texts, strict=True):
        pool.release(slot, text)
    return pool


def test_the_longest_kept_prefix_is_found():
    pool = filled((1, 2, 3), (1, 2, 4, 5), (6,))
    longest, length = pool.acquire((1, 2, 4, 5, 7))
    assert length == 4
    pool.release(longest, (1, 2, 4, 5, 7, 8))
    assert pool.acquire((1, 2, 4, 5, 7, 8, 9)) == (longest, 6)


def test_an_empty_slot_is_taken_before_a_kept_text_is_given_up():
    pool = SlotPool(2)
    kept, aborted = (pool.acquire(text)[0] for text in ((1, 2), (3, 4)))
    pool.release(kept, (1, 2))
    pool.release(aborted, ())  # before any of its rows was run
    assert pool.acquire((9, 9)) == (aborted, 0)
    assert pool.acquire((1, 2, 5)) == (kept, 2)


def test_the_least_recently_used_text_is_given_up_first():
    pool = filled((1, 2), (3, 4))
    pool.acquire((9, 9))  # the empty one
    old, _ = pool.acquire((1, 2, 3))
    pool.release(old, (1, 2, 3))
    pool.acquire((8, 8))
    assert pool.acquire((1, 2, 3, 4)) == (old, 3)
