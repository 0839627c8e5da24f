"""Going on with an answer that was given in part: what must be as it was, and what of it is not given again.

The answer is computed anew from its beginning, with the seed and the version that it had, and what its reader has of it
is held against what the cursor says of that and dropped. So it does not matter here how an engine comes to the same
tokens: it gives the same text so far, or the stream ends with CURSOR_GONE before a wrong word left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from msgspec.structs import replace

from libs.cursor import Cursor, Origin, Position
from libs.errors import Reason, WeirError
from services.gateway.policy.answers import answer_key
from services.gateway.policy.events import Finish, Logprob
from services.gateway.policy.spec import BoundParameters

_ENTIRE = frozenset({Finish.STOP, Finish.LENGTH, Finish.CONTENT_FILTER})
"""A choice that ended so says nothing more."""


class Cut(NamedTuple):
    """What of a piece of output its reader has not."""

    text: str
    logprobs: list[Logprob] | None
    news: bool
    """There is something to be told."""


def ends(finish: Finish | None) -> bool:
    """Whether a choice that ended so has nothing more to say, however often it is computed."""
    return finish in _ENTIRE


def begun_of(cursor: Cursor | None) -> list[int]:
    """The choices whose first event its reader has."""
    positions = () if cursor is None else cursor.positions
    return [index for index, position in enumerate(positions) if position.offset or position.ended]


def origin_of(
    request_id: str,
    created: int,
    *,
    tenant: str,
    model_version: str,
    prompt: Sequence[int],
    bound: BoundParameters,
    policies: Sequence[str],
) -> Origin:
    """What an answer that begins with this can be computed anew from; `bound` with its seed."""
    return Origin(
        request_id=request_id,
        created=created,
        model_version=model_version,
        seed=bound.seed,
        max_tokens=bound.max_tokens,
        choices=bound.n,
        logprobs=bound.logprobs is not None,
        digest=answer_key(tenant, model_version, prompt, bound, policies)[:8],
    )


def pinned(bound: BoundParameters, origin: Origin) -> BoundParameters:
    """The parameters of the answer that is gone on with.

    :raises WeirError: CURSOR_GONE: it was allowed more tokens than it would be now.
    """
    if origin.max_tokens > bound.max_tokens:
        raise gone("limits have changed, and it would be shorter now")
    return replace(bound, seed=origin.seed, max_tokens=origin.max_tokens)


def check_same(
    origin: Origin,
    *,
    tenant: str,
    model_version: str,
    prompt: Sequence[int],
    bound: BoundParameters,
    policies: Sequence[str],
) -> None:
    """The same would be asked of the version as before.

    :raises WeirError: CURSOR_GONE.
    """
    if answer_key(tenant, model_version, prompt, bound, policies)[:8] != origin.digest:
        raise gone("what the request is read with (safety policies, template, defaults) has changed")


def gone(why: str) -> WeirError:
    """The stream cannot go on."""
    return WeirError(Reason.CURSOR_GONE, f"the stream cannot go on where it was: {why}", limit="last_event_id")


class Remainder:
    """Cuts off what was delivered, choice by choice."""

    __slots__ = ("_checks", "_dropped", "_positions", "_seen")

    def __init__(self, positions: Sequence[Position]) -> None:
        self._positions = positions
        self._seen = [0] * len(positions)
        self._checks = [0] * len(positions)
        self._dropped = [0] * len(positions)  # log-probabilities

    def cut(self, index: int, text: str, logprobs: list[Logprob] | None, finish: Finish | None) -> Cut:
        """What is new of a choice's next output.

        :raises WeirError: CURSOR_GONE: it is not what was delivered.
        """
        position = self._positions[index]
        known = min(position.offset - self._seen[index], len(text))
        if known > 0:
            self._checks[index] = crc32(text[:known].encode("utf-8", "surrogatepass"), self._checks[index])
            self._seen[index] += known
            text = text[known:]
            if self._seen[index] == position.offset and self._checks[index] != position.check:
                raise _differs()
        if logprobs is not None and (left := position.logprobs - self._dropped[index]) > 0:
            self._dropped[index] += min(left, len(logprobs))
            logprobs = logprobs[left:]
        if (ends(finish) and self._seen[index] < position.offset) or (position.ended and text):
            raise _differs()
        return Cut(text, logprobs, bool(text or logprobs) or (finish is not None and not position.ended))


def _differs() -> WeirError:
    return gone("its engine does not give the same tokens again")


class Resumptions:
    """How often answers were gone on with here, and what they were billed: computing what a reader has already is free
    `most` times for each. Bounded: the longest unused are forgotten."""

    def __init__(self, *, most: int, answers: int) -> None:
        self._most = most
        self._answers = answers
        self._known: OrderedDict[tuple[str, str], list[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def begin(self, tenant: str, cursor: Cursor) -> int | None:
        """One more time; see `Resumed.billed`."""
        entry = self._entry(tenant, cursor.origin.request_id)
        entry[0] += 1
        return max(entry[1], cursor.tokens) if entry[0] <= self._most else None

    def ended(self, tenant: str, request_id: str, tokens: int) -> None:
        """An answer that could be gone on with has ended here before it was whole, billed up to so many tokens."""
        entry = self._entry(tenant, request_id)
        entry[1] = max(entry[1], tokens)

    def _entry(self, tenant: str, request_id: str) -> list[int]:
        key = (tenant, request_id)
        entry = self._known.setdefault(key, [0, 0])
        self._known.move_to_end(key)
        if len(self._known) > self._answers:
            self._known.popitem(last=False)
        return entry
