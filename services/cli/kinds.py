"""Kinds and resources as they are written on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from libs.near import near
from libs.resources.kind import Kind
from libs.resources.kinds import BY_NAME, BY_PLURAL, KINDS
from services.cli.app import UsageError

ALL = "all"


def names_of(kind: Kind) -> set[str]:
    """Everything that the kind is called, in lower case and without dashes."""
    plural = kind.plural
    singular = {plural.removesuffix(end) for end in ("s", "es") if plural.endswith(end)}
    return {_bare(each) for each in (plural, kind.name, *kind.short, *singular)}


def kind_called(word: str) -> Kind:
    """The kind of that name.

    :raises UsageError: there is none.
    """
    for kind in KINDS:
        if _bare(word) in names_of(kind):
            return kind
    meant = near(word.lower(), [*BY_PLURAL, *(kind.name.lower() for kind in KINDS)])
    raise UsageError(f"no kind {word!r}{meant}; `weir api-resources` lists them")


def kinds_called(words: str) -> list[Kind]:
    """The kinds of a list such as "tenants,limits"; of "all", what can be applied."""
    if words == ALL:
        return [kind for kind in KINDS if kind.applied]
    return [kind_called(word) for word in words.split(",")]


def targets(words: Sequence[str]) -> list[tuple[Kind, str]]:
    """What KIND NAME…, or KIND/NAME…, names.

    :raises UsageError: it names nothing, or a kind that there is not.
    """
    if not words:
        raise UsageError("name what is meant: KIND NAME, or KIND/NAME")
    if "/" in words[0]:
        return [(kind_called(word.partition("/")[0]), word.partition("/")[2]) for word in words]
    kind = kind_called(words[0])
    if kind.fixed and len(words) == 1:
        return [(kind, kind.fixed)]
    return [(kind, name) for name in words[1:]]


def one(words: Sequence[str]) -> tuple[Kind, str]:
    """The one resource that is named.

    :raises UsageError: there is not one.
    """
    found = targets(words)
    if len(found) != 1 or not found[0][1]:
        raise UsageError("name one resource: KIND NAME, or KIND/NAME")
    return found[0]


def some(words: Sequence[str]) -> tuple[str, str]:
    """The kind's name and the resource's of [KIND [NAME]]; empty where there is none."""
    if not words:
        return "", ""
    if len(words) == 1 and "/" not in words[0]:
        return kind_called(words[0]).name, ""
    kind, name = one(words)
    return kind.name, name


def label(kind: str, name: str) -> str:
    """ "tenants/acme": a resource in a message and in `-o name`, as it can be written on the command line."""
    return f"{BY_NAME[kind].plural}/{name}" if kind in BY_NAME else f"{kind}/{name}"


def _bare(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
