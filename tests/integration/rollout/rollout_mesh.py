"""What the rollout controller needs around it: a registry with an alias under rollout, workers, and gateways that
report traffic as the registry tells them to route it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2 as pb
from weir.rollout.v1 import rollout_pb2_grpc

from libs.errors import Reason, WeirError
from libs.registry import EtcdStore, Put, RegistrySnapshot, RegistryView, Store, keys
from libs.resources.codec import decode, unpack
from libs.rollouts import arms_of, exposed, in_force, phase_of
from libs.rpc import make_channel
from libs.service.process import Running, serve
from services.rollout.app import RolloutService, build
from services.rollout.config import Settings
from services.rollout.policy.evidence import CostMoments, Distribution, Moments

BOUND = 60.0
ALIAS = "weir-fast"
OLD, NEW = "weir-fast@1", "weir-fast@2"
WATCH = "/weir.rollout.v1.RolloutService/WatchRollout"


def seconds(value: float) -> Duration:
    return Duration(seconds=int(value), nanos=round(value % 1 * 1e9))


def settings(instance: str = "rollout-0", **more: Any) -> Settings:
    values: dict[str, Any] = {
        "instance": instance,
        "decide_interval": 0.01,
        "tick": 0.05,
        "report_seconds": 0.02,
        "resume_seconds": 0.05,
        "stale_seconds": 2.0,
        "leader_ttl": 2.0,
        "drain_seconds": 2.0,
    }
    return Settings(**(values | more))


def version(name: str, number: str) -> registry_pb2.ModelVersion:
    return registry_pb2.ModelVersion(
        name=name, version=number, tier="fast", pool="demo", context_length=1024, digest="0" * 64
    )


def worker(name: str, *ready: str, failed: Mapping[str, str] | None = None) -> registry_pb2.Endpoint:
    made = registry_pb2.Endpoint(
        service="worker", instance=name, address="127.0.0.1:1", zone="zone-a", pool="demo", model_versions=ready
    )
    for model in ready:
        made.model_states.add(model_version=model, state=registry_pb2.LOAD_STATE_READY)
    for model, why in (failed or {}).items():
        made.model_states.add(model_version=model, state=registry_pb2.LOAD_STATE_FAILED, detail=why)
    return made


def rollout(identity: str = "r1", *, steps: tuple[int, ...] = (1000, 5000), **more: Any) -> registry_pb2.Rollout:
    made = registry_pb2.Rollout(
        alias=ALIAS,
        id=identity,
        baseline=OLD,
        arms=[registry_pb2.RolloutArm(name="canary", model_version=NEW)],
        reason="a test",
        alpha=0.05,
        **more,
    )
    for weight in steps:
        made.steps.add(weight=weight, min_duration=seconds(0.05), min_samples=100)
    made.state.phase = registry_pb2.ROLLOUT_PHASE_PREPARING
    return made


def alias(target: str = OLD) -> registry_pb2.Alias:
    return registry_pb2.Alias(name=ALIAS, targets=[registry_pb2.AliasTarget(model_version=target, weight=100)])


async def write(store: Store, *messages: Any) -> None:
    """Puts resources into the registry, through restarts of etcd."""
    puts = []
    for message in messages:
        stored = type(message)()
        stored.CopyFrom(message)
        if "revision" in stored.DESCRIPTOR.fields_by_name:
            stored.ClearField("revision")
        puts.append(Put(keys.key_of(stored), keys.encode(stored)))
    while True:
        try:
            await store.txn(puts=puts)
            return
        except WeirError as error:
            if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                raise


async def populate(store: Store) -> None:
    """A registry with two versions, an alias and two workers that have both."""
    await write(store, version("weir-fast", "1"), version("weir-fast", "2"), alias())
    await write(store, worker("worker-a", OLD, NEW), worker("worker-b", OLD, NEW))


async def read(store: Store, name: str = ALIAS) -> registry_pb2.Rollout:
    """A rollout as stored now."""
    found = await store.get(keys.key("rollouts", name))
    assert found is not None
    made = unpack(decode(found.value, found.mod_revision))
    assert isinstance(made, registry_pb2.Rollout)
    return made


async def history(store: Store) -> list[registry_pb2.HistoryEntry]:
    """Every change in order."""
    listing = await store.get_prefix(keys.HISTORY)
    ordered = sorted(listing.kvs, key=lambda kv: kv.mod_revision)
    return [registry_pb2.HistoryEntry.FromString(kv.value) for kv in ordered]


@dataclass(frozen=True)
class Quality:
    """How a version serves."""

    errors: float = 0.0
    ttft: float = 0.1
    cost: float = 10.0
    tokens: float = 100.0
    logprob: float = -1.0


@dataclass
class Counts:
    """What was counted of one stage."""

    requests: int = 0
    errors: int = 0
    ttft: Distribution = field(default_factory=Distribution)
    cost: CostMoments = field(default_factory=CostMoments)
    logprob: Moments = field(default_factory=Moments)


class Gateway:
    """Serves imaginary requests by the registry's word, and reports what became of them to one replica."""

    def __init__(
        self,
        view: RegistryView,
        address: str | Callable[[], str],
        quality: Mapping[str, Quality],
        *,
        name: str = "gateway-0",
        incarnation: str = "1",
        batch: int = 400,
        seed: int = 1,
    ) -> None:
        self.name = name
        self._view = view
        self._address = address
        self._quality = quality
        self._incarnation = incarnation
        self._batch = batch
        self._rng = random.Random(seed)
        self._counts: dict[tuple[str, str, int, int, str, bool], Counts] = {}
        self._objectives = {"availability": [0, 0]}
        self.served: dict[str, int] = {}

    def also(self, address: str) -> Gateway:
        """The same gateway reporting to another replica: the same counts, counted once."""
        other = Gateway(self._view, address, self._quality, name=self.name, incarnation=self._incarnation)
        other._counts, other._objectives, other.served = self._counts, self._objectives, self.served
        other._batch = 0
        return other

    async def run(self) -> None:
        """Goes on until cancelled, over replicas' deaths."""
        while True:
            address = self._address if isinstance(self._address, str) else self._address()
            async with make_channel(address, tls=None) as channel:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await self._report(rollout_pb2_grpc.RolloutServiceStub(channel))
            await asyncio.sleep(0.02)

    async def _report(self, stub: Any) -> None:
        stream = stub.ReportOutcomes(wait_for_ready=True)
        while True:
            await stream.write(self._frame())
            answer = await stream.read()
            if answer is grpc.aio.EOF:
                return
            await asyncio.sleep(answer.next.nanos * 1e-9)
            self._serve(self._view.snapshot)

    def _serve(self, snapshot: RegistrySnapshot) -> None:
        found = in_force(snapshot, ALIAS)
        if found is None or not self._batch:
            return
        phase, step = phase_of(found), found.state.step
        shares = {arm.name: arm.weight / 10_000 for arm in arms_of(found)}
        for arm in arms_of(found):
            count = round(self._batch * shares[arm.name])
            if not exposed(found) and arm.name != "baseline":
                self._count((ALIAS, found.id, phase, step, arm.name, True), arm.model_version, self._batch // 10)
            elif count:
                self._count((ALIAS, found.id, phase, step, arm.name, False), arm.model_version, count)

    def _count(self, key: tuple[str, str, int, int, str, bool], model: str, count: int) -> None:
        quality = self._quality[model]
        into = self._counts.setdefault(key, Counts())
        errors = sum(self._rng.random() < quality.errors for _ in range(count))
        into.requests += count
        into.errors += errors
        into.ttft += Distribution.of(quality.ttft * self._rng.lognormvariate(0, 0.3) for _ in range(count))
        into.cost += CostMoments.of(
            (quality.cost * size, quality.tokens * size) for size in (self._rng.uniform(0.5, 1.5) for _ in range(count))
        )
        into.logprob += Moments.of(quality.logprob + self._rng.gauss(0, 0.2) for _ in range(count))
        self.served[model] = self.served.get(model, 0) + count
        if not key[-1]:
            self._objectives["availability"][0] += count - errors
            self._objectives["availability"][1] += errors

    def _frame(self) -> pb.ReportOutcomesRequest:
        frame = pb.ReportOutcomesRequest(source=self.name, incarnation=self._incarnation)
        for (name, identity, phase, step, arm, mirrored), counts in self._counts.items():
            made = frame.arms.add(
                alias=name,
                rollout_id=identity,
                phase=phase,  # type: ignore[arg-type]
                step=step,
                arm=arm,
                mirrored=mirrored,
                requests=counts.requests,
                errors=counts.errors,
                streams=counts.requests - counts.errors,
                completed=counts.requests - counts.errors,
                route="generate",
                tier="fast",
            )
            made.ttft.bins.extend(counts.ttft.bins)
            made.ttft.counts.extend(counts.ttft.counts)
            made.ttft.sum_log, made.ttft.sum_log2 = counts.ttft.sum_log, counts.ttft.sum_log2
            cost = counts.cost
            made.cost.count, made.cost.cost, made.cost.tokens = cost.count, cost.cost, cost.tokens
            made.cost.cost2, made.cost.tokens2, made.cost.cost_tokens = cost.cost2, cost.tokens2, cost.cost_tokens
            score = made.scores["mean_logprob"]
            score.count, score.sum, score.sum2 = counts.logprob.count, counts.logprob.sum, counts.logprob.sum2
        made_objectives = frame.objectives.add(route="generate", tier="fast")
        for objective, (good, bad) in self._objectives.items():
            made_objectives.objectives[objective].good = good
            made_objectives.objectives[objective].bad = bad
        return frame


@contextlib.asynccontextmanager
async def following(store: Store) -> AsyncIterator[RegistryView]:
    """A view of the registry."""
    view = RegistryView(store)
    task = asyncio.create_task(view.run())
    try:
        await view.wait_ready()
        yield view
    finally:
        task.cancel()
        await asyncio.wait((task,))


@contextlib.asynccontextmanager
async def controller(store: Store, config: Settings | None = None) -> AsyncIterator[tuple[RolloutService, Running]]:
    """The service on a port of its own."""
    config = config or settings()
    service = await build(config, store=store)
    async with serve(service, config, deadline_optional=(WATCH,)) as running:
        await running.ready.wait()
        yield service, running


@contextlib.asynccontextmanager
async def reporting(gateway: Gateway) -> AsyncIterator[Gateway]:
    """The gateway, at work."""
    task = asyncio.create_task(gateway.run())
    try:
        yield gateway
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def until(view: RegistryView, condition: Callable[[registry_pb2.Rollout], bool]) -> registry_pb2.Rollout:
    """The rollout, once there is one and it is so: a view hears of what was written a little later."""

    def holds(snapshot: RegistrySnapshot) -> bool:
        found = snapshot.rollouts.get(ALIAS)
        return found is not None and condition(found)

    async with asyncio.timeout(BOUND):
        return (await view.wait_until(holds)).rollouts[ALIAS]


async def ended(view: RegistryView, identity: str = "r1") -> registry_pb2.Rollout:
    """The rollout, once it has ended."""
    return await until(view, lambda found: found.id == identity and found.state.HasField("ended_at"))


def store_of(endpoint: str) -> EtcdStore:
    return EtcdStore([endpoint])


class MortalStore:
    """A store whose user can be killed while it writes its n-th decision, before or after the write happened. Then
    nothing of it reaches the store any more, and its lease lasts until somebody ends it, as after SIGKILL."""

    def __init__(self, store: EtcdStore, *, action: str, times: int, after: bool) -> None:
        """:param action: such as "rollout.Advance"; the `times`-th of these, counted from 1, is the last.

        :param after: it happens, and the answer is lost.
        """
        self._store = store
        self._action = action.encode()
        self._times = times
        self._after = after
        self.leases: list[int] = []
        self.dead = asyncio.Event()

    @property
    def available(self) -> bool:
        return not self.dead.is_set() and self._store.available

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            self._check()
            answer = await getattr(self._store, name)(*arguments, **named)
            self._check()
            if name == "lease_grant":
                self.leases.append(answer)
            return answer

        return call

    def watch(self, prefix: str, start_revision: int, *, known: Mapping[str, int] | None = None) -> Any:
        return self._store.watch(prefix, start_revision, known=known)

    async def txn(self, **what: Any) -> Any:
        self._check()
        if any(put.key.startswith(keys.HISTORY) and self._action in put.value for put in what.get("puts", ())):
            self._times -= 1
        if self._times:
            return await self._store.txn(**what)
        if self._after:
            await self._store.txn(**what)
        self.dead.set()
        return await asyncio.Event().wait()

    def _check(self) -> None:
        if self.dead.is_set():
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "dead")
