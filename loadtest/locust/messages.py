"""What locust's process and the one that sends for it tell each other: lines of JSON over the sender's standard input
and output. The first line is a `Settings`, each further one an `Ask`; each answer is a `Told`.

Two processes, because locust replaces blocking calls by gevent's everywhere in its own, which gRPC does not live with,
and because first tokens are timed best where nothing else runs.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from loadtest.overload.samples import OK

CHAT, INTERNAL, OPERATOR = "chat", "internal", "operator"
"""Kinds of users."""


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user's wish."""

    id: int
    """Unique among those under way."""
    do: Literal["chat", "internal", "operator", "leave"]
    """A request of that kind of user, a rollout for the operator; "leave": give up the one with this id."""
    key: int = 0
    """Of a chat: which of the keys, in turn."""
    user: str = ""
    """Of a chat: for whom."""
    prompt_tokens: int = 0
    output_tokens: int = 0


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of it. Times in seconds since it was sent."""

    id: int
    outcome: str = OK
    """`OK`, a reason of the mesh, or how it failed."""
    seconds: float = 0.0
    events: tuple[float, ...] = ()
    """When each event with text came."""
    tokens: int = 0
    """Output tokens."""
    retry_after: float | None = None
    """When a refused caller may come back."""
    version: str = ""
    """The model version that answered."""
    steps: tuple[tuple[str, float], ...] = ()
    """Of a rollout: what was reached, and when."""
    note: str = ""
    """Of a rollout that failed: why, in words."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """The sender's last line."""

    cpu_seconds: float
    events: int
    """Events with text of all streams."""
