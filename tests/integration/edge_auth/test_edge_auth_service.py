"""Edge-auth as a real server, asked as Envoy asks."""

import asyncio
import contextlib
import json
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from google.protobuf import timestamp_pb2
from weir.registry.v1 import registry_pb2

from libs import apikeys
from libs.clock import SystemClock
from libs.config import TlsFiles
from libs.pki import ensure_ca, issue
from libs.registry import MemoryStore, Put
from libs.registry.keys import encode, key_of
from libs.routing import rules_of
from libs.rpc import make_channel
from libs.service import serve
from services.edge_auth.app import EdgeAuthService, build
from services.edge_auth.config import Issuer, Settings

PEPPER = b"0123456789abcdef0123456789abcdef"
CHAT = "/v1/chat/completions"


class Edge:
    """A running edge-auth, its registry, and a client."""

    def __init__(self, service: EdgeAuthService, store: MemoryStore, channel: grpc.aio.Channel) -> None:
        self.service = service
        self.store = store
        self.stub = external_auth_pb2_grpc.AuthorizationStub(channel)

    async def put(self, *messages: Any) -> None:
        result = await self.store.txn(puts=[Put(key_of(message), encode(message)) for message in messages])
        await self.service._view.wait_until(lambda snapshot: snapshot.revision >= result.revision)

    async def new_key(self, *scopes: str, tenant: str = "acme", **fields: Any) -> apikeys.ParsedKey:
        key = apikeys.make(secrets.token_bytes)
        await self.put(
            registry_pb2.ApiKey(
                id=key.id, tenant=tenant, hash=apikeys.hash_key(key, PEPPER), scopes=scopes or ["inference"], **fields
            )
        )
        return key

    async def check(self, path: str = CHAT, **headers: str) -> external_auth_pb2.CheckResponse:
        request = external_auth_pb2.CheckRequest()
        http = request.attributes.request.http
        http.method, http.path = "POST", path
        http.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
        return await self.stub.Check(request, timeout=10)

    async def with_key(self, key: apikeys.ParsedKey | str, path: str = CHAT) -> str:
        """The outcome: "ok" or the error's code."""
        text = key if isinstance(key, str) else key.text
        return outcome(await self.check(path, authorization=f"Bearer {text}"))


def outcome(response: external_auth_pb2.CheckResponse) -> str:
    if response.HasField("ok_response"):
        return "ok"
    return str(json.loads(response.denied_response.body)["error"]["code"])


def sent(response: external_auth_pb2.CheckResponse) -> dict[str, str]:
    return {option.header.key: option.header.value for option in response.ok_response.headers}


@contextlib.asynccontextmanager
async def started(tmp_path: Path, *, client_tls: TlsFiles | None = None, **settings: Any) -> AsyncIterator[Edge]:
    pepper = tmp_path / "pepper"
    pepper.write_bytes(PEPPER + b"\n")
    configured = Settings(
        service="edge-auth", instance="edge-auth-0", pepper_file=str(pepper), **({"audit_target": ""} | settings)
    )
    store = MemoryStore()
    tenant = registry_pb2.Tenant(id="acme", plan=registry_pb2.PLAN_PAID, jwt_issuer="https://login.example")
    await store.txn(puts=[Put(key_of(tenant), encode(tenant))])
    service = await build(configured, store=store)
    async with serve(service, configured) as running:
        await running.ready.wait()
        name = "edge-auth.weir.internal" if client_tls else None
        async with make_channel(f"127.0.0.1:{running.port}", tls=client_tls, server_name=name) as channel:
            yield Edge(service, store, channel)


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with started(tmp_path) as running:
        yield running


async def test_a_good_key_becomes_trusted_headers(edge: Edge) -> None:
    key = await edge.new_key("inference", "models.read")
    response = await edge.check(authorization=f"Bearer {key.text}", content_length="4000", x_weir_tenant="forged")
    assert sent(response) == {
        "x-weir-tenant": "acme",
        "x-weir-plan": "paid",
        "x-weir-scopes": "inference models.read",
        "x-weir-key-id": key.id,
        "x-weir-ask": "acme",
        "x-weir-estimated-tokens": "1000",
    }
    assert "authorization" in response.ok_response.headers_to_remove
    assert dict(response.dynamic_metadata) == {
        "tenant": "acme",
        "plan": "paid",
        "scopes": "inference models.read",
        "key_id": key.id,
        "rev": edge.service._view.revision,
        "ttl": 60_000,
        "rules": rules_of({}),
    }
    assert key.text not in str(response)
    for header in ("x_api_key", "api_key"):
        assert outcome(await edge.check(**{header: key.text})) == "ok"


async def test_scopes_by_path(edge: Edge) -> None:
    key = await edge.new_key("inference")
    assert await edge.with_key(key, "/v1/models") == "insufficient_scope"
    assert await edge.with_key(key, "/admin/v1/keys") == "insufficient_scope"
    assert await edge.with_key(key, "/weir.registry.v1.RegistryService/SetLimits") == "insufficient_scope"
    assert await edge.with_key(key, "/nowhere") == "unknown_url"
    assert await edge.with_key(key) == "ok"
    assert await edge.with_key(await edge.new_key("admin"), "/admin/v1/keys") == "ok"


async def test_roles_of_the_registry_open_its_paths_and_no_others(edge: Edge) -> None:
    key, other = await edge.new_key("inference"), await edge.new_key("inference")
    for principal in (f"key:{key.id}", "tenant:acme"):
        await edge.put(registry_pb2.RoleBinding(principal=principal, roles=["viewer"]))
    response = await edge.check("/admin/v1/keys", authorization=f"Bearer {key.text}")
    assert sent(response)["x-weir-scopes"] == "inference"
    assert await edge.with_key(key, "/weir.registry.v1.RegistryService/SetLimits") == "ok"
    assert await edge.with_key(key, "/v1/models") == "insufficient_scope"
    # What is the tenant's is not its keys'.
    assert await edge.with_key(other, "/admin/v1/keys") == "insufficient_scope"


