"""Token ids to text while they arrive: whole characters only, stop strings held back."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A UTF-8 character has at most four bytes, so at most three broken ones can still become a character.
MAX_HELD_CHARACTERS = 3
# Each push decodes a window of at most this many old tokens, whatever the length of the output.
MAX_WINDOW_TOKENS = 16
# Left context that a shortened window keeps: some decoders treat the first token's blank differently.
KEPT_TOKENS = 8


class Detokenizer:
    """Incremental decoding: the pieces, joined, equal the decoding of all ids at once.

    Args:
        decode: token ids to text, writing U+FFFD for bytes that are no character (yet).
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._num_sent = 0  # characters of the window's text that were given out

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these ids complete; an unfinished character waits for its other bytes."""
        self._window.extend(token_ids)
        text = self._decode(self._window)
        broken = text[-MAX_HELD_CHARACTERS:]
        end = len(text) - (len(broken) - len(broken.rstrip(REPLACEMENT)))
        piece = text[self._num_sent : end]
        self._num_sent = max(self._num_sent, end)
        if len(self._window) > MAX_WINDOW_TOKENS:
            self._shorten(num_held=len(text) - self._num_sent)
        return piece

    def flush(self) -> str:
        """What was held back, when no more ids come."""
        piece = self._decode(self._window)[self._num_sent :]
        self._num_sent += len(piece)
        return piece

    def _shorten(self, num_held: int) -> None:
        window = self._window[-KEPT_TOKENS:]
        num_characters = len(self._decode(window))
        if num_characters >= num_held:  # else tokens without text follow the held bytes: keep the window
            self._window, self._num_sent = window, num_characters - num_held


class StopStrings:
    """Passes text on up to the first stop string; what may be the beginning of one is held back.

    Attributes:
        matched: the stop string that was found, after which nothing more passes.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The part of the text so far that can be given out."""
        text = self._held + text
        found = [(text.index(stop), stop) for stop in self._stops if stop in text]
        if found:
            position, self.matched = min(found, key=lambda pair: pair[0])
            self._held = ""
            return text[:position]
        num_held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins, `stop` itself excluded."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
