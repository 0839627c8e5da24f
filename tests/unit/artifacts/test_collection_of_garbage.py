"""Garbage collection takes nothing that is needed, whatever happens while it runs."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Coroutine, Generator
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts.blobs import BlobInfo
from libs.artifacts.gc import Collected, collect, plan_blobs, plan_versions
from libs.registry import RegistrySnapshot
from libs.rollouts import needed_versions

DAY = 86400.0
NOW = 1_800_000_000.0


def digest_of(number: int) -> str:
    return f"{number:064x}"


def model(name: str, version: str, blobs: list[int], *, age: float = 0.0, base: str = "") -> pb.ModelVersion:
    made = pb.ModelVersion(name=name, version=version, source="blobs:")
    for number in blobs:
        made.artifacts.add(path=f"file{number}", sha256=digest_of(number), bytes=1)
    made.created_at.FromNanoseconds(int((NOW - age) * 1e9))
    made.provenance.base = base
    return made


def registry_of(*versions: pb.ModelVersion, **collections: Any) -> RegistrySnapshot:
    return RegistrySnapshot(
        revision=1, model_versions={f"{each.name}@{each.version}": each for each in versions}, **collections
    )


def old(*names: str) -> list[pb.ModelVersion]:
    return [model("m", name, [], age=(100 - number) * DAY) for number, name in enumerate(names)]


def doomed(snapshot: RegistrySnapshot, **options: Any) -> list[str]:
    return [each.model_version for each in plan_versions(snapshot, NOW, **options).doomed]


def test_all_but_the_newest() -> None:
    assert doomed(registry_of(*old("1", "2", "3", "4", "5"))) == ["m@1", "m@2"]
    assert doomed(registry_of(*old("1", "2", "3")), keep=0) == ["m@1", "m@2", "m@3"]


def test_names_count_by_themselves() -> None:
    others = [model("n", "1", [], age=900 * DAY)]
    assert doomed(registry_of(*old("1", "2", "3", "4"), *others)) == ["m@1"]


def test_young_versions_stay() -> None:
    snapshot = registry_of(model("m", "1", [], age=6.9 * DAY), model("m", "2", [], age=7 * DAY))
    assert doomed(snapshot, keep=0) == ["m@2"]


@pytest.mark.parametrize(
    "need",
    [
        {"aliases": {"a": pb.Alias(name="a", targets=[pb.AliasTarget(model_version="m@1", weight=100)])}},
        {"pins": {"m@1": pb.Pin(model_version="m@1", reason="held")}},
        {"rollouts": {"a": pb.Rollout(alias="a", baseline="m@1")}},
        {"rollouts": {"a": pb.Rollout(alias="a", baseline="m@9", arms=[pb.RolloutArm(model_version="m@1")])}},
        {"endpoints": {("worker", "w"): pb.Endpoint(model_versions=["m@1"])}},
        {
            "endpoints": {
                ("worker", "w"): pb.Endpoint(
                    model_states=[pb.ModelState(model_version="m@1", state=pb.LOAD_STATE_FETCHING)]
                )
            }
        },
    ],
)
def test_what_is_needed_stays(need: dict[str, Any]) -> None:
    plan = plan_versions(registry_of(*old("1", "2"), **need), NOW, keep=0)
    assert [each.model_version for each in plan.doomed] == ["m@2"]
    assert [each.model_version for each in plan.kept] == ["m@1"]
    assert plan.kept[0].reasons


def test_what_an_adapter_was_made_from_stays() -> None:
    adapter = model("m", "2", [], age=50 * DAY, base="m@1")
    snapshot = registry_of(*old("1"), adapter, pins={"m@2": pb.Pin(model_version="m@2")})
    assert doomed(snapshot, keep=0) == []


def test_blobs_that_nobody_has_go_when_they_are_old() -> None:
    blobs = [BlobInfo(digest_of(n), 1, NOW - age) for n, age in ((1, 9 * DAY), (2, 9 * DAY), (3, DAY - 1), (4, DAY))]
    gone = plan_blobs([model("m", "1", [1])], blobs, NOW)
    assert [blob.digest for blob in gone] == [digest_of(2), digest_of(4)]


# --- any interleaving ------------------------------------------------------------------------------------------------


class Pause:
    """A point at which others may act."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@dataclass
