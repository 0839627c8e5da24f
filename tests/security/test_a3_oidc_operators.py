"""A3: people with tokens at the admin API, by a real Envoy, edge-auth and registry; a tenant's token is no operator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import ec
from weir.registry.v1 import registry_pb2 as pb

from libs import apikeys
from libs.registry import MemoryStore
from libs.service import serve
from services.edge_auth.app import build as build_edge_auth
from services.edge_auth.config import Issuer
from services.edge_auth.config import Settings as EdgeAuthSettings
from tests.support.edge import EnvoyProcess, control_plane, edge_config, put_endpoint, tls_of
from tests.support.registry_service import PEPPER, put, running_of, settings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]
PEOPLE, TENANTS = "https://login.corp.example", "https://login.acme.example"
KEYS = {PEOPLE: ec.generate_private_key(ec.SECP256R1()), TENANTS: ec.generate_private_key(ec.SECP256R1())}
KEY = apikeys.make(lambda size: b"k" * size)
WHOAMI, LIST = "/admin/v1/whoami", "/admin/v1/resources?kinds=Tenant"


def token(issuer: str, *, key: Any = None, typ: str = "at+jwt", **claims: Any) -> str:
    now = int(time.time())
    audience = "weir-admin" if issuer == PEOPLE else "weir"
    given = {"iss": issuer, "aud": audience, "iat": now, "exp": now + 300, "sub": "u-1"} | claims
    return jwt.encode(given, key or KEYS[issuer], algorithm="ES256", headers={"kid": "k", "typ": typ})


def person(email: str, **claims: Any) -> str:
    return token(PEOPLE, **({"email": email, "email_verified": True} | claims))


class Admin:
    """The admin API as the edge shows it."""

    def __init__(self, http: httpx2.AsyncClient, store: MemoryStore, *, public: str) -> None:
        self._http = http
        self.store = store
        self.public = public
        """The URL of the listener for tenants."""

    async def get(self, path: str, credential: str = "", **headers: str) -> httpx2.Response:
        if credential:
            headers["authorization"] = f"Bearer {credential}"
        return await self._http.get(path, headers=headers)

    async def post(self, path: str, credential: str, body: Any) -> httpx2.Response:
        return await self._http.post(path, json=body, headers={"authorization": f"Bearer {credential}"})

    async def becomes(self, path: str, status: int, *, email: str) -> None:
        """Returns once a person's call is answered so; 20 s at most. Envoy cannot be awaited."""
        async with asyncio.timeout(20):
            while (await self.get(path, person(email))).status_code != status:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Admin]:
    folder = tmp_path_factory.mktemp("oidc")
    pki, store = folder / "pki", MemoryStore()
    pseudonym = apikeys.pseudonym(TENANTS, "u-1", PEPPER.encode())
    await put(
        store,
        pb.Tenant(id="acme", plan=pb.PLAN_PAID, jwt_issuer=TENANTS),
        # A tenant's settings may say what they like: no tenant has this issuer's people.
        pb.Tenant(id="evil", plan=pb.PLAN_PAID, jwt_issuer=PEOPLE),
        pb.ApiKey(id=KEY.id, tenant="acme", hash=apikeys.hash_key(KEY, PEPPER.encode()), scopes=["inference"]),
        pb.RoleBinding(principal="oidc:corp/jane@corp.example", roles=["owner"]),
        pb.RoleBinding(principal="oidc:corp/joe@corp.example", roles=["viewer"]),
        # What can be written past the registry alone, and what it took before: tokens of tenants are nobody.
        *(pb.RoleBinding(principal=each, roles=["owner"]) for each in ("tenant:acme", "tenant:", f"key:{pseudonym}")),
        *(pb.RoleBinding(principal=each, roles=["owner"]) for each in ("key:", pseudonym, "oidc:corp/")),
    )
    for name in ("edge-auth", "registry"):
        tls_of(pki, name)
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        running, _ = await enter(running_of(settings(folder, tls=tls_of(pki, "registry")), store))
        await put_endpoint(store, "registry", "registry-0", running.port)
        config = EdgeAuthSettings(
            service="edge-auth",
            instance="edge-auth-0",
            pepper_file=str(folder / "pepper"),
            tls=tls_of(pki, "edge-auth"),
            issuers=tuple(_issuer(folder, each) for each in (PEOPLE, TENANTS)),
        )
        auth = await build_edge_auth(config, store=store)
        serving = await enter(serve(auth, config))
        await serving.ready.wait()
        await put_endpoint(store, "edge-auth", "edge-auth-0", serving.port)
        plane = await enter(control_plane(store=store, tls=tls_of(pki, "controlplane"), edge=edge_config(pki)))
        envoy = EnvoyProcess(folder / "envoy", xds=plane.address, tls=tls_of(pki, "envoy"))
        stack.push_async_callback(envoy.stop)
        await envoy.start(("edge-admin", "edge-http"))
        ports = await envoy.listeners()
        trusted = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        http = httpx2.AsyncClient(
            base_url=f"https://localhost:{ports['edge-admin']}", verify=trusted, trust_env=False, timeout=10
        )
        made = Admin(await enter(http), store, public=f"http://127.0.0.1:{ports['edge-http']}")
        await made.becomes(WHOAMI, 200, email="jane@corp.example")
        yield made


