"""Bad input gets the right status and an envelope that names the field or the limit."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import httpx2 as httpx
import openai
import pytest
import zstandard
from openai import OpenAI

from tests.e2e.conftest import client_for
from tests.support.mesh import Mesh, eventually

ASK = [{"role": "user", "content": "Hello"}]
PATH = "/v1/chat/completions"
MIB = 1 << 20


@pytest.fixture
def http(mesh: Mesh) -> Any:
    headers = {"authorization": f"Bearer {mesh.env['WEIR_KEY_ACME']}", "content-type": "application/json"}
    with httpx.Client(base_url=mesh.env["WEIR_EDGE_URL"], headers=headers, timeout=30) as client:
        yield client


def envelope(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    return error


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "weir-fast", "messages": ASK, "max_tokens": 4, **fields}


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "no-such-model"}, 404, "model"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": -5}, 400, "max_tokens"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"max_tokens": 100_000}, 400, "max_tokens"),
        ({"max_completion_tokens": 0}, 400, "max_completion_tokens"),
        ({"temperature": 9}, 400, "temperature"),
        ({"n": 0}, 400, "n"),
        ({"messages": []}, 400, "messages"),
        ({"messages": "hello"}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "river " * 3000}]}, 400, "context_length"),
    ],
)
def test_bad_fields(http: Any, fields: dict[str, Any], status: int, param: str) -> None:
    error = envelope(http.post(PATH, json=body(**fields)), status)
    assert error["param"].startswith(param)


@pytest.mark.parametrize("stream", [True, False])
def test_errors_before_the_stream_have_their_status(http: Any, stream: bool) -> None:
    envelope(http.post(PATH, json=body(model="no-such-model", stream=stream)), 404)


@pytest.mark.parametrize("raw", [b"{", b"", b"[1,2]", b"\xff\xfe\x00", b'{"model": "weir-fast", "messages": "\xff"}'])
def test_bodies_that_are_not_json(http: Any, raw: bytes) -> None:
    envelope(http.post(PATH, content=raw), 400)


def test_unknown_fields_are_tolerated(http: Any) -> None:
    response = http.post(PATH, json=body(something_new={"a": 1}, store=False))
    assert response.status_code == 200, response.text


def test_an_oversize_body(http: Any) -> None:
    big = json.dumps(body(messages=[{"role": "user", "content": "x" * (5 * 2**20)}]))
    envelope(http.post(PATH, content=big), 413)


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("br", brotli.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
    ],
)
def test_compressed_bodies(http: Any, coding: str, pack: Callable[[bytes], bytes]) -> None:
    headers = {"content-encoding": coding}
    answer = http.post(PATH, content=pack(json.dumps(body()).encode()), headers=headers)
    assert answer.status_code == 200, answer.text
    large = json.dumps(body(messages=[{"role": "user", "content": "x" * 2 * MIB}])).encode()
    error = envelope(http.post(PATH, content=pack(large), headers=headers), 413)
    assert error["code"] == "payload_too_large"
    assert envelope(http.post(PATH, content=b"{}", headers=headers), 400)["param"] == "content-encoding"


@pytest.mark.parametrize("path", [PATH, "/v1/completions", "/v1/embeddings"])
def test_a_gibibyte_in_a_body_of_the_largest_size(http: Any, path: str) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(MIB)) for _ in range(1024)) + packer.flush()
    assert 0.9 * MIB < len(bomb) < MIB
    error = envelope(http.post(path, content=bomb, headers={"content-encoding": "gzip"}), 413)
    assert error["code"] == "payload_too_large"


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"content-encoding": "gzip, gzip"}, "content-encoding"),
        ({"content-encoding": "compress"}, "content-encoding"),
        ({"content-type": "text/plain"}, "content-type"),
        ({"content-type": "application/json; charset=utf-16"}, "content-type"),
    ],
)
def test_media_that_is_not_read_here(http: Any, headers: dict[str, str], param: str) -> None:
    error = envelope(http.post(PATH, content=json.dumps(body()), headers=headers), 415)
    assert (error["code"], error["param"]) == ("unsupported_media_type", param)


def test_a_byte_order_mark(http: Any) -> None:
    assert http.post(PATH, content=b"\xef\xbb\xbf" + json.dumps(body()).encode()).status_code == 200


def test_an_unknown_path(http: Any) -> None:
    envelope(http.get("/v3/nothing"), 404)
    assert http.get("/v2/nothing").json() == {
        "error": "/v2/nothing is not supported here"
    }  # as Triton's clients read it


def test_a_bad_key_and_no_key(mesh: Mesh) -> None:
    with client_for(mesh, "wk_nobody_nothing") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.code == "invalid_api_key"
    assert httpx.get(f"{mesh.env['WEIR_EDGE_URL']}/v1/models", timeout=30).status_code == 401


def new_key(mesh: Mesh, *arguments: str) -> tuple[str, str]:
    created = mesh.weir_json("keys", "create", "acme", *arguments)
    return created["metadata"]["name"], created["secret"]


def ends_with(client: OpenAI, error: type[Exception]) -> Callable[[], bool]:
    def refused() -> bool:
        try:
            client.models.list()
        except error:
            return True
        except openai.APIStatusError:
            return False
        return False

    return refused


def works(client: OpenAI) -> Callable[[], bool]:
    def accepted() -> bool:
        try:
            client.models.list()
        except openai.APIStatusError:
            return False
        return True

    return accepted


def test_a_revoked_key(mesh: Mesh) -> None:
    key_id, secret = new_key(mesh, "--scope", "models.read")
    with client_for(mesh, secret) as client:
        eventually(works(client), what="the new key working")
        mesh.weir("keys", "revoke", key_id)
        eventually(ends_with(client, openai.AuthenticationError), what="the key being refused")


def test_an_expired_key(mesh: Mesh) -> None:
    _, secret = new_key(mesh, "--scope", "models.read", "--ttl", "1s")
    with client_for(mesh, secret) as client:
        eventually(ends_with(client, openai.AuthenticationError), what="the key expiring")


def test_a_missing_scope(mesh: Mesh) -> None:
    _, secret = new_key(mesh, "--scope", "models.read")
    with client_for(mesh, secret) as client:
        eventually(works(client), what="the new key working")
        with pytest.raises(openai.PermissionDeniedError):
            client.chat.completions.create(model="weir-fast", messages=ASK)


def test_forged_identity_headers_change_nothing(mesh: Mesh) -> None:
    forged = {"x-weir-tenant": "acme", "x-weir-scopes": "admin inference", "x-weir-plan": "paid", "x-weir-key-id": "k"}
    url = mesh.env["WEIR_EDGE_URL"]
    assert httpx.post(f"{url}{PATH}", json=body(), headers=forged, timeout=30).status_code == 401
    # With a key of another tenant, the audit log shows that tenant and not the forged one.
    headers = {**forged, "x-weir-tenant": "globex", "authorization": f"Bearer {mesh.env['WEIR_KEY_ACME']}"}
    answered = httpx.post(f"{url}{PATH}", json=body(), headers=headers, timeout=30)
    assert answered.status_code == 200
    request_id = answered.headers["x-request-id"]

    def recorded() -> str | None:
        records = mesh.weir_json("audit", "tail", "--limit", "50")["records"]
        found = [
            r["record"]["request"] for r in records if r["record"].get("request", {}).get("request_id") == request_id
        ]
        return found[0]["tenant"] if found else None

    assert eventually(recorded, what="the audit record") == "acme"


def test_a_tiny_tenant_meets_its_limits(tiny: OpenAI) -> None:
    def limited() -> openai.RateLimitError | None:
        try:
            tiny.chat.completions.create(model="weir-fast", messages=ASK, max_tokens=2)
        except openai.RateLimitError as error:
            return error
        return None

    error = eventually(limited, what="the rate limit")
    assert error.code in ("quota_requests", "quota_tokens")
    assert int(error.response.headers["retry-after"]) >= 1
    assert "limit" in error.message.lower()