class World:
    """A registry and a blob store whose every call lets others act before and after it."""

    snapshot: RegistrySnapshot
    clock: float = NOW
    blobs_at: dict[str, float] = field(default_factory=dict)
    aside_at: dict[str, float] = field(default_factory=dict)

    # The registry.

    async def read(self) -> RegistrySnapshot:
        await Pause()
        snapshot = self.snapshot
        await Pause()
        return snapshot

    async def delete(self, name: str) -> str:
        await Pause()
        why = needed_versions(self.snapshot, self.clock).get(name)
        if why:
            return ", ".join(why)
        self.set("model_versions", name, None)
        await Pause()
        return ""

    def set(self, collection: str, key: Any, value: Any) -> None:
        entries = dict(getattr(self.snapshot, collection))
        entries.pop(key, None)
        if value is not None:
            entries[key] = value
        self.snapshot = replace(self.snapshot, **{collection: MappingProxyType(entries)})

    # The blob store.

    async def put(self, digest: str, source: Any, told: Any = None) -> bool:
        await Pause()
        # As a store does it: first a look, then the copy; the two are not one step.
        there = digest in self.blobs_at
        await Pause()
        if there and digest in self.blobs_at:
            self.blobs_at[digest] = self.clock
            return False
        await Pause()
        self.blobs_at[digest] = self.clock
        return True

    async def get(self, digest: str, sink: BinaryIO) -> int:
        raise NotImplementedError

    async def stat(self, digest: str) -> BlobInfo | None:
        await Pause()
        return BlobInfo(digest, 1, self.blobs_at[digest]) if digest in self.blobs_at else None

    async def blobs(self) -> AsyncIterator[BlobInfo]:
        for digest, at in list(self.blobs_at.items()):
            await Pause()
            yield BlobInfo(digest, 1, at)

    async def set_aside(self, digest: str) -> bool:
        await Pause()
        if digest not in self.blobs_at:
            return False
        self.aside_at[digest] = self.blobs_at.pop(digest)
        await Pause()
        return True

    async def aside(self) -> AsyncIterator[BlobInfo]:
        for digest, at in list(self.aside_at.items()):
            await Pause()
            yield BlobInfo(digest, 1, at)

    async def restore(self, digest: str) -> bool:
        await Pause()
        if digest not in self.aside_at:
            return False
        del self.aside_at[digest]
        self.blobs_at[digest] = self.clock
        return True

    async def discard(self, digest: str) -> None:
        await Pause()
        self.aside_at.pop(digest, None)

    async def clean(self, before: float) -> int:
        await Pause()
        return 0

    async def close(self) -> None:
        raise NotImplementedError

    # What is asked of them.

    def broken(self) -> set[str]:
        """Registered versions that lack a blob."""
        return {
            name
            for name, version in self.snapshot.model_versions.items()
            if any(artifact.sha256 not in self.blobs_at for artifact in version.artifacts)
        }


async def pushing(world: World, version: pb.ModelVersion) -> None:
    """What `weir models push` does: blobs, version, blobs."""
    for artifact in version.artifacts:
        await world.put(artifact.sha256, None)
    await Pause()
    name = f"{version.name}@{version.version}"
    if name not in world.snapshot.model_versions:
        version.created_at.FromNanoseconds(int(world.clock * 1e9))
        world.set("model_versions", name, version)
    for artifact in version.artifacts:
        await world.put(artifact.sha256, None)


async def changing(world: World, number: int) -> None:
    """An operator, a controller or a worker comes to need a version, or no longer does."""
    await Pause()
    names = sorted(world.snapshot.model_versions)
    if not names:
        return
    name = names[number % len(names)]
    match number % 7:
        case 0:
            target = pb.AliasTarget(model_version=name, weight=100)
            world.set("aliases", "a", pb.Alias(name="a", targets=[target]))
        case 1:
            world.set("aliases", "a", None)
        case 2:
            world.set("pins", name, pb.Pin(model_version=name, reason="held"))
        case 3:
            world.set("pins", name, None)
        case 4:
            world.set(
                "rollouts", "a", pb.Rollout(alias="a", baseline=names[0], arms=[pb.RolloutArm(model_version=name)])
            )
        case 5:
            world.set("endpoints", ("worker", "w"), pb.Endpoint(model_versions=[name]))
        case 6:
            world.set("endpoints", ("worker", "w"), None)


