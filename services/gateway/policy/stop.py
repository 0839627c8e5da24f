"""Stop strings over a stream of text: the output ends before the first of them, wherever the chunks were cut."""

from __future__ import annotations


class StopScanner:
    """Feeds text through, holding back only what could be the beginning of a stop string.

    With no stop strings it costs one truth test per call.
    """

    __slots__ = ("_held", "_stops", "stopped")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    @property
    def held(self) -> int:
        """Characters taken in that may still become a stop string."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Take new text; return what may go on. Sets `stopped` once a stop string is complete; what follows is
        dropped."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """No more text comes: return what was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
