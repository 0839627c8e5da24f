"""Any history of two admission processes, two workers and the streams between them: who owns the pool, what runs."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from weir.admission.v1 import admission_pb2 as pb
from weir.registry.v1 import registry_pb2

from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.grants import GrantVerifier
from services.admission.coordinator import Coordinator
from services.admission.owners import Owners
from services.admission.policy.ownership import Ownership, home
from services.admission.worker_session import WorkerSession
from tests.support.admission_limits import steady

POOL = "fast"
BLOCKS = 100


class Replica:
    """An admission process: everything but its sockets."""

    def __init__(self, name: str, clock: ManualClock, seed: int, others: set[str]) -> None:
        randomness = random.Random(seed)
        self.name = name
        self.coordinator = Coordinator(
            limits=steady(),
            clock=clock,
            random_bytes=randomness.randbytes,
            grant_lifetime=1e6,
            worker_heartbeat=1e6,
            gateway_grace=5.0,
        )
        members = {each: registry_pb2.Endpoint(instance=each, address=each) for each in {name, *others}}
        view: Any = SimpleNamespace(snapshot=SimpleNamespace(revision=1, endpoints={}))
        found: Any = SimpleNamespace(current=members)
        self.owners = Owners(
            Ownership(name, tenure=5.0, patience=2.0, draw=randomness.getrandbits),
            self.coordinator,
            view=view,
            members=lambda: found,
            clock=clock,
        )


class Stream:
    """A worker's capacity stream to one replica: frames under way, either direction, in order."""

    def __init__(self, session: WorkerSession, welcome: pb.ReportCapacityResponse) -> None:
        self.session = session
        self.key_id = ""
        self.down = deque([welcome])
        self.up: deque[pb.CapacityReport] = deque()

    def arrived(self) -> None:
        """What the replica has said since."""
        while not self.session._outbox.empty():
            frame = self.session._outbox.get_nowait()
            if frame is not None:
                self.down.append(frame)


class Worker:
    """A worker: what it accepts, and what runs."""

    def __init__(self, name: str, clock: ManualClock) -> None:
        self.name = name
        self.verifier = GrantVerifier(name, clock=clock, max_lifetime=1e9)
        self.running: dict[str, pb.Grant] = {}
        self.streams: dict[str, Stream] = {}

    def report(self) -> pb.CapacityReport:
        """Nothing that runs has used more than a block yet: the rest of what it was granted does not show."""
        earlier = [grant.blocks for grant in self.running.values() if grant.epoch < self.verifier.epoch]
        return pb.CapacityReport(
            free_blocks=BLOCKS - len(self.running),
            running=len(self.running),
            epoch=self.verifier.epoch,
            owner=self.verifier.owner,
            earlier_blocks=sum(earlier),
            earlier_sequences=len(earlier),
        )

    def tell(self) -> None:
        for stream in self.streams.values():
            if stream.key_id:
                stream.up.append(self.report())


