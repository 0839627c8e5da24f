"""Refused callers and keys in new places are recorded, counted, however many there are (B5, issue point 6)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from envoy.config.core.v3 import address_pb2
from envoy.service.auth.v3 import attribute_context_pb2, external_auth_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from weir.audit.v1 import audit_pb2
from weir.registry.v1 import registry_pb2

from libs import apikeys
from libs.auditlog.security import Kind, SecurityTally, Sight, network_of, record_of
from libs.registry import MemoryStore, Put
from libs.registry.keys import encode, key_of
from libs.rpc import make_channel
from libs.service import serve
from services.edge_auth.app import build
from services.edge_auth.config import Settings
from services.edge_auth.policy.networks import KnownNetworks
from services.ratelimit.app import build as build_limiter
from services.ratelimit.config import Settings as LimiterSettings
from tests.support.audit import Audit, audit_service

PEPPER = b"a pepper of the tests, long enough"


def key_of_tests(random_byte: int, *scopes: str, **more: Any) -> tuple[apikeys.ParsedKey, registry_pb2.ApiKey]:
    made = apikeys.make(lambda n: bytes([random_byte]) * n)
    stored = registry_pb2.ApiKey(id=made.id, tenant="acme", scopes=scopes, hash=apikeys.hash_key(made, PEPPER), **more)
    return made, stored


class Edge:
    """Edge-auth before an audit service."""

    def __init__(self, channel: Any, service: Any) -> None:
        self._check = channel.unary_unary(
            "/envoy.service.auth.v3.Authorization/Check",
            request_serializer=external_auth_pb2.CheckRequest.SerializeToString,
            response_deserializer=external_auth_pb2.CheckResponse.FromString,
        )
        self.service = service

    async def call(self, path: str, *, address: str, **headers: str) -> external_auth_pb2.CheckResponse:
        socket = address_pb2.SocketAddress(address=address, port_value=40_000)
        http = attribute_context_pb2.AttributeContext.HttpRequest(path=path, headers=headers)
        request = external_auth_pb2.CheckRequest(
            attributes=attribute_context_pb2.AttributeContext(
                source=attribute_context_pb2.AttributeContext.Peer(address=address_pb2.Address(socket_address=socket)),
                request=attribute_context_pb2.AttributeContext.Request(http=http),
            )
        )
        answer: external_auth_pb2.CheckResponse = await self._check(request, timeout=5)
        return answer

    async def flushed(self) -> None:
        """What was seen is in the audit log."""
        await self.service._watch.flush()
        await self.service._audit._writer.drained()


@contextlib.asynccontextmanager
async def edge(root: Path, audit: Audit, *keys: registry_pb2.ApiKey) -> AsyncIterator[Edge]:
    pepper = root / "pepper"
    pepper.write_bytes(PEPPER)
    settings = Settings(
        service="edge-auth",
        instance="edge-auth-0",
        pepper_file=str(pepper),
        state_dir=str(root / "edge-auth"),
        audit_target=f"127.0.0.1:{audit.port}",
        drain_seconds=5,
    )
    store = MemoryStore()
    tenant = registry_pb2.Tenant(id="acme", plan=registry_pb2.PLAN_PAID)
    await store.txn(puts=[Put(key_of(each), encode(each)) for each in (tenant, *keys)])
    service = await build(settings, store=store)
    (root / "edge-auth").mkdir(exist_ok=True)
    async with serve(service, settings) as running:
        await running.ready.wait()
        async with make_channel(f"127.0.0.1:{running.port}", tls=None) as channel:
            yield Edge(channel, service)


async def events(audit: Audit, *, kind: str = "") -> list[audit_pb2.SecurityEvent]:
    tail = await audit.stub.Tail(audit_pb2.TailRequest(limit=1000), timeout=10)
    found = [each.record.security for each in tail.records if each.record.HasField("security")]
    return [each for each in found if not kind or each.kind == kind]


async def test_b5_refusals_at_the_edge_and_keys_in_new_places_are_recorded(tmp_path: Path) -> None:
    good, stored = key_of_tests(1, "inference")
    wrong = f"wk_{good.id}_{'x' * 32}"
    async with audit_service(tmp_path) as audit, edge(tmp_path, audit, stored) as at:
        for _ in range(5):
            await at.call("/v1/chat/completions", address="10.0.0.1", authorization=f"Bearer {wrong}")
        await at.call("/v1/chat/completions", address="10.0.0.99", authorization="Bearer a word of a user")
        await at.call("/v1/models", address="10.0.0.1", authorization=f"Bearer {good.text}")
        await at.call("/v1/chat/completions", address="10.0.0.1", authorization=f"Bearer {good.text}")
        await at.call("/v1/chat/completions", address="10.0.0.7", authorization=f"Bearer {good.text}")
        await at.call("/v1/chat/completions", address="192.0.2.1", authorization=f"Bearer {good.text}")
        await at.flushed()
        [bad] = await events(audit, kind="unauthenticated")
        # One network, one reason: one record. A key's id is told only if the key was shown whole.
        assert (bad.reason, bad.count, bad.key_id, len(bad.network)) == ("bad_credential", 6, "", 16)
        [forbidden] = await events(audit, kind="forbidden")
        assert (forbidden.reason, forbidden.key_id, forbidden.tenant) == ("scope_missing", good.id, "acme")
        new = await events(audit, kind="key_new_source")
        assert [(each.reason, each.key_id) for each in new] == [("first_use", good.id), ("new_network", good.id)]
        everything = "".join(map(str, await events(audit)))
        for private in ("10.0.0", "192.0.2", "a word", good.text):
            assert private not in everything
    # Known networks survive a restart, so it makes no events.
    async with audit_service(tmp_path) as audit, edge(tmp_path, audit, stored) as at:
        before = len(await events(audit))
        await at.call("/v1/chat/completions", address="192.0.2.77", authorization=f"Bearer {good.text}")
        await at.flushed()
        assert len(await events(audit)) == before


async def test_b5_refusals_that_envoy_repeats_are_counted_too(tmp_path: Path) -> None:
    good, stored = key_of_tests(1, "inference")
    async with audit_service(tmp_path) as audit, edge(tmp_path, audit, stored) as at:
        for repeated in ("7", "5"):
            told = {"authorization": f"Bearer {good.text}", "x-weir-refused": repeated}
            await at.call("/v1/chat/completions", address="10.0.0.1", **told)
        await at.flushed()
        [event] = await events(audit, kind="unauthenticated")
        assert (event.reason, event.count, event.key_id, len(event.network)) == ("repeated", 12, "", 16)


async def test_b5_a_limit_at_the_edge_is_recorded(tmp_path: Path) -> None:
    async with audit_service(tmp_path) as audit:
        settings = LimiterSettings(
            service="ratelimit", instance="ratelimit-0", audit_target=f"127.0.0.1:{audit.port}", drain_seconds=5
        )
        store = MemoryStore()
        limits = registry_pb2.Limits(tenant="acme", model="*", requests_per_minute=2)
        await store.txn(puts=[Put(key_of(limits), encode(limits))])
        service = await build_limiter(settings, store=store)
        async with serve(service, settings) as running:
            await running.ready.wait()
            async with make_channel(f"127.0.0.1:{running.port}", tls=None) as channel:
                stub = rls_pb2_grpc.RateLimitServiceStub(channel)
                request = rls_pb2.RateLimitRequest(domain="weir-edge")
                request.descriptors.add().entries.add(key="tenant", value="acme")
                codes = [(await stub.ShouldRateLimit(request, timeout=5)).overall_code for _ in range(5)]
            assert codes.count(rls_pb2.RateLimitResponse.OVER_LIMIT) == 3
            await service._watch.flush()
            [event] = await events(audit, kind="rate_limited")
            assert (event.reason, event.tenant, event.count) == ("quota_requests", "acme", 3)


def test_b5_a_flood_from_a_million_addresses_is_a_few_records() -> None:
    tally = SecurityTally()
    started = time.process_time()
    for number in range(200_000):
        tally.note(Sight(Kind.UNAUTHENTICATED, "bad_credential", network=f"{number:016x}"), float(number))
    took = time.process_time() - started
    tally.note(Sight(Kind.FORBIDDEN, "scope_missing", key_id="k"), 0.0)
    rows = tally.take()
    assert len(rows) <= 66
    assert sum(row.count for row in rows if row.sight.kind is Kind.UNAUTHENTICATED) == 200_000
    assert {row.sight.kind for row in rows} == {Kind.UNAUTHENTICATED, Kind.FORBIDDEN}
    assert took / 200_000 < 50e-6
    assert tally.take() == []
    [summed] = [row for row in rows if row.summed and row.sight.kind is Kind.UNAUTHENTICATED]
    record = record_of(summed, record_id="r", source="edge-auth/edge-auth-0").security
    assert record.summed
    assert record.network == ""


async def test_b5_events_wait_for_an_audit_service_that_is_away(tmp_path: Path) -> None:
    from random import Random

    from libs.auditlog.watch import SecurityWatch
    from libs.clock import ManualClock
    from libs.errors import Reason, WeirError

    class Log:
        def __init__(self) -> None:
            self.away = True
            self.records: list[audit_pb2.Record] = []

        async def append(self, record: audit_pb2.Record) -> None:
            if self.away:
                raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "away")
            self.records.append(record)

    log = Log()
    watch = SecurityWatch(log, source="edge-auth/e", clock=ManualClock(), rng=Random(1))
    for minute in range(2000):
        watch.note(Sight(Kind.UNAUTHENTICATED, "no_credential", network=f"{minute}"))
        await watch.flush()
    log.away = False
    await watch.flush()
    assert len(log.records) == 1024
    assert log.records[-1].security.network == "1999"


def test_b5_an_address_is_kept_coarse_and_hashed() -> None:
    key = b"k" * 32
    assert network_of("10.1.2.3", key) == network_of("10.1.2.200", key) == network_of("::ffff:10.1.2.9", key)
    assert network_of("10.1.2.3", key) != network_of("10.1.3.3", key)
    assert network_of("10.1.2.3", key) != network_of("10.1.2.3", b"other")
    assert network_of("2001:db8:0:ff::1", key) == network_of("2001:db8:0:1::1", key)
    assert network_of("2001:db8:0:100::1", key) != network_of("2001:db8:0:1::1", key)
    assert network_of("unix:/x", key) == ""


def test_b5_known_networks_are_bounded() -> None:
    known = KnownNetworks(max_keys=3)
    assert known.seen("a", "1") == "first_use"
    assert known.seen("a", "1") == ""
    for number in range(100):
        assert known.seen("a", f"n{number}") == "new_network"
    assert known.seen("a", "1") == "new_network"
    for key_id in "bcd":
        known.seen(key_id, "1")
    again = KnownNetworks(known.lines(), max_keys=3)
    assert not again.changed
    assert again.seen("d", "1") == ""
    assert len(again.lines()) == 3
    assert again.seen("a", "1") == "first_use"
