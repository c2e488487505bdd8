"""Which cache slot a request gets, and the prefix that an earlier request left in it."""

from collections.abc import Sequence as TokenIds
from itertools import takewhile


class SlotPool:
    """Free slots with the tokens whose keys and values they still hold, least recently used first."""

    def __init__(self, num_slots: int) -> None:
        self._kept: dict[int, tuple[int, ...]] = dict.fromkeys(range(num_slots), ())

    @property
    def num_free(self) -> int:
        """Slots that no request holds."""
        return len(self._kept)

    def acquire(self, prompt_ids: TokenIds[int]) -> tuple[int, int]:
        """Take the free slot that shares the longest prefix with a prompt.

        Among equals one that holds nothing goes first, then the least recently used. At least one
        prompt token is left to be run, since its logits are needed.

        Returns:
            the slot and the length of the prefix.
        """
        lengths = {slot: shared_length(kept, prompt_ids) for slot, kept in self._kept.items()}
        slot = max(lengths, key=lambda slot: (lengths[slot], not self._kept[slot]))
        del self._kept[slot]
        return slot, min(lengths[slot], len(prompt_ids) - 1)

    def release(self, slot: int, token_ids: TokenIds[int]) -> None:
        """Give a slot back, with the tokens that its first rows belong to."""
        self._kept[slot] = tuple(token_ids)

    def flush(self) -> None:
        """Forget the tokens of all free slots."""
        self._kept = dict.fromkeys(self._kept, ())


def shared_length(left: TokenIds[int], right: TokenIds[int]) -> int:
    """Length of the longest common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
