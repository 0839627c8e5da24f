"""Answers given before, for a plan's `cached_answer` step: bounded in bytes, oldest use out first.

Narrow on purpose. Only whole answers to requests whose answer does not depend on chance are kept, and the key holds
everything that shapes one: tenant, resolved version, prompt tokens, parameters, and the safety policies.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from libs.safety_filter import Restorer
from services.gateway.policy.events import Finish
from services.gateway.policy.spec import BoundParameters

_OVERHEAD = 512
"""Bytes that an entry costs beside its text, roughly."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer: a text and its finish per choice, and what it cost."""

    choices: tuple[tuple[str, Finish], ...]
    prompt_tokens: int
    completion_tokens: int
    simulated: bool = False

    @property
    def size(self) -> int:
        """Bytes it takes, at most: a character takes one to four."""
        return _OVERHEAD + 4 * sum(len(text) for text, _ in self.choices)


def restored(answer: Answer, values: Mapping[str, str], *, json: bool) -> Answer:
    """The answer with the words of whoever gets it, where the model got tokens for theirs."""

    def shown(text: str) -> str:
        restorer = Restorer(values, json=json)
        return restorer.feed(text) + restorer.finish()

    return replace(answer, choices=tuple((shown(text), finish) for text, finish in answer.choices))


def repeatable(bound: BoundParameters, *, seeded: bool) -> bool:
    """Whether the same request gets the same answer again; `seeded` by the caller, not here."""
    return (bound.temperature == 0 or seeded) and bound.logprobs is None


def answer_key(
    tenant: str, model_version: str, prompt: Sequence[int], bound: BoundParameters, policies: Sequence[str]
) -> bytes:
    """The key of a request; `policies` are those of safety that are in force, "default@1"."""
    hasher = blake2b(digest_size=16)
    for part in (tenant, model_version, " ".join(policies), repr(bound)):
        raw = part.encode("utf-8", "surrogatepass")
        hasher.update(len(raw).to_bytes(4, "little"))
        hasher.update(raw)
    hasher.update(array("I", prompt).tobytes())
    return hasher.digest()


class AnswerCache:
    """Least recently used out first, once the answers take more than `max_bytes`."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[Answer, float]] = OrderedDict()
        self.size = 0
        """Bytes taken."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: bytes, answer: Answer, now: float) -> None:
        """Keep an answer that was complete at `now` (monotonic seconds); one that would fill the cache is not kept."""
        self._drop(key)
        if answer.size > self._max_bytes // 8:
            return
        self._entries[key] = (answer, now)
        self.size += answer.size
        while self.size > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def get(self, key: bytes, *, max_age: float, now: float) -> Answer | None:
        """The answer, if it is at most `max_age` seconds old."""
        found = self._entries.get(key)
        if found is None or now - found[1] > max_age:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def _drop(self, key: bytes) -> None:
        if (found := self._entries.pop(key, None)) is not None:
            self.size -= found[0].size
