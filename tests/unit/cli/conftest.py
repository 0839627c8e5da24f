"""A registry with mTLS in this process, with one resource of every kind that can be applied, and the command for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from weir.registry.v1 import registry_pb2 as pb

from libs.artifacts import make_key
from libs.registry import MemoryStore, Put, keys
from tests.support.operator import Operator

ONE_OF_EACH = Path(__file__).with_name("one_of_each.yaml")
ENDED = pb.RolloutState(phase=pb.ROLLOUT_PHASE_PROMOTED, reason="it was better", ended_at=Timestamp(seconds=1))
OBSERVED = (
    pb.Rollout(
        alias="weir-fast",
        id="r1",
        baseline="weir-fast@1",
        arms=[pb.RolloutArm(name="canary", model_version="weir-fast@2")],
        steps=[pb.RolloutStep(weight=500)],
        reason="better",
        state=ENDED,
    ),
    pb.Endpoint(service="worker", instance="worker-0", address="127.0.0.1:1", zone="zone-a", engine="simulated"),
    pb.PoolLevel(pool="demo", tenants=[pb.TenantLevel(tenant="acme", shed=0.4)]),
    pb.Spend(tenant="acme", day="2026-11-23", day_microusd=5, month="2026-11", month_microusd=70),
    pb.ErrorBudget(route="generate", tier="fast", objectives=[pb.ObjectiveBudget(objective="availability")]),
)
"""What nobody applies, and a rollout that has ended: one that begins needs workers."""


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def weir(tmp_path: Path, store: MemoryStore) -> AsyncIterator[Operator]:
    """The command, and an empty registry."""
    operator = Operator(tmp_path)
    async with operator.registry(store):
        yield operator


@pytest.fixture
def one_of_each(tmp_path: Path) -> Path:
    """A file with a resource of every kind that can be applied."""
    trusted = make_key().trusted("")
    text = ONE_OF_EACH.read_text().replace("KEY_ID", trusted.key_id)
    lines = "".join(f"      {line}\n" for line in trusted.public_key.splitlines())
    path = tmp_path / "one_of_each.yaml"
    path.write_text(text.replace("PUBLIC_KEY\n", lines))
    return path


@pytest.fixture
async def full(weir: Operator, store: MemoryStore, one_of_each: Path) -> Operator:
    """The command, and a registry that has something of every kind."""
    for message in OBSERVED:
        await store.txn(puts=[Put(keys.key_of(message), keys.encode(message))])
    applied = await weir("apply", "-f", one_of_each, "--reason", "the beginning")
    assert applied.code == 0, applied.err
    made = await weir("keys", "create", "acme", "--note", "test")
    assert made.code == 0, made.err
    return weir
