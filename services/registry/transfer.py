"""The whole registry as a stream of values, and a registry out of such a stream."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf import json_format
from weir.registry.v1 import registry_pb2 as pb

from libs.changes import MAX_WRITES, Change, Write, resource_of
from libs.changes.exports import EXPORTED, HISTORY, ExportDigest, exported_name
from libs.errors import Reason, WeirError
from libs.registry import KeyValue, Listing, RegistrySnapshot, RegistryView, keys, snapshot_of
from services.registry.consistency import faults_of

PART_BYTES = 500_000
"""Of one message of the stream, about."""
MAX_VALUES = 200_000
MAX_BYTES = 512 * 1024 * 1024
_TRANSACTION_BYTES = 1_000_000
"""Of values in one transaction, counting the history's copies: etcd takes 1.5 MiB."""
_NEEDED = (keys.ALIASES, keys.ROLLOUTS, keys.KEYS)
"""What must not name what is not in the snapshot; prices or limits of versions that are gone may."""


@dataclass(frozen=True, slots=True)
class Content:
    """A snapshot that was received whole."""

    values: Mapping[str, bytes]
    """By store key; without the history, whose revisions were another store's."""
    digest: str


async def receive(parts: AsyncIterator[pb.ImportRequest]) -> tuple[Content, pb.ImportRequest]:
    """The snapshot, and its options (`replace`, `change`).

    :raises WeirError: INVALID_REQUEST: it is out of order, too large, damaged, or broke off.
    """
    found = ExportDigest()
    values: dict[str, bytes] = {}
    options = pb.ImportRequest()
    last, count, size = "", 0, 0
    async for part in parts:
        if options.digest:
            raise _invalid("digest", "something follows the snapshot's digest")
        for each in part.values:
            if each.resource <= last:
                raise _invalid(each.resource, f"{each.resource!r} is out of order")
            last, count, size = each.resource, count + 1, size + len(each.resource) + len(each.value)
            if count > MAX_VALUES or size > MAX_BYTES:
                raise _invalid("values", "the snapshot is too large")
            found.add(each.resource, each.value)
            if not each.resource.startswith(HISTORY):
                values[keys.ROOT + each.resource] = each.value
        options.replace = options.replace or part.replace
        options.change.MergeFrom(part.change)
        options.digest = part.digest
    if options.digest != found.hex:
        what = "it differs from the values that came" if options.digest else "the snapshot broke off before it"
        raise _invalid("digest", f"the digest does not hold: {what}")
    _check(values)
    return Content(values, options.digest), options


def export_parts(listing: Listing, history: Sequence[KeyValue]) -> Iterator[pb.ExportResponse]:
    """The stream's messages, the digest last."""
    named = [(exported_name(kv.key), kv.value) for kv in (*listing.kvs, *history)]
    digest = ExportDigest()
    part, size = pb.ExportResponse(revision=listing.revision), 0
    for name, value in sorted(named):
        digest.add(name, value)
        part.values.add(resource=name, value=value)
        size += len(name) + len(value)
        if size >= PART_BYTES:
            yield part
            part, size = pb.ExportResponse(revision=listing.revision), 0
    if part.values:
        yield part
    yield pb.ExportResponse(revision=listing.revision, digest=digest.hex)


def exported(listing: Listing) -> Listing:
    """Everything but live processes, leases, and what the registry itself works with."""
    return Listing(tuple(kv for kv in listing.kvs if kv.key.startswith(tuple(EXPORTED))), listing.revision)


