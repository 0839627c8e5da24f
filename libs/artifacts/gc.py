"""Garbage collection of model versions and blobs: a pure plan, and its careful execution.

    plan_versions(snapshot, …)    versions that nobody needs, old and not among the newest of their name
    plan_blobs(versions, …)       blobs that no version has, and old
    collect(…)                    the first plan → versions deleted by the registry, which refuses what came to be
                                  needed → versions read again → blobs set aside → versions read once more → blobs
                                  that were needed after all restored, the others deleted

Why a push never loses a blob. A push puts its blobs (which makes those that are there young), registers the version,
and puts them once more. Say that a blob of it is set aside. If that is before the second put, the push finds it missing
and uploads it again. If it is after, then the version was registered before, so the last reading of the versions shows
it, and the blob is restored. A collection that dies in between leaves blobs aside; the next one begins with those. Two
collections at once do no harm either: a restored blob is young, so that neither takes it away a second time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.blobs import BlobInfo, BlobStore
from libs.artifacts.manifest import full_name
from libs.registry import RegistrySnapshot
from libs.rollouts import needed_versions

KEEP = 3
"""Newest versions of each name that stay, needed or not: what one would go back to."""
VERSION_GRACE = 7 * 86400.0
"""Seconds for which a version stays after it was registered."""
BLOB_GRACE = 86400.0
"""Seconds for which a blob stays after it was last put; a push takes less."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """A version that may go."""

    model_version: str
    """"name@version"."""
    reason: str
    """Why, in words."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A version that stays."""

    model_version: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What garbage collection would do to versions."""

    doomed: tuple[Doomed, ...]
    kept: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class Collected:
    """What garbage collection did, or would do."""

    plan: Plan
    versions: tuple[str, ...]
    """Versions that were deleted."""
    refused: Mapping[str, str]
    """Versions that the registry kept, with its reason: something came to need them."""
    blobs: tuple[BlobInfo, ...]
    """Blobs that were deleted."""
    restored: tuple[str, ...]
    """Blobs that were on their way out and turned out to be needed."""
    remains: int
    """Interrupted uploads that were removed."""


def plan_versions(snapshot: RegistrySnapshot, now: float, *, keep: int = KEEP, grace: float = VERSION_GRACE) -> Plan:
    """Which versions may go: neither needed (libs.rollouts.needed_versions), nor among the `keep` newest of their name,
    nor younger than `grace` seconds. Pure; `now` in Unix seconds.
    """
    needed = needed_versions(snapshot, now)
    newest = _newest(snapshot.model_versions.values(), keep)
    doomed: list[Doomed] = []
    kept: list[Kept] = []
    for name, version in sorted(snapshot.model_versions.items()):
        age = now - _seconds(version)
        reasons = list(needed.get(name, ()))
        if name in newest:
            reasons.append(f"among the {keep} newest")
        if age < grace:
            reasons.append(f"younger than {grace / 86400:g} days")
        if reasons:
            kept.append(Kept(name, tuple(reasons)))
        else:
            doomed.append(Doomed(name, f"needed by nobody, {age / 86400:.1f} days old"))
    return Plan(tuple(doomed), tuple(kept))


def plan_blobs(
    versions: Iterable[pb.ModelVersion], blobs: Iterable[BlobInfo], now: float, *, grace: float = BLOB_GRACE
) -> tuple[BlobInfo, ...]:
    """Which blobs may go: none of the versions has them, and they were last put `grace` or more seconds ago. Pure."""
    used = digests_of(versions)
    return tuple(blob for blob in blobs if blob.digest not in used and now - blob.touched_at >= grace)


def digests_of(versions: Iterable[pb.ModelVersion]) -> set[str]:
    """Digests of all files of versions, wherever their `source` says they lie."""
    return {artifact.sha256 for version in versions for artifact in version.artifacts}


async def collect(
    store: BlobStore,
    *,
    read: Callable[[], Awaitable[RegistrySnapshot]],
    delete: Callable[[str], Awaitable[str]],
    clock: Callable[[], float],
    keep: int = KEEP,
    version_grace: float = VERSION_GRACE,
    blob_grace: float = BLOB_GRACE,
    dry_run: bool = False,
) -> Collected:
    """Plans and carries out; what happens meanwhile is taken into account, so that nothing needed is lost.

    :param read: the registry as it is now: versions, aliases, rollouts, pins and endpoints.
    :param delete: deletes a version in the registry; "" when it did, else why it refused.
    :param clock: Unix seconds; should agree with the store's clock far better than to `blob_grace`.
    :param dry_run: change nothing; `versions` and `blobs` are then what would go.
    :raises BlobStoreUnavailable: the store does not answer. Nothing needed is lost; begin again later.
    """
    snapshot = await read()
    plan = plan_versions(snapshot, clock(), keep=keep, grace=version_grace)
    if dry_run:
        going = {doomed.model_version for doomed in plan.doomed}
        left = [version for name, version in snapshot.model_versions.items() if name not in going]
        candidates = plan_blobs(left, [blob async for blob in store.blobs()], clock(), grace=blob_grace)
        return Collected(plan, tuple(sorted(going)), {}, candidates, (), 0)
    deleted, refused = await _delete_versions(plan, delete)
    # Blobs that an earlier collection left aside are judged with those of this one.
    waiting = {blob.digest: blob async for blob in store.aside()}
    present = [blob async for blob in store.blobs()]
    versions = (await read()).model_versions.values()
    for blob in plan_blobs(versions, present, clock(), grace=blob_grace):
        if await _still_old(store, blob, clock() - blob_grace) and await store.set_aside(blob.digest):
            waiting[blob.digest] = blob
    gone, restored = await _settle(store, waiting, digests_of((await read()).model_versions.values()))
    remains = await store.clean(clock() - blob_grace)
    return Collected(plan, deleted, refused, gone, restored, remains)


async def _delete_versions(
    plan: Plan, delete: Callable[[str], Awaitable[str]]
) -> tuple[tuple[str, ...], dict[str, str]]:
    deleted: list[str] = []
    refused: dict[str, str] = {}
    for doomed in plan.doomed:
        if why := await delete(doomed.model_version):
            refused[doomed.model_version] = why
        else:
            deleted.append(doomed.model_version)
    return tuple(deleted), refused


async def _still_old(store: BlobStore, blob: BlobInfo, before: float) -> bool:
    found = await store.stat(blob.digest)
    return found is not None and found.touched_at <= before


async def _settle(
    store: BlobStore, waiting: Mapping[str, BlobInfo], used: Collection[str]
) -> tuple[tuple[BlobInfo, ...], tuple[str, ...]]:
    gone: list[BlobInfo] = []
    restored: list[str] = []
    for digest, blob in waiting.items():
        if digest in used:
            await store.restore(digest)
            restored.append(digest)
        else:
            await store.discard(digest)
            gone.append(blob)
    return tuple(gone), tuple(restored)


def _newest(versions: Iterable[pb.ModelVersion], keep: int) -> set[str]:
    by_name: dict[str, list[pb.ModelVersion]] = defaultdict(list)
    for version in versions:
        by_name[version.name].append(version)
    newest: set[str] = set()
    for each in by_name.values():
        # Times are by the registry's clock; equal ones, as after an import, are told apart by the version's name.
        each.sort(key=lambda version: (_seconds(version), version.version), reverse=True)
        newest.update(full_name(version) for version in each[:keep])
    return newest


def _seconds(version: pb.ModelVersion) -> float:
    return version.created_at.seconds + version.created_at.nanos * 1e-9
