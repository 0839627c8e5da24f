"""Which resources name which: for what must exist, what must stay, and what comes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import Message

from libs.resources.checks.bounds import entry, shown
from libs.resources.checks.faults import Fault
from libs.resources.kind import Kind, Ref
from libs.resources.kinds import ATTRIBUTE, BY_MESSAGE, BY_PLURAL
from libs.resources.snapshot import RegistrySnapshot

ANY = "*"


def missing(message: Message, snapshot: RegistrySnapshot) -> Iterator[Fault]:
    """A fault for every field that names what is not there."""
    kind = BY_MESSAGE[type(message)]
    for ref in () if kind.over(message) else kind.refs:
        for path, name in _names(message, ref):
            if not _named(ref, name, snapshot):
                field = "metadata.name" if path.lstrip(".") in kind.key else f"spec{path}"
                what = " or ".join(_singular(BY_PLURAL[plural]) for plural in ref.to)
                yield Fault(field, f"no {what} {shown(name)}" + ("; use '*' for all" if ref.any else ""))


def referrers(kind: Kind, name: str, snapshot: RegistrySnapshot) -> Iterator[tuple[Kind, str]]:
    """Every resource that names this one and would miss it, by kind and name."""
    yield from referrers_of([(kind.plural, name)], snapshot).get((kind.plural, name), ())


def referrers_of(
    targets: Iterable[tuple[str, str]], snapshot: RegistrySnapshot
) -> dict[tuple[str, str], list[tuple[Kind, str]]]:
    """As `referrers`, of many at the price of one look at everything.

    :param targets: plural and name of each; one that nothing names is not in the answer.
    """
    wanted, found = frozenset(targets), dict[tuple[str, str], list[tuple[Kind, str]]]()
    for other, message in _referring(frozenset(plural for plural, _ in wanted), snapshot):
        named = {
            (plural, value)
            for ref in other.refs
            for _, value in _names(message, ref)
            for plural in ref.to
            # A name that is both an alias and a version is still there when one of them goes.
            if (plural, value) in wanted and not any(p != plural and _holds(p, value, snapshot) for p in ref.to)
        }
        for each in named:
            found.setdefault(each, []).append((other, other.name_of(message)))
    return found


def named_by(message: Message, to: tuple[str, ...]) -> Iterator[str]:
    """What a message names by references to exactly these kinds, there or not."""
    for ref in BY_MESSAGE[type(message)].refs:
        if ref.to == to:
            yield from (name for _, name in _names(message, ref) if name)


def _referring(plurals: frozenset[str], snapshot: RegistrySnapshot) -> Iterable[tuple[Kind, Message]]:
    for other in BY_PLURAL.values():
        if any(plurals.intersection(ref.to) for ref in other.refs):
            collection = getattr(snapshot, ATTRIBUTE[other.plural])
            yield from ((other, collection[key]) for key in sorted(collection) if not other.over(collection[key]))


def _named(ref: Ref, name: str, snapshot: RegistrySnapshot) -> bool:
    return not name or (ref.any and name == ANY) or any(_holds(plural, name, snapshot) for plural in ref.to)


def _holds(plural: str, name: str, snapshot: RegistrySnapshot) -> bool:
    entry = BY_PLURAL[plural].entry(name)
    return entry is not None and entry in getattr(snapshot, ATTRIBUTE[plural])


def _names(message: Message, ref: Ref) -> Iterator[tuple[str, str]]:
    """Every name that the reference holds, with where it stands."""
    for path, value in _values(message, ref.path.split("."), ""):
        if value.startswith(ref.prefix):
            yield path, value.removeprefix(ref.prefix)


def _values(value: Any, path: list[str], at: str) -> Iterator[tuple[str, str]]:
    """Every string that the path leads to, with where it stands."""
    if isinstance(value, str):
        yield at, value
    elif hasattr(value, "items"):
        for key in sorted(value):
            yield from ((entry(at, key), each) for each in (key, value[key]))
    elif not isinstance(value, Message):
        for number, element in enumerate(value):
            yield from _values(element, path, f"{at}[{number}]")
    elif path:
        field = value.DESCRIPTOR.fields_by_name[path[0]]
        if not field.has_presence or value.HasField(path[0]):
            yield from _values(getattr(value, path[0]), path[1:], f"{at}.{path[0]}")


def _singular(kind: Kind) -> str:
    """ "ModelVersion" as "model version"."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in kind.name).strip()