async def test_revocation_and_expiry_hold_while_the_key_is_in_use(edge: Edge) -> None:
    key = await edge.new_key()
    assert await edge.with_key(key) == "ok"
    stored = registry_pb2.ApiKey(
        id=key.id, tenant="acme", hash=apikeys.hash_key(key, PEPPER), revoked_at=timestamp_pb2.Timestamp(seconds=1)
    )
    await edge.put(stored)
    assert await edge.with_key(key) == "revoked_api_key"
    gone = int(SystemClock().time()) - 1
    assert (
        await edge.with_key(await edge.new_key(expires_at=timestamp_pb2.Timestamp(seconds=gone))) == "expired_api_key"
    )


async def test_unknown_and_wrong_and_missing(edge: Edge) -> None:
    key = await edge.new_key()
    unknown = await edge.check(authorization=f"Bearer {apikeys.make(secrets.token_bytes).text}")
    wrong = await edge.check(authorization=f"Bearer wk_{key.id}_{'A' * 32}")
    assert unknown == wrong
    assert outcome(wrong) == "invalid_api_key"
    assert wrong.denied_response.status.code == 401
    assert outcome(await edge.check()) == "missing_api_key"
    assert outcome(await edge.check(authorization="Basic abc")) == "missing_api_key"


async def test_a_tenant_without_plan_or_gone_is_refused(edge: Edge) -> None:
    key = await edge.new_key(tenant="ghost")
    assert await edge.with_key(key) == "account_inactive"
    await edge.put(registry_pb2.Tenant(id="ghost", plan=registry_pb2.PLAN_FREE))
    response = await edge.check(authorization=f"Bearer {key.text}")
    assert sent(response)["x-weir-plan"] == "free"


async def test_grpc_callers_get_a_sentence(edge: Edge) -> None:
    path = "/weir.inference.v1.InferenceService/Generate"
    refused = await edge.check(path, authorization="Bearer wk_x", content_type="application/grpc+proto")
    assert refused.denied_response.body == "Incorrect API key provided."
    assert refused.status.code == grpc.StatusCode.UNAUTHENTICATED.value[0]


async def test_credentials_never_reach_the_logs(edge: Edge, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        key = await edge.new_key()
        await edge.with_key(key)
        await edge.with_key(key.text + "x")
    assert key.text.rpartition("_")[2] not in caplog.text


class _Jwks(BaseHTTPRequestHandler):
    content = b'{"keys": []}'

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(type(self).content)

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def issuer_url() -> Iterator[str]:
    """An issuer's JWKS endpoint on loopback; its keys are `_Jwks.content`."""
    server = HTTPServer(("127.0.0.1", 0), _Jwks)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/jwks"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_tokens_of_an_issuer_and_the_rotation_of_its_keys(tmp_path: Path, issuer_url: str) -> None:
    issuer = Issuer(issuer="https://login.example", audience="weir", jwks_url=issuer_url)
    private = ec.generate_private_key(ec.SECP256R1())

    def token(key_id: str) -> str:
        now = SystemClock().time()
        claims = {"iss": issuer.issuer, "aud": "weir", "iat": now, "exp": now + 60}
        claims |= {"sub": "jane", "scope": "inference admin"}
        return jwt.encode(claims, private, algorithm="ES256", headers={"kid": key_id, "typ": "at+jwt"})

    _Jwks.content = b'{"keys": []}'
    async with started(tmp_path, issuers=(issuer,), jwks_min_interval_seconds=0.0) as edge:
        assert await edge.with_key(token("k1")) == "invalid_api_key"
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))
        _Jwks.content = json.dumps({"keys": [public | {"kid": "k1"}]}).encode()
        changed = edge.service._keys
        async with _until(lambda: changed.find(issuer.issuer, "k1") is not None):
            response = await edge.check(authorization=f"Bearer {token('k1')}")
        assert sent(response)["x-weir-tenant"] == "acme"
        assert sent(response)["x-weir-scopes"] == "inference"
        assert sent(response)["x-weir-key-id"].startswith("jwt-")


@contextlib.asynccontextmanager
async def _until(condition: Any) -> AsyncIterator[None]:

    async with asyncio.timeout(20):
        while not condition():
            await asyncio.to_thread(lambda: None)
        yield


async def test_only_envoy_may_ask(tmp_path: Path) -> None:
    ensure_ca(tmp_path / "pki")

    def files(service: str) -> TlsFiles:
        issued = issue(tmp_path / "pki", service)
        return TlsFiles(ca=str(issued.ca), cert=str(issued.cert), key=str(issued.key))

    for caller, code in (("envoy", grpc.StatusCode.OK), ("gateway", grpc.StatusCode.PERMISSION_DENIED)):
        async with started(tmp_path, tls=files("edge-auth"), client_tls=files(caller)) as edge:
            try:
                response = await edge.check()
                assert outcome(response) == "missing_api_key"
                got = grpc.StatusCode.OK
            except grpc.aio.AioRpcError as error:
                got = error.code()
            assert got is code


async def test_the_last_snapshot_outlives_the_registry(edge: Edge) -> None:
    key = await edge.new_key()
    edge.store.set_available(False)
    assert await edge.with_key(key) == "ok"


async def test_a_short_pepper_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_bytes(b"short")
    with pytest.raises(ValueError, match="pepper"):
        await build(Settings(service="edge-auth", instance="e", pepper_file=str(tmp_path / "pepper")))