def _issuer(folder: Path, name: str) -> Issuer:
    path = folder / f"{name.split('.')[1]}.jwks"
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEYS[name].public_key()))
    path.write_text(json.dumps({"keys": [public | {"kid": "k"}]}))
    if name == PEOPLE:
        return Issuer(issuer=name, audience="weir-admin", jwks_file=str(path), operators="corp")
    return Issuer(issuer=name, audience="weir", jwks_file=str(path), allowed_scopes=("inference", "models.read"))


async def test_a3_a_person_with_a_token_is_known_by_name(admin: Admin) -> None:
    answer = (await admin.get(WHOAMI, person("jane@corp.example"))).json()
    assert (answer["principal"], answer["known_by"], answer["roles"]) == (
        "oidc:corp/jane@corp.example",
        "token",
        ["owner"],
    )
    body = {"resources": [{"metadata": {"name": "globex"}, "tenant": {"plan": "PLAN_PAID"}}], "change": {"reason": "r"}}
    made = await admin.post("/admin/v1/resources:apply", person("jane@corp.example"), body)
    assert made.status_code == 200, made.text
    [newest, *_] = (await admin.get("/admin/v1/history", person("joe@corp.example"))).json()["entries"]
    assert newest["actor"] == "oidc:corp/jane@corp.example"
    refused = await admin.post("/admin/v1/resources:apply", person("joe@corp.example"), body)
    assert refused.status_code == 403
    assert "viewer" in refused.text


@pytest.mark.parametrize(
    ("credential", "status"),
    [
        (lambda: person("stranger@corp.example"), 403),
        (lambda: person("jane@corp.example", email_verified=False), 401),
        (lambda: person("jane@corp.example", aud="weir"), 401),
        (lambda: person("jane@corp.example", key=KEYS[TENANTS]), 401),
        (lambda: person("jane@corp.example", typ="JWT"), 401),
        (lambda: person("jane@corp.example", exp=int(time.time()) - 60), 401),
        (lambda: person("jane@corp.example", exp=int(time.time()) + 10 * 86_400), 401),
        (lambda: person("jane@corp.example", nbf=int(time.time()) + 600), 401),
        (lambda: person("../corp/jane@corp.example"), 401),
        # A tenant's token says what it likes.
        (lambda: token(TENANTS, scope="inference"), 403),
        (lambda: token(TENANTS, scope="admin", email="jane@corp.example", email_verified=True, roles=["owner"]), 403),
        (lambda: token(TENANTS, sub="oidc:corp/jane@corp.example"), 403),
        (lambda: KEY.text, 403),
        (str, 401),
    ],
)
async def test_a3_nobody_else_is(admin: Admin, credential: Callable[[], str], status: int) -> None:
    for path in (WHOAMI, LIST):
        answer = await admin.get(path, credential())
        assert answer.status_code == status, answer.text
        assert "acme" not in answer.text


async def test_a3_forged_identity_headers_count_for_nothing(admin: Admin) -> None:
    forged = {
        "x-weir-key-id": "oidc:corp/jane@corp.example",
        "X-Weir-Scopes": "admin",
        "x-weir-tenant": "acme",
        "x-weir-operator": "jane",
    }
    for credential in (token(TENANTS, scope="inference"), KEY.text, person("stranger@corp.example")):
        assert (await admin.get(LIST, credential, **forged)).status_code == 403
    assert (await admin.get(LIST, **forged)).status_code == 401
    answer = await admin.get(WHOAMI, person("joe@corp.example"), **forged)
    assert answer.json()["principal"] == "oidc:corp/joe@corp.example"


async def test_a3_people_who_operate_are_nobodys_tenant(admin: Admin) -> None:
    for path in ("/v1/models", "/v1/chat/completions"):
        answer = await admin.get(admin.public + path, person("jane@corp.example", scope="inference models.read"))
        assert answer.status_code == 403, answer.text


async def test_a3_a_revoked_person_is_refused(admin: Admin) -> None:
    body = {"resources": [{"metadata": {"name": "oidc:corp/temp@corp.example"}, "role": {"roles": ["viewer"]}}]}
    made = await admin.post("/admin/v1/resources:apply", person("jane@corp.example"), body)
    assert made.status_code == 200, made.text
    await admin.becomes(LIST, 200, email="temp@corp.example")
    gone = {"resources": [{"kind": "RoleBinding", "name": "oidc:corp/temp@corp.example"}]}
    made = await admin.post("/admin/v1/resources:delete", person("jane@corp.example"), gone)
    assert made.status_code == 200, made.text
    # The registry decides by its own state, whatever edge-auth knows yet.
    assert (await admin.get(LIST, person("temp@corp.example"))).status_code == 403