class Partitions(RuleBasedStateMachine):
    """Frames arrive late or, where the stream breaks first, never; gateways ask whom they like."""

    @initialize(seed=st.integers(0, 1000))
    def start(self, seed: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock(100.0)
        self.seed = seed
        names = {"a", "b"}
        self.replicas = {name: self.replica(name, names - {name}) for name in sorted(names)}
        self.workers = {name: Worker(name, self.clock) for name in ("w0", "w1")}
        self.granted: list[tuple[str, pb.SignedGrant, str, int]] = []  # replica, grant, request, prompt
        self.number = 0
        for worker in self.workers:
            for replica in self.replicas:
                self.connect(worker, replica)
        self.heals()

    def replica(self, name: str, others: set[str]) -> Replica:
        self.seed += 1
        return Replica(name, self.clock, self.seed, others)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()

    names = st.sampled_from(("a", "b"))
    workers_ = st.sampled_from(("w0", "w1"))

    def connect(self, worker_name: str, name: str) -> None:
        worker, replica = self.workers[worker_name], self.replicas[name]
        hello = pb.WorkerHello(
            worker=worker_name,
            address="127.0.0.1:1",
            pool=POOL,
            model_versions=["m@1"],
            block_size=16,
            total_blocks=BLOCKS,
            max_running=1000,
            max_context=16 * BLOCKS,
            epoch=worker.verifier.epoch,
            owner=worker.verifier.owner,
        )
        replica.owners.met(POOL, hello.epoch, hello.owner)
        session = replica.coordinator.worker_joined(hello)
        welcome = session.welcome(name, replica.coordinator.epoch(POOL), heartbeat=1e6)
        worker.streams[name] = Stream(session, welcome)

    @rule(worker=workers_, name=names)
    def breaks(self, worker: str, name: str) -> None:
        """What is under way is lost; the grants under its key hold on for a while; the worker comes again."""
        stream = self.workers[worker].streams[name]
        self.replicas[name].coordinator.worker_left(stream.session, "stream")
        self.connect(worker, name)

    @rule(worker=workers_, name=names)
    def hears(self, worker: str, name: str) -> None:
        found = self.workers[worker]
        stream = found.streams[name]
        stream.arrived()
        if not stream.down:
            return
        frame = stream.down.popleft()
        if frame.WhichOneof("frame") == "welcome":
            stream.key_id = frame.welcome.key_id
            found.verifier.add_key(frame.welcome.key_id, frame.welcome.grant_key)
            found.verifier.fence(frame.welcome.epoch, name)
            stream.up.append(found.report())
        elif found.verifier.fence(frame.owns.epoch, name):
            found.tell()

    @rule(worker=workers_, name=names)
    def reports(self, worker: str, name: str) -> None:
        stream = self.workers[worker].streams[name]
        if stream.up:
            self.replicas[name].coordinator.worker_reported(stream.session, stream.up.popleft())

    @rule(worker=workers_)
    def tells(self, worker: str) -> None:
        self.workers[worker].tell()

    @rule(name=names)
    def takes(self, name: str) -> None:
        """A gateway finds the owner silent, and asks another one."""
        self.clock.advance(6.0)
        self.asks(name, 1, beyond=True)

    @rule(name=names, blocks=st.integers(BLOCKS // 2, BLOCKS))
    def runs(self, name: str, blocks: int) -> None:
        """A request is granted, if it can be, and begins at once."""
        before = len(self.granted)
        self.asks(name, blocks, beyond=False)
        if len(self.granted) > before:
            self.submit(before)

    @rule(name=names, blocks=st.integers(1, BLOCKS), beyond=st.booleans())
    def asks(self, name: str, blocks: int, beyond: bool) -> None:
        replica = self.replicas[name]
        newest = max(each.coordinator.epoch(POOL) for each in self.replicas.values())
        self.number += 1
        admit = pb.Admit(
            request_id=f"r{self.number}",
            tenant="acme",
            pool=POOL,
            model_version="m@1",
            prompt_tokens=16 * blocks,
            choices=1,
        )

        async def ask() -> Any:
            replica.owners.require(POOL, beyond=newest if beyond else 0)
            return replica.coordinator.admit(admit, deadline=self.clock.monotonic() + 1e6, owner="g")

        try:
            reply = self.loop.run_until_complete(ask())
        except WeirError as error:
            assert error.reason is Reason.NOT_OWNER  # noqa: PT017 - it may as well be granted
            return
        if isinstance(reply, asyncio.Future):
            reply.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
        elif reply.HasField("granted"):
            grant = reply.granted
            self.granted.append((grant.worker, grant.grant, admit.request_id, admit.prompt_tokens))

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def submits(self, data: st.DataObject) -> None:
        self.submit(data.draw(st.integers(0, len(self.granted) - 1)))

    def submit(self, index: int) -> None:
        name, signed, request_id, prompt = self.granted.pop(index)
        worker = self.workers[name]
        newest = worker.verifier.epoch
        try:
            grant = worker.verifier.verify(
                signed,
                request_id=request_id,
                model_version="m@1",
                prompt_tokens=prompt,
                max_output_tokens=0,
                choices=1,
            )
        except WeirError as error:
            assert error.reason in (Reason.GRANT_EXPIRED, Reason.GRANT_INVALID)  # noqa: PT017 - likewise
            return
        assert grant.epoch >= newest
        worker.running[request_id] = grant

    @rule(worker=workers_, data=st.data(), name=names)
    def ends(self, worker: str, data: st.DataObject, name: str) -> None:
        """It is released at whichever replica the gateway talks to now."""
        found = self.workers[worker]
        if found.running:
            request_id = data.draw(st.sampled_from(sorted(found.running)))
            del found.running[request_id]
            self.replicas[name].coordinator.release(pb.Release(request_id=request_id, output_tokens=1))

    @rule(seconds=st.sampled_from((1.0, 6.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(name=names)
    def restarts(self, name: str) -> None:
        (other,) = self.replicas.keys() - {name}
        self.replicas[name] = self.replica(name, {other})
        for worker in self.workers:
            self.connect(worker, name)

    @rule()
    def heals(self) -> None:
        """Once all has arrived, one owns the pool, or nobody does yet; both know, and so do the workers."""
        for _ in range(6):
            for worker in self.workers:
                for name in self.replicas:
                    stream = self.workers[worker].streams[name]
                    stream.arrived()
                    while stream.down:
                        self.hears(worker, name)
                self.tells(worker)
                for name in self.replicas:
                    while self.workers[worker].streams[name].up:
                        self.reports(worker, name)
        terms = {replica.coordinator.epoch(POOL) for replica in self.replicas.values()} - {0}
        assert len(terms) <= 1
        if terms:
            assert {worker.verifier.epoch for worker in self.workers.values()} == terms

    @invariant()
    def no_block_is_promised_twice(self) -> None:
        for worker in getattr(self, "workers", {}).values():
            assert sum(grant.blocks for grant in worker.running.values()) <= BLOCKS


TestPartitions = Partitions.TestCase
TestPartitions.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_d4_what_a_former_owner_granted_is_not_granted_again() -> None:
    machine = Partitions()
    machine.start(seed=1)
    first = home(POOL, machine.replicas)
    (second,) = machine.replicas.keys() - {first}

    def running() -> list[int]:
        return [sum(each.blocks for each in worker.running.values()) for worker in machine.workers.values()]

    for _ in machine.workers:
        machine.runs(first, 80)
    assert running() == [80, 80]
    machine.asks(first, 10, beyond=False)  # granted, and on its way to the worker
    assert len(machine.granted) == 1
    machine.takes(second)
    assert machine.replicas[second].coordinator.epoch(POOL)
    for worker in machine.workers:  # reports of before the new term count for nothing
        machine.tells(worker)
        machine.reports(worker, second)
    machine.runs(second, 20)
    assert running() == [80, 80]
    machine.heals()
    assert not machine.replicas[first].coordinator.epoch(POOL)
    machine.runs(second, 50)  # two blocks are used as yet, and 160 promised
    assert running() == [80, 80]
    machine.submit(0)  # what came too late is refused
    assert running() == [80, 80]
    machine.runs(second, 20)
    assert sorted(running()) == [80, 100]
    machine.teardown()
