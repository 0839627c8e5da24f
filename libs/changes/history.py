"""How a change is recorded: who, when, why, and each resource before and after."""

from __future__ import annotations

import json
from collections.abc import Mapping

from libs.registry import keys

_LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    # The hash would let whoever reads the history check guesses, could they get at the pepper.
    keys.KEYS: ("hash",),
    # Bulk that nobody reads and nothing is restored from.
    keys.MODELS: ("signature",),
    keys.BUDGETS: ("windows",),
}


def history_key(nanoseconds: int, change_id: str) -> str:
    """Where the entry of a change lies; later changes sort behind earlier ones, as far as clocks agree.

    :param nanoseconds: since 1970.
    """
    return f"{keys.HISTORY}{nanoseconds:020d}-{change_id}"


def resource_of(key: str) -> str:
    """A store key as people see it: "/weir/v1/aliases/a" is "aliases/a"."""
    return key.removeprefix(keys.ROOT)


def recorded(key: str, value: bytes | None) -> str:
    """A stored value as the history tells it: the very JSON, without secrets and bulk; empty when there is none."""
    if value is None:
        return ""
    text = value.decode("utf-8", "replace")
    for prefix, fields in _LEFT_OUT.items():
        if key.startswith(prefix):
            return _without(text, fields)
    return text


def _without(text: str, fields: tuple[str, ...]) -> str:
    try:
        content = json.loads(text)
    except ValueError:
        # Not ours to show: it may hold what is left out.
        return ""
    for field in fields:
        content.pop(field, None)
    return json.dumps(content, sort_keys=True)
