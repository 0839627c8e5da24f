"""What a stored record says of usage. Of a sealed one its header does: bills outlive what is erased."""

from __future__ import annotations

import msgspec

UNKNOWN = "usage_unknown"
"""The outcome of a request whose gateway is gone with its disk."""
LOST = frozenset({"gateway_lost", "predictor_lost"})
"""Outcomes of requests whose gateway or predictor was killed."""
PREDICT = "predict"
"""The operation of predictions."""
REFUSED = frozenset({"rejected", "evicted"})
"""Outcomes of requests that did not run."""


class Event(msgspec.Struct):
    """A request, as far as it bears on usage."""

    request_id: str = ""
    tenant: str = ""
    key_id: str = ""
    user: str = ""
    model: str = ""
    model_version: str = ""
    queue_class: str = ""
    operation: str = ""
    outcome: str = ""
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    spend_microusd: int = 0
    at_most_tokens: int = 0
    at_most_microusd: int = 0
    rows: int = 0
    at_most_rows: int = 0
    lease: str = ""
    """What its rows were drawn from, with others."""


class Used(msgspec.Struct):
    """A request's usage. `id` is the request's."""

    id: str
    time: str
    """RFC 3339, UTC."""
    event: Event
    sealed_by: str = ""
    """The name of the key that seals the rest of the record, "2026-11/<16 hex digits>": an end user's is another one
    in each month, says nothing to who has no key, and is nobody's once it is destroyed. Empty: nothing is sealed."""

    @property
    def unknown(self) -> bool:
        """Nobody knows what it used; `event` says what it can have used at most."""
        return self.event.outcome == UNKNOWN

    @property
    def vanished(self) -> bool:
        """Who served it was killed before anybody had a token or a prediction: the edge has sent the same request to
        another one, whose record counts."""
        return self.event.outcome in LOST and not self.event.completion_tokens


class _Record(msgspec.Struct):
    id: str = ""
    time: str = ""
    tenant: str = ""
    key: str = ""
    request: Event | None = None
    usage: Event | None = None


_decode = msgspec.json.Decoder(_Record).decode


def read(record: bytes) -> Used | None:
    """What a record says; None where it is of no request.

    :raises msgspec.DecodeError: it is no record.
    """
    if b'"request":{' not in record and b'"usage":{' not in record:  # most of the cost is spared for the others
        return None
    found = _decode(record)
    event = found.request or found.usage
    if event is None:
        return None
    event.tenant = event.tenant or found.tenant
    name = event.request_id or found.id.removeprefix("unknown-").partition("/")[0]
    return Used(name, found.time, event, found.key)
