"""Small controllable services behind a real Envoy: gateway, edge-auth, ratelimit and registry on ports of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.api import httpbody_pb2
from google.rpc import code_pb2, status_pb2
from weir.inference.v1 import inference_pb2, inference_pb2_grpc
from weir.openai.v1 import openai_pb2_grpc
from weir.registry.v1 import registry_pb2, registry_pb2_grpc

from libs.registry import Store
from libs.rpc.server import bind
from tests.support.certificates import tls_of
from tests.support.edge import drop_endpoint, put_endpoint

Chat = Callable[[httpbody_pb2.HttpBody, grpc.aio.ServicerContext], AsyncIterator[httpbody_pb2.HttpBody]]
Metadata = dict[str, str]


def json_body(data: str) -> httpbody_pb2.HttpBody:
    """A whole JSON answer."""
    return httpbody_pb2.HttpBody(content_type="application/json", data=data.encode())


def event(data: str) -> httpbody_pb2.HttpBody:
    """One server-sent event."""
    return httpbody_pb2.HttpBody(content_type="text/event-stream", data=f"data: {data}\n\n".encode())


async def echo(
    request: httpbody_pb2.HttpBody, context: grpc.aio.ServicerContext
) -> AsyncIterator[httpbody_pb2.HttpBody]:
    """Answers with the size of the body."""
    yield json_body(f'{{"bytes":{len(request.data)}}}')


class FakeGateway(openai_pb2_grpc.OpenAIServiceServicer, inference_pb2_grpc.InferenceServiceServicer):
    """`chat` is what answers chat completions; `seen` holds the metadata of every call."""

    def __init__(self) -> None:
        self.chat: Chat = echo
        self.seen: list[Metadata] = []
        self.deadlines: list[float | None] = []

    def _note(self, context: grpc.aio.ServicerContext) -> None:
        self.seen.append({key: str(value) for key, value in context.invocation_metadata() or ()})
        self.deadlines.append(context.time_remaining())

    async def CreateChatCompletion(  # noqa: N802
        self, request: httpbody_pb2.HttpBody, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[httpbody_pb2.HttpBody]:
        self._note(context)
        async for part in self.chat(request, context):
            yield part

    async def CreateEmbedding(  # noqa: N802
        self, request: httpbody_pb2.HttpBody, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[httpbody_pb2.HttpBody]:
        self._note(context)
        yield json_body("{}")

    async def GetModel(  # noqa: N802
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[httpbody_pb2.HttpBody]:
        self._note(context)
        yield json_body(f'{{"id":"{request.id}"}}')

    async def GetStatus(  # noqa: N802
        self, request: Any, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[httpbody_pb2.HttpBody]:
        self._note(context)
        yield json_body('{"object":"status"}')

    async def CountTokens(  # noqa: N802
        self, request: inference_pb2.CountTokensRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.CountTokensResponse:
        self._note(context)
        await context.send_initial_metadata([("x-weir-http-status", "429")])
        return inference_pb2.CountTokensResponse()

    async def Generate(  # noqa: N802
        self, request_iterator: AsyncIterator[Any], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        self._note(context)
        async for _ in request_iterator:
            yield inference_pb2.GenerateResponse()


class FakeAuth(external_auth_pb2_grpc.AuthorizationServicer):
    """Knows one key, "good", and what else is in `good`; `tokens` is the estimate that it hands on."""

    def __init__(self) -> None:
        self.tokens = "12"
        self.seen: list[dict[str, str]] = []
        self.hold: asyncio.Event | None = None
        self.good = {"Bearer good"}
        self.learned: dict[str, object] | None = None
        """What the edge is told to remember verdicts by: `rev`, `ttl`; None: nothing."""

    async def Check(  # noqa: N802
        self, request: external_auth_pb2.CheckRequest, context: grpc.aio.ServicerContext
    ) -> external_auth_pb2.CheckResponse:
        headers = dict(request.attributes.request.http.headers)
        self.seen.append(headers)
        if self.hold is not None:
            await self.hold.wait()
        response = external_auth_pb2.CheckResponse()
        if headers.get("authorization") not in self.good:
            response.status.CopyFrom(status_pb2.Status(code=code_pb2.UNAUTHENTICATED))
            response.denied_response.status.code = 401
            grpc_call = headers.get("content-type", "").startswith("application/grpc")
            response.denied_response.body = "no such key" if grpc_call else '{"error":{"code":"invalid_api_key"}}'
            response.denied_response.headers.add(header=_pair("content-type", "application/json"))
            if self.learned is not None:
                refused = {"refused": True, "status": 401, "body": response.denied_response.body}
                kind = {} if grpc_call else {"kind": "application/json"}
                response.dynamic_metadata.update({**refused, **kind, "challenge": "Bearer", **self.learned})
            return response
        given = {"x-weir-tenant": "acme", "x-weir-plan": "paid", "x-weir-scopes": "inference", "x-weir-key-id": "k1"}
        if self.learned is not None:
            told = {"tenant": "acme", "plan": "paid", "scopes": "inference", "key_id": "k1", **self.learned}
            response.dynamic_metadata.update(told)
        given["x-weir-ask"] = "acme"
        if self.tokens:
            given["x-weir-estimated-tokens"] = self.tokens
        for name, value in given.items():
            response.ok_response.headers.add(
                header=_pair(name, value), append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
            )
        return response


class FakeRateLimit(rls_pb2_grpc.RateLimitServiceServicer):
    """Allows everything until `refuse` is set."""

    def __init__(self) -> None:
        self.refuse = ""
        self.reason = "QUOTA_REQUESTS"
        self.free: int | None = None
        """Requests that may pass without asking; None: nothing is said of it."""
        self.seen: list[rls_pb2.RateLimitRequest] = []

    async def ShouldRateLimit(  # noqa: N802
        self, request: rls_pb2.RateLimitRequest, context: grpc.aio.ServicerContext
    ) -> rls_pb2.RateLimitResponse:
        self.seen.append(request)
        response = rls_pb2.RateLimitResponse(overall_code=rls_pb2.RateLimitResponse.OK)
        if self.refuse:
            response.overall_code = rls_pb2.RateLimitResponse.OVER_LIMIT
            response.raw_body = self.refuse.encode()
            response.response_headers_to_add.append(_pair("retry-after", "7"))
            response.response_headers_to_add.append(_pair("x-weir-reason", self.reason))
            response.response_headers_to_add.append(_pair("x-weir-code", self.reason.lower()))
        if self.free is not None:
            response.dynamic_metadata.update({"free": 0 if self.refuse else self.free, "ms": 1000})
        response.response_headers_to_add.append(_pair("x-ratelimit-limit-requests", "60"))
        return response


class FakeRegistry(registry_pb2_grpc.RegistryServiceServicer):
    """Echoes what it is given."""

    async def Apply(  # noqa: N802
        self, request: registry_pb2.ApplyRequest, context: grpc.aio.ServicerContext
    ) -> registry_pb2.ApplyResponse:
        kinds = {"alias": "Alias"}
        return registry_pb2.ApplyResponse(
            results=[
                registry_pb2.Applied(
                    resource=registry_pb2.ResourceName(
                        kind=kinds[each.WhichOneof("spec") or ""], name=each.metadata.name
                    ),
                    outcome=registry_pb2.OUTCOME_CREATED,
                )
                for each in request.resources
            ]
        )

    async def Get(  # noqa: N802
        self, request: registry_pb2.GetRequest, context: grpc.aio.ServicerContext
    ) -> registry_pb2.GetResponse:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "scope admin is missing")
        raise AssertionError("abort raises")


class Upstreams:
    """The four services, each with its own certificate and port."""

    def __init__(self, store: Store, pki: Path | None) -> None:
        self.store = store
        self.gateway = FakeGateway()
        self.auth = FakeAuth()
        self.ratelimit = FakeRateLimit()
        self.registry = FakeRegistry()
        self.ports: dict[str, int] = {}
        self._pki = pki
        self._servers: dict[str, grpc.aio.Server] = {}

    async def start(self, *, without: Collection[str] = ()) -> None:
        """Serves and registers all four, or all but some."""
        adders: dict[str, Callable[[grpc.aio.Server], object]] = {
            "gateway": lambda server: (
                openai_pb2_grpc.add_OpenAIServiceServicer_to_server(self.gateway, server),
                inference_pb2_grpc.add_InferenceServiceServicer_to_server(self.gateway, server),
            ),
            "edge-auth": lambda server: external_auth_pb2_grpc.add_AuthorizationServicer_to_server(self.auth, server),
            "ratelimit": lambda server: rls_pb2_grpc.add_RateLimitServiceServicer_to_server(self.ratelimit, server),
            "registry": lambda server: registry_pb2_grpc.add_RegistryServiceServicer_to_server(self.registry, server),
        }
        for service, add in adders.items():
            if service in without:
                continue
            server = grpc.aio.server()
            add(server)
            tls = tls_of(self._pki, service) if self._pki else None
            self.ports[service] = bind(server, "127.0.0.1:0", tls=tls)
            await server.start()
            self._servers[service] = server
            await put_endpoint(self.store, service, f"{service}-0", self.ports[service])

    @contextlib.asynccontextmanager
    async def without(self, service: str, arrived: Callable[[bool], Awaitable[None]]) -> AsyncIterator[None]:
        """The service is unregistered while the block runs; `arrived(present)` waits until the edge knows."""
        await drop_endpoint(self.store, service, f"{service}-0")
        await arrived(False)
        try:
            yield
        finally:
            await put_endpoint(self.store, service, f"{service}-0", self.ports[service])
            await arrived(True)

    async def stop_one(self, service: str) -> None:
        """The service dies, and is still registered."""
        await self._servers[service].stop(grace=None)

    async def stop(self) -> None:
        """Ends all servers."""
        for server in self._servers.values():
            await server.stop(grace=None)


def _pair(key: str, value: str) -> base_pb2.HeaderValue:
    return base_pb2.HeaderValue(key=key, value=value)
