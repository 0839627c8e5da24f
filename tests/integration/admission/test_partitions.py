"""Two admission processes, workers and gateways with real sockets between them, some of which stop forwarding."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest
from weir.admission.v1 import admission_pb2 as pb
from weir.admission.v1 import admission_pb2_grpc
from weir.mux.v1 import mux_pb2

from libs.deadlines import to_duration
from libs.errors import Reason, WeirError
from libs.registry import keys
from libs.rpc import make_channel
from tests.support.owners import CLOCK, FIRST, MODEL, NAMES, POOL, SECOND, Mesh, ended, process, until


@pytest.fixture
async def mesh() -> AsyncIterator[Mesh]:
    async with contextlib.AsyncExitStack() as stack:
        made = Mesh(stack)
        await made.start()
        yield made


async def test_a_gateway_goes_to_the_owner_wherever_the_ring_leads(mesh: Mesh) -> None:
    strays = await mesh.gateway(first=SECOND)
    granted = (await strays.admit()).granted
    assert strays.mux.instance == FIRST
    assert await mesh.run(granted, "gateway-0/1") == ""
    channel = await mesh.stack.enter_async_context(make_channel(mesh.addresses[SECOND], tls=None))
    stream = admission_pb2_grpc.AdmissionServiceStub(channel).Session()  # one that names no pool as it opens
    await stream.write(pb.SessionRequest(hello=mux_pb2.Hello(service="gateway", instance="gateway-1")))
    await stream.read()
    call = pb.AdmissionCall(admit=pb.Admit(request_id="r", tenant="acme", pool=POOL, model_version=MODEL))
    call.header.id = 1
    call.header.remaining.CopyFrom(to_duration(10))
    await stream.write(pb.SessionRequest(calls=pb.AdmissionCalls(items=[call])))
    assert (await stream.read()).go_away.reason
    error = WeirError.from_status((await stream.read()).replies.items[0].header.error)
    assert (error.reason, error.limit) == (Reason.NOT_OWNER, f"{mesh.epoch(FIRST):x}@{mesh.addresses[FIRST]}")


async def test_d4_cut_off_from_the_owner_a_gateway_has_another_process_take_over(mesh: Mesh) -> None:
    """And all follow it: there is one owner for as long as the network is cut, and after it heals."""
    cut, whole = await mesh.gateway(), await mesh.gateway(instance="gateway-1")
    await cut.admit()
    late = (await whole.admit()).granted
    cut.proxies[FIRST].block()
    granted = (await cut.admit()).granted
    assert cut.mux.instance == SECOND
    await mesh.owned_by(SECOND)
    assert await mesh.run(granted, "gateway-0/2") == ""
    assert await mesh.run(late, "gateway-1/1") == "GRANT_EXPIRED epoch"
    assert (await whole.admit()).HasField("granted")
    assert whole.mux.instance == SECOND
    epoch = mesh.epoch(SECOND)
    cut.proxies[FIRST].heal()
    assert (await cut.admit()).HasField("granted")
    assert (await whole.admit()).HasField("granted")
    assert (mesh.epoch(FIRST), mesh.epoch(SECOND)) == (0, epoch)


async def test_d4_an_owner_cut_off_from_the_workers_gives_the_pool_to_one_that_is_not(mesh: Mesh) -> None:
    gateway = await mesh.gateway()
    await gateway.admit()
    mesh.reaching[FIRST].block()
    reply = pb.AdmissionReply()
    while gateway.mux.instance != SECOND or not reply.HasField("granted"):
        reply = await gateway.admit()
    assert await mesh.run(reply.granted, f"gateway-0/{gateway.number}") == ""
    mesh.reaching[FIRST].heal()
    await mesh.owned_by(SECOND)


async def test_d4_whom_the_registry_takes_for_gone_is_replaced_and_its_queue_moves(mesh: Mesh) -> None:
    """An owner that is cut off from etcd: its endpoint runs out. It learns from the worker that it is replaced."""
    gateway = await mesh.gateway()
    fill = {"prompt_tokens": 800, "max_output_tokens": 800}
    held = (await gateway.admit(**fill)).granted
    waiting = asyncio.create_task(gateway.admit(**fill))
    await until(lambda: len(mesh.services[FIRST].coordinator.pools[POOL].backlog))
    await mesh.store.txn(deletes=[keys.key("endpoints", f"admission/{FIRST}")])
    await mesh.owned_by(SECOND)
    assert (await waiting).granted.worker == "w0"
    assert gateway.mux.instance == SECOND
    assert await mesh.run(held, "gateway-0/1") == "GRANT_EXPIRED epoch"


async def test_d4_what_runs_for_a_former_owner_counts_in_full_with_the_new_one(mesh: Mesh) -> None:
    """Its room is granted again when it has ended, and no moment sooner, though little of it is used as yet."""
    gateway = await mesh.gateway()
    long = {"max_output_tokens": 1200}  # 76 of 100 blocks
    held = (await gateway.admit(**long)).granted
    running = asyncio.create_task(mesh.run(held, "gateway-0/1", 1200))
    mesh.stack.push_async_callback(ended, running)
    await until(lambda: mesh.worker._hub.live)
    await mesh.store.txn(deletes=[keys.key("endpoints", f"admission/{FIRST}")])
    await mesh.owned_by(SECOND)
    pool = mesh.services[SECOND].coordinator.pools[POOL]
    waiting = asyncio.create_task(gateway.admit(**long))
    await until(lambda: len(pool.backlog) and pool.fleet.workers["w0"].report is not None)
    assert pool.fleet.workers["w0"].report.free_blocks > 76
    assert pool.fleet.workers["w0"].free_blocks(CLOCK.monotonic()) == 24
    short = (await gateway.admit(max_output_tokens=300, tenant="other")).granted  # 19 blocks fit beside it
    assert await mesh.run(short, "gateway-0/3") == ""
    await gateway.release("gateway-0/3")
    assert not waiting.done()
    running.cancel()
    assert (await waiting).granted.worker == "w0"


async def test_d4_two_that_take_each_other_for_gone_serve_by_turns(mesh: Mesh) -> None:
    """Neither sees the other in the registry, and each gateway reaches one of them only."""
    cut = {FIRST: await mesh.gateway(), SECOND: await mesh.gateway(first=SECOND, instance="gateway-1")}
    for name in NAMES:
        await mesh.store.txn(deletes=[keys.key("endpoints", f"admission/{name}")])
    await until(lambda: not any(each._members.current for each in mesh.services.values()))
    for name, gateway in cut.items():
        (other,) = set(NAMES) - {name}
        gateway.proxies[other].block()
    for _ in range(2):
        for name, gateway in cut.items():
            assert (await gateway.admit()).HasField("granted")
            assert gateway.mux.instance == name


async def test_d4_without_the_store_the_owner_serves_on_and_a_lost_one_is_replaced(mesh: Mesh) -> None:
    gateway = await mesh.gateway()
    await gateway.admit()
    mesh.store.set_available(False)
    assert (await gateway.admit()).HasField("granted")
    assert gateway.mux.instance == FIRST
    gateway.proxies[FIRST].block()
    assert (await gateway.admit()).HasField("granted")
    await mesh.owned_by(SECOND)


async def test_d4_an_owner_that_stood_still_grants_nothing_that_a_worker_takes() -> None:
    """Real processes: the owner is stopped in its tracks with a question unanswered, and wakes up after another took
    its pool."""
    async with contextlib.AsyncExitStack() as stack:
        children = {name: await stack.enter_async_context(process(name)) for name in NAMES}
        mesh = Mesh(stack)
        mesh.addresses = {name: address for name, (_, address) in children.items()}
        await mesh.serve_worker()
        # Neither knows of the other, so both begin a term: once the worker has heard both, the newer one stands.
        await until(lambda: mesh.worker._reporter is not None and mesh.worker._reporter.live == 2)
        owner = mesh.verifier.owner
        (other,) = set(NAMES) - {owner}
        patient = await mesh.gateway(first=owner)
        await patient.admit()
        await until(lambda: patient.mux.instance == owner)
        channel = await stack.enter_async_context(make_channel(mesh.addresses[owner], tls=None))
        stuck = admission_pb2_grpc.AdmissionServiceStub(channel).Session()
        await stuck.write(pb.SessionRequest(hello=mux_pb2.Hello(service="gateway", instance="gateway-1")))
        await stuck.read()
        children[owner][0].send_signal(signal.SIGSTOP)
        call = pb.AdmissionCall(admit=patient.question("stuck"))
        call.header.id = 1
        call.header.remaining.CopyFrom(to_duration(100))
        await stuck.write(pb.SessionRequest(calls=pb.AdmissionCalls(items=[call])))
        granted = (await patient.admit()).granted
        assert (patient.mux.instance, mesh.verifier.owner) == (other, other)
        assert await mesh.run(granted, "gateway-0/2") == ""
        children[owner][0].send_signal(signal.SIGCONT)
        while (frame := await stuck.read()).HasField("go_away"):
            pass
        (reply,) = frame.replies.items
        # Whether it hears of the new term before it answers or after, nothing comes of it.
        if reply.HasField("granted"):
            assert await mesh.run(reply.granted, "stuck") == "GRANT_EXPIRED epoch"
        else:
            assert WeirError.from_status(reply.header.error).reason in (Reason.NOT_OWNER, Reason.DRAINING)
