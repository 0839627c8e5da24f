"""How a change is recorded: who, when, why, and each resource before and after."""

from __future__ import annotations

import json

from weir.registry.v1 import registry_pb2 as pb

from libs.registry import keys
from libs.resources.codec import located, redacted
from libs.resources.forms import to_plain


def history_key(nanoseconds: int, change_id: str) -> str:
    """Where the entry of a change lies; later changes sort behind earlier ones, as far as clocks agree.

    :param nanoseconds: since 1970.
    """
    return f"{keys.HISTORY}{nanoseconds:020d}-{change_id}"


def resource_of(key: str) -> str:
    """A resource's key as people see it: "/weir/v2/aliases/a" is "aliases/a"."""
    found = located(key)
    return f"{found[0].plural}/{found[1]}" if found is not None else key


def recorded(resource: pb.Resource | None) -> str:
    """A resource as the history tells it: JSON of its plain form, without its revision, secrets and bulk; empty when
    there is none.
    """
    if resource is None:
        return ""
    told = to_plain(redacted(resource, bulk=True))
    told["metadata"].pop("revision", None)
    return json.dumps(told, ensure_ascii=False, sort_keys=True)
