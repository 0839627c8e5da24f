"""Lists of resources: which, in what order, and in pages that hold at one revision."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice

from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import Grant
from libs.errors import Reason, WeirError
from libs.registry import KeyValue, RegistryView, WatchEvent
from libs.resources.codec import kind_of, located, read, redacted, status_part
from libs.resources.kind import Kind
from libs.resources.kinds import BY_NAME, BY_PLURAL, KINDS

PAGE = 1000
PAGE_BYTES = 1_000_000
"""Of one answer, about: gRPC clients take 4 MiB."""
MAX_OPEN = 64
MAX_OWN = 4
"""Lists of which more pages may be asked for, of all and of one caller; then the oldest is forgotten."""
MAX_SELECTOR = 1000
"""Characters: it is looked at for every resource."""

_START = re.compile("[0-9]{1,9}")
Matches = Callable[[pb.Resource], bool]
Held = list[tuple[Kind, KeyValue]]
"""Resources as the view has them."""


def kinds_called(names: Iterable[str]) -> list[Kind]:
    """Kinds by name, "Tenant", in the table's order; all without any.

    :raises WeirError: INVALID_REQUEST: there is no such kind.
    """
    wanted = set(names)
    if unknown := sorted(wanted - BY_NAME.keys()):
        raise WeirError(
            Reason.INVALID_REQUEST, f"no kind {unknown[0]!r}; there are {', '.join(sorted(BY_NAME))}", limit="kinds"
        )
    return [kind for kind in KINDS if not wanted or kind.name in wanted]


def selector(text: str) -> Matches:
    """Whether a resource has these labels: "team=search,stage!=test,reviewed", of which each must hold.

    :raises WeirError: INVALID_REQUEST.
    """
    if len(text) > MAX_SELECTOR:
        raise WeirError(Reason.INVALID_REQUEST, f"a selector has at most {MAX_SELECTOR} characters", limit="selector")
    terms = [term.strip() for term in text.split(",") if term.strip()]
    if any(not term.lstrip("!=") or term.startswith(("=", "!=")) for term in terms):
        raise WeirError(
            Reason.INVALID_REQUEST, f"{text!r} is no selector: a=b, a!=b or a, with commas", limit="selector"
        )

    def matches(resource: pb.Resource) -> bool:
        return all(_holds(resource.metadata.labels, term) for term in terms)

    return matches


def existing(grant: Grant, matches: Matches | None) -> Matches | None:
    """Of the resources that a caller asks for those that exist for it; None: all there are."""
    if not grant.tenants:
        return matches
    return lambda resource: exists_for(grant, resource) and (matches is None or matches(resource))


def exists_for(grant: Grant, resource: pb.Resource) -> bool:
    """Whether a resource is there for a caller: for one that is kept to tenants, only what is theirs."""
    if not grant.tenants:
        return True
    kind = kind_of(resource)
    if kind is None:
        return False
    return grant.knows(kind.tenant_of(resource.metadata.name, getattr(resource, kind.part)) or "")


def _holds(labels: Mapping[str, str], term: str) -> bool:
    if "!=" in term:
        name, _, value = term.partition("!=")
        return labels.get(name) != value
    name, equals, value = term.partition("=")
    return labels.get(name) == value if equals else name in labels


class Listings:
    """Reads what the view has; `pages` of a list show it as it was when the list began."""

    def __init__(self, view: RegistryView, new_id: Callable[[], str]) -> None:
        self._view = view
        self._new_id = new_id
        self._open: OrderedDict[str, tuple[Grant, int, Held]] = OrderedDict()

    def stored(self, key: str) -> pb.Resource | None:
        """A resource as it is stored, with its revision; None when there is none, or none that can be read."""
        kv, found = self._view.stored(key), located(key)
        return read(*found, kv.value, kv.mod_revision) if kv is not None and found is not None else None

    def shown(self, kind: Kind, kv: KeyValue | WatchEvent, *, secrets: bool = False) -> pb.Resource | None:
        """A resource as readers see it: with the status that others wrote, without what is secret; None when it cannot
        be read."""
        resource = read(kind, kv.key.removeprefix(kind.prefix), kv.value or b"", kv.mod_revision)
        if resource is not None and kind.observed:
            observed = self.stored(BY_PLURAL[kind.observed].prefix + resource.metadata.name)
            if observed is not None:
                part = status_part(kind)
                getattr(resource, part).CopyFrom(getattr(redacted(observed, bulk=True), part))
        return resource if secrets or resource is None else redacted(resource)

    def held(self, kinds: Collection[Kind], matches: Matches | None = None) -> Held:
        """All resources of these kinds, by kind and name, as the view has them now: they are decoded when they are
        sent, so that whoever does not read holds nothing but references."""
        found = [(kind, kv) for kind in kinds for kv in self._view.under(kind.prefix)]
        if matches is None:
            return found
        return [(kind, kv) for kind, kv in found if (told := self.shown(kind, kv)) is not None and matches(told)]

    def page(self, request: pb.ListRequest, kinds: Collection[Kind], grant: Grant) -> pb.ListResponse:
        """One page of what exists for the caller.

        :param grant: who asks; pages are for those who began the list, as long as they may what they might then.

        :raises WeirError: REVISION_GONE for a token that is too old, or another process's; INVALID_REQUEST.
        """
        if request.page_token:
            name, _, start = request.page_token.partition(":")
            of, revision, held = self._open.get(name, (None, 0, []))
            if of != grant or not _START.fullmatch(start):
                raise WeirError(Reason.REVISION_GONE, "the list is not kept any more; list again", limit="page_token")
        else:
            name, start, revision = self._new_id(), "0", self._view.revision
            matches = selector(request.selector) if request.selector else None
            held = self.held(kinds, existing(grant, matches))
        response = pb.ListResponse(revision=revision)
        size, end = 0, int(start)
        for kind, kv in islice(held, end, end + min(request.page_size or PAGE, PAGE)):
            resource = self.shown(kind, kv, secrets=request.secrets)
            size += resource.ByteSize() if resource is not None else 0
            if size > PAGE_BYTES and response.resources:
                break
            if resource is not None:
                response.resources.append(resource)
            end += 1
        if end < len(held):
            response.next_page_token = f"{name}:{end}"
            self._open[name] = (grant, revision, held)
            self._open.move_to_end(name)
            own = [each for each, (of, _, _) in self._open.items() if of.actor == grant.actor]
            for oldest in (*own[: max(0, len(own) - MAX_OWN)], *list(self._open)[: max(0, len(self._open) - MAX_OPEN)]):
                self._open.pop(oldest, None)
        else:
            self._open.pop(name, None)
        return response