class Import:
    """Carries a snapshot into the registry, in as few transactions as etcd allows.

    More than one are begun with a mark (`keys.IMPORT`) that keeps every other change away until the last; a broken one
    is finished by importing the same snapshot again. What is written is compared with what is there each time, so
    nothing is written twice.
    """

    def __init__(self, content: Content, *, view: RegistryView, replace: bool) -> None:
        self._content = content
        self._order = sorted(content.values, key=_rank)
        self._view = view
        self._replace = replace
        self._began = False
        self.deleted = 0
        """Values of before that it takes away, or has taken away."""
        self.finished = False
        """The last plan was the last one."""

    def plan(self, snapshot: RegistrySnapshot) -> Change[pb.ImportResponse]:
        """The next transaction.

        :raises WeirError: CONFLICT: there is a configuration, or another import.
        """
        mark = self._view.stored(keys.IMPORT)
        self._require_allowed(mark)
        if not self._began:
            self.deleted = sum(1 for _ in self._surplus())
        batch: list[Write] = []
        size, self.finished = 0, True
        for write in itertools.chain(self._missing(), self._surplus()):
            present = self._view.stored(write.key)
            # The value, and both sides of it in the history.
            size += 2 * len(write.value or b"") + (len(present.value) if present else 0)
            # The mark needs a place, too.
            if batch and (len(batch) >= MAX_WRITES - 1 or size > _TRANSACTION_BYTES):
                self.finished = False
                break
            batch.append(write)
        if not self.finished and not self._is_ours(mark):
            batch.append(Write(keys.IMPORT, self._content.digest.encode()))
        elif self.finished and mark is not None:
            batch.append(Write(keys.IMPORT, None))
        return Change(pb.ImportResponse(), tuple(batch))

    def began(self) -> None:
        """A transaction of it was written."""
        self._began = True

    def _require_allowed(self, mark: KeyValue | None) -> None:
        if self._began:
            if not self._is_ours(mark):
                raise WeirError(Reason.CONFLICT, "another import took over", limit="import")
        elif mark is not None:
            if not self._is_ours(mark) and not self._replace:
                raise WeirError(Reason.CONFLICT, under_way(mark), limit="import")
        elif not self._replace:
            present = {kv.key: kv.value for kv in exported(self._view.listing()).kvs}
            if present and present != self._content.values:
                message = f"the registry holds {len(present)} resources; say replace to replace them"
                raise WeirError(Reason.CONFLICT, message, limit="replace")

    def _is_ours(self, mark: KeyValue | None) -> bool:
        return mark is not None and mark.value.decode() == self._content.digest

    def _missing(self) -> Iterator[Write]:
        """What is not there, or otherwise; what is named by others first."""
        for key in self._order:
            value, stored = self._content.values[key], self._view.stored(key)
            if stored is None or stored.value != value:
                yield Write(key, value)

    def _surplus(self) -> Iterator[Write]:
        """What is there and shall not be; what names others first."""
        gone = (kv.key for kv in exported(self._view.listing()).kvs if kv.key not in self._content.values)
        for key in sorted(gone, key=_rank, reverse=True):
            yield Write(key, None)


def under_way(mark: KeyValue) -> str:
    """Why nothing else can be changed while the mark is there."""
    return (
        f"an import of the snapshot {mark.value.decode()[:12]} is under way or broke off; import it again to finish "
        "it, or another one with replace"
    )


def _rank(key: str) -> int:
    """The place of a key's kind in the order of `EXPORTED`."""
    return next(number for number, prefix in enumerate(EXPORTED) if key.startswith(prefix))


def _check(values: Mapping[str, bytes]) -> None:
    for key, value in values.items():
        kind = next((kind for prefix, kind in EXPORTED.items() if key.startswith(prefix)), None)
        resource = resource_of(key)
        if kind is None:
            raise _invalid(resource, f"the registry holds nothing called {resource!r}")
        try:
            message = json_format.Parse(value, kind(), ignore_unknown_fields=True)
        except (json_format.ParseError, UnicodeDecodeError):
            raise _invalid(resource, f"the value of {resource} cannot be read") from None
        if keys.key_of(message) != key:
            raise _invalid(resource, f"the value under {resource} is of {resource_of(keys.key_of(message))}")
    snapshot = snapshot_of([KeyValue(key, value, 1) for key, value in values.items()], 1)
    for resource, fault in sorted(faults_of(snapshot).items()):
        if (keys.ROOT + resource).startswith(_NEEDED):
            raise _invalid(resource, f"{resource} does not hold: {fault.message}")


def _invalid(field: str, message: str) -> WeirError:
    return WeirError(Reason.INVALID_REQUEST, message, limit=field)
