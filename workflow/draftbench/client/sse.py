"""Server-sent events from bytes that may be cut anywhere.

Source: WHATWG HTML, section 9.2.6 "Interpreting an event stream"; the one difference is `finish`, which also
dispatches an event whose closing blank line never came.
"""

from dataclasses import dataclass

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class SseEvent:
    """One dispatched event.

    Attributes:
        data: the data lines joined by line feeds; may be empty.
        name: the `event:` field, `message` where there is none.
        event_id: the last `id:` field seen, empty where there is none.
    """

    data: str
    name: str = "message"
    event_id: str = ""


class SseParser:
    """Feed it bytes as they come; it returns the events they complete.

    Linear in the number of bytes: an unfinished line is kept as its pieces and joined once.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._skips_line_feed = False
        self._is_at_start = True
        self._data: list[str] = []
        self._name = ""
        self._event_id = ""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Events completed by `chunk`, in order."""
        if self._skips_line_feed and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._skips_line_feed = False
        events: list[SseEvent] = []
        for line in chunk.splitlines(keepends=True):
            self._pieces.append(line)
            if line.endswith((b"\n", b"\r")):
                # A CR ends its line at once; if an LF follows in the next read, both are one line end.
                self._skips_line_feed = line.endswith(b"\r")
                self._take_line(events)
        return events

    def finish(self) -> list[SseEvent]:
        """The event that the end of the stream completes, if one is pending."""
        events: list[SseEvent] = []
        if self._pieces:
            self._take_line(events)
        self._dispatch(events)
        return events

    def _take_line(self, events: list[SseEvent]) -> None:
        line = b"".join(self._pieces).rstrip(b"\r\n")
        self._pieces.clear()
        if self._is_at_start:
            line = line.removeprefix(BYTE_ORDER_MARK)
            self._is_at_start = False
        if not line:
            self._dispatch(events)
        elif not line.startswith(b":"):
            name, _, value = line.partition(b":")
            self._take_field(name, value.removeprefix(b" ").decode(errors="replace"))

    def _take_field(self, name: bytes, value: str) -> None:
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        elif name == b"id" and "\0" not in value:
            self._event_id = value

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data:
            events.append(SseEvent("\n".join(self._data), self._name or "message", self._event_id))
        self._data.clear()
        self._name = ""
