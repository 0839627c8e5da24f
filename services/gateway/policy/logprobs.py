"""Which log-probabilities of tokens may leave with the text that a filter lets go. Pure.

They spell the tokens, so they must neither run ahead of the filter nor tell what it replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from services.gateway.policy.events import Logprob


class HeldLogprobs:
    """Those of one sequence whose text is not decided yet. Places are characters of what was fed to the filter."""

    __slots__ = ("_before", "_consumed", "_entries", "_hidden", "_shift", "_unspelt")

    def __init__(self) -> None:
        self._consumed = 0  # characters that are decided
        self._before = self._shift = 0  # by how many more of them left: before the last decision, and with it
        self._entries: deque[tuple[int, int, Logprob]] = deque()  # with the characters [begin, end) of each token
        self._unspelt: list[Logprob] = []  # of tokens whose text comes with a later one's
        self._hidden: list[tuple[int, int]] = []  # characters that the filter replaced

    def add(self, one: Logprob, end: int) -> None:
        """One more token's; with it the text reaches to `end`."""
        self._unspelt.append(one)
        if end > one.offset:  # it completes what those before it began
            self._entries.extend((one.offset, end, each) for each in self._unspelt)
            self._unspelt.clear()

    def decide(self, left: int, consumed: int, replaced: Sequence[tuple[int, int]]) -> None:
        """`consumed` characters are decided now, and `left` more have left for them; what was `replaced` among them
        did not leave as it was."""
        self._before, self._shift = self._shift, self._shift + left - (consumed - self._consumed)
        self._consumed = consumed
        self._hidden.extend(replaced)

    def release(self, *, last: bool) -> list[Logprob]:
        """Those of the tokens whose text is decided and left; `last`: nothing more comes. What was replaced before the
        last decision moved the text; what was replaced in it moves the tokens behind that."""
        released: list[Logprob] = []
        while self._entries and self._entries[0][1] <= self._consumed:
            begin, end, one = self._entries.popleft()
            if not self._is_hidden(begin, end):
                moved = self._shift if any(behind <= begin for _, behind in self._hidden) else self._before
                released.append(replace(one, offset=one.offset + moved) if moved else one)
        if last and not self._entries and not self._is_hidden(self._consumed - 1, self._consumed):
            # Such as the token that ended it.
            released += [replace(one, offset=one.offset + self._shift) for one in self._unspelt]
        undecided = self._entries[0][0] if self._entries else self._consumed
        self._hidden = [span for span in self._hidden if span[1] > undecided]
        return released

    def _is_hidden(self, begin: int, end: int) -> bool:
        return any(first < end and begin < behind for first, behind in self._hidden)