def collecting(world: World) -> Coroutine[Any, Any, Collected]:
    return collect(world, read=world.read, delete=world.delete, clock=lambda: world.clock, keep=1)


def advance(coroutine: Coroutine[Any, Any, Any]) -> bool:
    """One step; False when it is done."""
    try:
        coroutine.send(None)
    except StopIteration:
        return False
    return True


versions = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=2), max_size=3)
"""Blobs of versions 0, 1, …; they share some."""


@settings(max_examples=400)
@given(
    registered=versions,
    pushed=versions,
    changes=st.lists(st.integers(0, 40), max_size=4),
    collectors=st.integers(1, 2),
    order=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 25)), max_size=30),
    killed_after=st.none() | st.integers(0, 60),
)
def test_nothing_needed_is_lost(
    registered: list[list[int]],
    pushed: list[list[int]],
    changes: list[int],
    collectors: int,
    order: list[tuple[int, int]],
    killed_after: int | None,
) -> None:
    """Pushes, changes and one or two collections in any order of their steps, one collection dying anywhere.

    :param order: who goes on, for how many steps; what hurts is one doing all its work between two steps of another.
    """
    before = [model("m", str(number), blobs, age=100 * DAY - number) for number, blobs in enumerate(registered)]
    world = World(registry_of(*before), blobs_at={digest_of(number): NOW - 30 * DAY for number in range(4)})
    others = [pushing(world, model("p", str(number), blobs)) for number, blobs in enumerate(pushed)]
    others += [changing(world, number) for number in changes]
    first = collecting(world)
    running: list[Coroutine[Any, Any, Any]] = [first, *(collecting(world) for _ in range(collectors - 1)), *others]
    steps_of_first = 0
    choices = chain.from_iterable([who] * steps for who, steps in order)
    while running:
        chosen = running[next(choices, 0) % len(running)]
        needed = needed_versions(world.snapshot, world.clock).keys() & world.snapshot.model_versions.keys()
        if chosen is first:
            steps_of_first += 1
            if steps_of_first == killed_after:
                chosen.close()
                running.remove(chosen)
                continue
        if not advance(chosen):
            running.remove(chosen)
        # No step removes a version that was needed when it was taken.
        assert needed <= world.snapshot.model_versions.keys()
        # What was registered all along has its blobs all along; only a version pushed meanwhile may lack some for a
        # moment, which its push or the collection mends.
        assert all(name.startswith("p@") for name in world.broken())
    if killed_after is not None:
        # The next collection mends what the dead one left.
        last = collecting(world)
        while advance(last):
            pass
    assert world.broken() == set()
    assert not world.aside_at


def test_no_place_in_a_collection_lets_a_push_lose_its_blob() -> None:
    """Every way in which a push of an old blob may stop once, anywhere, and go on anywhere later in a collection."""
    lost = []
    for before in range(20):
        for pushed in range(12):
            for between in range(20):
                world = World(registry_of(), blobs_at={digest_of(1): NOW - 30 * DAY})
                collector, push = collecting(world), pushing(world, model("p", "1", [1]))
                for coroutine, steps in (
                    (collector, before),
                    (push, pushed),
                    (collector, between),
                    (push, 99),
                    (collector, 99),
                ):
                    if inspect.getcoroutinestate(coroutine) != inspect.CORO_CLOSED:
                        any(not advance(coroutine) for _ in range(steps))
                if world.broken() or world.aside_at:
                    lost.append((before, pushed, between))
    assert not lost


def test_a_dry_run_says_what_would_go_and_changes_nothing() -> None:
    world = World(registry_of(*[model("m", str(n), [n], age=(50 - n) * DAY) for n in range(3)]))
    world.blobs_at = {digest_of(number): NOW - 30 * DAY for number in range(5)}
    said: list[Collected] = []

    async def look() -> None:
        said.append(
            await collect(
                world, read=world.read, delete=world.delete, clock=lambda: NOW, keep=1, version_grace=0, dry_run=True
            )
        )

    looking = look()
    while advance(looking):
        pass
    assert said[0].versions == ("m@0", "m@1")
    assert {blob.digest for blob in said[0].blobs} == {digest_of(n) for n in (0, 1, 3, 4)}
    assert len(world.snapshot.model_versions) == 3
    assert len(world.blobs_at) == 5
