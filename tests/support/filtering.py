"""The real safety service's decisions behind a gateway whose other leaves are scripted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from weir.registry.v1 import registry_pb2 as pb
from weir.worker.v1 import worker_pb2

from libs.clock import SystemClock
from libs.registry import RegistrySnapshot
from libs.registry.keys import key_of
from services.safety.packs import PackKeeper
from services.safety.policy.book import PolicyBook
from services.safety.server import SafetyHandler
from services.safety.turns import Turns
from tests.support.leaves import MODEL, Rig, Running
from tests.support.native_stream import ids

CARD = r"\d{4}-\d{4}"


def policy(name: str, *rules: pb.SafetyRule) -> pb.SafetyPolicy:
    """A policy, "id@version"."""
    identity, _, version = name.partition("@")
    return pb.SafetyPolicy(id=identity, version=version, rules=rules)


def rule(pattern: str, action: str, *, stage: str = "both", replacement: str = "", name: str = "r") -> pb.SafetyRule:
    """A rule whose category says what it does."""
    return pb.SafetyRule(
        id=name, category=f"test.{action}", pattern=pattern, action=action, stage=stage, replacement=replacement
    )


@contextlib.asynccontextmanager
async def filtering(mesh: Rig, *policies: pb.SafetyPolicy, **under: list[str]) -> AsyncIterator[PackKeeper]:
    """Have the mesh filter by these policies; see `enforce` for who is under which."""
    keeper = PackKeeper(PolicyBook(shipped={}, floor="none@0", most=16), patience=0.2)
    mesh.safety.handler = SafetyHandler(
        keeper=keeper,
        turns=Turns(clock=SystemClock(), max_waiting=1 << 20),
        max_filters=100,
        max_context=4096,
        max_input=1 << 18,
        max_delta=1 << 14,
    )
    for each in policies:
        await mesh.put(each)
    compiling = asyncio.create_task(keeper.run())
    try:
        await enforce(mesh, keeper, policies, **under)
        yield keeper
    finally:
        compiling.cancel()


async def enforce(
    mesh: Rig,
    keeper: PackKeeper,
    policies: tuple[pb.SafetyPolicy, ...],
    *,
    floor: list[str],
    tenant: list[str] | None = None,
    version: list[str] | None = None,
) -> None:
    """Put these pins into force at the gateway and at safety."""
    known = mesh.gateway._catalog.snapshot
    its, served = pb.Tenant(), pb.ModelVersion()
    its.CopyFrom(known.tenants["closed"])
    served.CopyFrom(known.model_versions[MODEL])
    served.context_length = 1024  # tokens are bytes, and tokens for words are many
    its.safety_policies[:], served.safety_policies[:] = tenant or (), version or ()
    names = {key_of(each).rpartition("/")[2]: each for each in policies}
    wanted = pb.SafetyFloor(policies=floor)
    for message in (wanted, its, served):
        await mesh.put(message)
    keeper.apply(RegistrySnapshot(safety_policies=names, safety_floors={"mesh": wanted}, tenants={its.id: its}))
    async with asyncio.timeout(10):
        while _in_force(mesh) != tuple(dict.fromkeys((*floor, *its.safety_policies, *served.safety_policies))):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _in_force(mesh: Rig) -> tuple[str, ...]:
    catalog = mesh.gateway._catalog
    return catalog.policies(catalog.tenant("closed"), catalog.version(MODEL))


async def say(running: Running, text: str, *, top: bool = False, last: bool = False) -> None:
    """A step frame with this text, a token for each byte, and their log-probabilities."""
    tokens = ids(text)
    frame = worker_pb2.StepFrame(handles=[running.submit.handle], counts=[len(tokens)], tokens=tokens)
    entry = frame.logprobs.add(handle=running.submit.handle)
    for token in tokens:
        one: Any = entry.tokens.add(logprob=-1.0)
        if top:
            one.top_ids.append(token)
            one.top_logprobs.append(-1.0)
    if last:
        frame.finished.add(handle=running.submit.handle, reason=worker_pb2.FINISH_REASON_STOP)
    await running.stream.send(worker_pb2.SessionResponse(step=frame))
