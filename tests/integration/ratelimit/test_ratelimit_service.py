"""The rate limiter over real gRPC: exactness, one set of buckets behind two protocols, restarts."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from weir.errors.v1 import errors_pb2
from weir.mux.v1 import mux_pb2
from weir.quota.v1 import quota_pb2, quota_pb2_grpc
from weir.registry.v1 import registry_pb2

from libs.authority.identity import Identity
from libs.clock import ManualClock
from libs.config import TlsFiles
from libs.errors import Reason, WeirError
from libs.pki import ensure_ca, issue
from libs.registry import MemoryStore, Put, keys
from libs.rpc import make_channel
from libs.service import serve
from services.ratelimit.app import build
from services.ratelimit.config import Settings
from tests.support.refusals import opened

OK = rls_pb2.RateLimitResponse.OK
OVER = rls_pb2.RateLimitResponse.OVER_LIMIT


def headers(response: rls_pb2.RateLimitResponse) -> dict[str, str]:
    return {header.key: header.value for header in response.response_headers_to_add}


@pytest.mark.parametrize(
    ("limits", "admitted", "reason"),
    [
        ({"tokens_per_minute": 370}, 37, errors_pb2.REASON_QUOTA_TOKENS),
        ({"concurrency": 23}, 23, errors_pb2.REASON_QUOTA_CONCURRENCY),
        ({"requests_per_minute": 51}, 51, errors_pb2.REASON_QUOTA_REQUESTS),
    ],
)
async def test_200_reserves_at_once_admit_exactly_the_limit(
    start: Any, limits: dict[str, int], admitted: int, reason: int
) -> None:
    # Time stands still, so nothing is refilled meanwhile.
    async with start(clock=ManualClock(start=100.0), state_dir="") as mesh:
        await mesh.set_limits("acme", **limits)
        replies = await asyncio.gather(*(mesh.reserve(f"r{number}", counted=False) for number in range(200)))
        assert sum(reply.HasField("reserved") for reply in replies) == admitted
        rejected = [reply.rejected for reply in replies if reply.HasField("rejected")]
        assert {rejection.reason for rejection in rejected} == {reason}
        assert all(rejection.HasField("retry_after") for rejection in rejected)


async def test_the_edge_and_the_mesh_share_buckets(start: Any) -> None:
    async with start(clock=ManualClock(start=100.0), state_dir="") as mesh:
        await mesh.set_limits("acme", requests_per_minute=3, tokens_per_minute=100)
        first = await mesh.ask_edge("acme", tokens=60)
        assert first.overall_code == OK
        assert headers(first)["x-ratelimit-remaining-requests"] == "2"
        assert [header.key for header in first.request_headers_to_add] == ["x-weir-request-counted"]
        # The edge only looked at the tokens.
        assert headers(first)["x-ratelimit-remaining-tokens"] == "100"
        assert (await mesh.reserve("r1", 60)).reserved.tokens.remaining == 40

        refused = await mesh.ask_edge("acme", tokens=60)
        assert refused.overall_code == OVER
        assert [status.code for status in refused.statuses] == [OK, OVER]
        assert refused.statuses[1].current_limit.requests_per_unit == 100
        assert b"tokens per minute" in refused.raw_body
        told = headers(refused)
        # An open stream is in the way, and nobody knows yet how long streams take.
        assert (told["retry-after"], told["retry-after-ms"]) == ("1", "1000")
        assert (told["x-weir-reason"], told["x-weir-code"]) == ("QUOTA_TOKENS", "quota_tokens")
        # A refusal takes no request.
        assert told["x-ratelimit-remaining-requests"] == "2"

        await mesh.settle("r1", 10)
        assert (await mesh.ask_edge("acme", tokens=60)).overall_code == OK
        last = await mesh.reserve("r2", 0, counted=False)
        assert last.reserved.requests.remaining == 0
        over = await mesh.ask_edge("acme")
        assert over.overall_code == OVER
        assert b"requests per minute" in over.raw_body


async def test_limits_of_the_registry_apply_at_once_and_keep_consumption(start: Any) -> None:
    async with start(clock=ManualClock(start=100.0), state_dir="", default_tokens_per_minute=50) as mesh:
        assert (await mesh.reserve("r0", 1, tenant="unheard-of")).reserved.tokens.limit == 50
        await mesh.set_limits("acme", tokens_per_minute=1000)
        assert (await mesh.reserve("r1", 500)).reserved.tokens.remaining == 500
        await mesh.set_limits("acme", tokens_per_minute=600)
        assert (await mesh.reserve("r2", 100)).reserved.tokens.remaining == 0
        await mesh.set_limits("acme", "fast", concurrency=1)
        assert (await mesh.reserve("r3", 0, model="slow")).HasField("reserved")


async def test_repeats_change_nothing_and_settled_ids_are_refused(start: Any) -> None:
    async with start(clock=ManualClock(start=100.0), state_dir="") as mesh:
        await mesh.set_limits("acme", tokens_per_minute=1000, concurrency=1)
        assert (await mesh.reserve("r1", 300)).reserved == (await mesh.reserve("r1", 300)).reserved
        assert (await mesh.settle("r1", 100)).settled.known
        assert not (await mesh.settle("r1", 900)).settled.known
        with pytest.raises(WeirError) as refused:
            await mesh.reserve("r1", 300)
        assert refused.value.reason is Reason.CONFLICT
        assert (await mesh.reserve("r2", 0)).reserved.tokens.remaining == 900


async def test_a_lease_that_nobody_settles_ends_by_itself(start: Any) -> None:
    clock = ManualClock(start=100.0)
    async with start(clock=clock, state_dir="", lease_seconds=5.0) as mesh:
        await mesh.set_limits("acme", tokens_per_minute=100, concurrency=1)
        await mesh.reserve("dead", 100)
        assert (await mesh.reserve("r1", 0)).rejected.limit == "concurrency"
        clock.advance(5)
        after = await mesh.reserve("r1", 0)
        # What it reserved stays counted, since nobody knows what it used.
        assert after.reserved.tokens.remaining == 0


def journaled(folder: Path, what: bytes) -> bool:
    """Whether it stands in the audit journal: a SIGKILL from here on loses nothing."""
    return any(what in path.read_bytes() for path in (folder / "audit-journal").iterdir())


async def test_a_lease_that_nobody_settles_stands_in_the_journal_once_it_is_forgotten(
    start: Any, tmp_path: Path
) -> None:
    soon = {"lease_seconds": 0.1, "settled_retention_seconds": 0.1, "flush_seconds": 0.02}
    async with start(audit_target="127.0.0.1:1", security_seconds=3600.0, **soon) as mesh:
        await mesh.reserve("r1/5f", tokens=40)
        async with asyncio.timeout(20):
            while mesh.service._ledger.live_leases or mesh.service._ledger.remembered_settled:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert journaled(tmp_path / "state", b"unknown-r1/5f")


@pytest.mark.parametrize("missing", ["tenant", "request_id"])
async def test_incomplete_calls_are_refused(start: Any, missing: str) -> None:
    async with start(state_dir="") as mesh:
        with pytest.raises(WeirError) as refused:
            await mesh.reserve(**({"request_id": "r1", "tenant": "acme"} | {missing: ""}))
        assert (refused.value.reason, refused.value.limit) == (Reason.INVALID_REQUEST, missing)


async def test_other_domains_and_tenantless_descriptors_are_refused(start: Any) -> None:
    async with start(state_dir="") as mesh:
        for request in (rls_pb2.RateLimitRequest(domain="other"), rls_pb2.RateLimitRequest(domain="weir-edge")):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await mesh.edge.ShouldRateLimit(request, timeout=10)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_clean_restart_loses_nothing(start: Any) -> None:
    clock = ManualClock(start=100.0)
    limits = {"requests_per_minute": 10, "tokens_per_minute": 600, "concurrency": 2}
    async with start(clock=clock, limits=limits) as mesh:
        await mesh.reserve("live", 300, counted=False)
        await mesh.reserve("done", 100, counted=False)
        await mesh.settle("done", 60)
    clock.advance(6)
    async with start(clock=clock, limits=limits) as mesh:
        state = (await mesh.reserve("live", 300)).reserved
        assert (state.tokens.remaining, state.concurrency.remaining) == (240, 1)
        assert state.requests.remaining == 8
        assert not (await mesh.settle("done", 600)).settled.known
        assert (await mesh.settle("live", 0)).settled.known
        assert (await mesh.reserve("next", 540)).HasField("reserved")
    clock.advance(55)
    async with start(clock=clock, limits=limits) as mesh:
        assert (await mesh.reserve("probe", 0)).reserved.tokens.remaining == 60


async def test_a_kill_loses_at_most_what_was_not_written(start: Any, tmp_path: Path) -> None:
    clock = ManualClock(start=100.0)
    killed = tmp_path / "killed"
    limits = {"tokens_per_minute": 1000}
    async with start(clock=clock, limits=limits, flush_seconds=3600.0) as mesh:
        await mesh.reserve("written", 400)
        await mesh.service.keeper.flush()
        await mesh.reserve("lost", 500)
        # What a SIGKILL leaves behind.
        killed.mkdir()
        (killed / "quota.journal").write_bytes((tmp_path / "state" / "quota.journal").read_bytes())
    async with start(clock=clock, limits=limits, state_dir=str(killed)) as mesh:
        assert (await mesh.reserve("probe", 0)).reserved.tokens.remaining == 600
        assert (await mesh.settle("written", 400)).settled.known
        # The lease was lost with its charge, so its settle charges.
        assert not (await mesh.settle("lost", 500)).settled.known
        assert (await mesh.reserve("probe2", 0)).reserved.tokens.remaining == 100


async def test_changes_are_written_by_themselves(start: Any, tmp_path: Path) -> None:
    async with start(flush_seconds=0.01) as mesh:
        await mesh.reserve("r1", 10)
        journal = tmp_path / "state" / "quota.journal"
        async with asyncio.timeout(20):
            while not journal.exists():
                await asyncio.to_thread(lambda: None)
        assert journal.read_bytes().startswith(b"WEIRQ")


async def test_the_cached_limits_are_enough_to_start(start: Any, tmp_path: Path) -> None:
    cache = tmp_path / "state" / "registry.cache"
    async with start(limits={"tokens_per_minute": 777}), asyncio.timeout(20):
        while not cache.exists():
            await asyncio.to_thread(lambda: None)
    async with start(limits={"tokens_per_minute": 1}, registry=False) as mesh:
        assert (await mesh.reserve("r1", 7)).reserved.tokens.limit == 777


async def test_only_envoy_asks_the_edge_and_only_gateways_open_sessions(tmp_path: Path) -> None:
    ensure_ca(tmp_path / "pki")

    def files(service: str) -> TlsFiles:
        issued = issue(tmp_path / "pki", Identity(service, f"{service}-0"))
        return TlsFiles(ca=str(issued.ca), cert=str(issued.cert), key=str(issued.key))

    settings = Settings(service="ratelimit", instance="ratelimit-0", audit_target="", tls=files("ratelimit"))
    store = MemoryStore()
    limits = registry_pb2.Limits(tenant="acme", model="*")
    await store.txn(puts=[Put(keys.key_of(limits), keys.encode(limits))])
    service = await build(settings, store=store)
    edge_request = rls_pb2.RateLimitRequest(domain="weir-edge")
    edge_request.descriptors.add().entries.add(key="tenant", value="acme")
    async with serve(service, settings) as running:
        for caller, edge_may in (("envoy", True), ("gateway", False), ("safety", False)):
            async with make_channel(
                f"127.0.0.1:{running.port}", tls=files(caller), server_name="ratelimit.weir.internal"
            ) as channel:
                edge = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit(edge_request, timeout=10)
                denied = grpc.StatusCode.PERMISSION_DENIED
                assert await edge.code() is (grpc.StatusCode.OK if edge_may else denied)
                session = partial(quota_pb2_grpc.QuotaServiceStub(channel).Session, timeout=10)
                hello = quota_pb2.SessionRequest(hello=mux_pb2.Hello(service=caller, instance=f"{caller}-0"))
                if caller == "gateway":
                    _, frame = await opened(session, hello)
                    assert frame.HasField("welcome")
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await opened(session, hello)
                assert refused.value.code() is denied
