"""By which names the registry's role bindings know a caller that came through the edge."""

from __future__ import annotations

TOKEN = "jwt-"
"""Leads the pseudonyms that stand for tokens' subjects where keys have their ids; no key's id has a dash."""


def principals_of(key_id: str, tenant: str) -> tuple[str, ...]:
    """The names, the most particular first: "key:<id>", and for callers with a token also "tenant:<id>".

    A tenant's roles are not those of its keys: whoever may make keys could otherwise make himself what he likes.

    :param key_id: of the key, or the pseudonym of a token's subject; may be empty for a token.
    """
    own = (f"key:{key_id}",) if key_id else ()
    is_token = not key_id or key_id.startswith(TOKEN)
    return (*own, f"tenant:{tenant}") if is_token and tenant else own
