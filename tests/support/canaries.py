"""Marked strings through every field of every API, and where they turned up.

Fields come from what decodes them (msgspec structs, proto descriptors), so a new one is covered without being named
here. Every marker names its field, is the same in any case, and survives JSON, URLs and headers.
"""

from __future__ import annotations

import json
import secrets
import ssl
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

import grpc
import httpx2
import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from weir.inference.v1 import inference_pb2 as pb
from weir.inference.v1 import inference_pb2_grpc
from weir.registry.v1 import registry_pb2, registry_pb2_grpc

from services.gateway.openai.bodies import CHAT_BODY, COMPLETION_BODY, EMBEDDING_BODY

TRACE = "00-{}-{}-01"
_KNOWN = {"model": "weir-fast", "role": "user", "type": "text", "max_tokens": 4, "max_completion_tokens": 4}

HEADERS = (
    *("accept", "accept-language", "baggage", "content-disposition", "content-type", "cookie", "expect", "forwarded"),
    *(
        "grpc-timeout",
        "host",
        "idempotency-key",
        "if-none-match",
        "last-event-id",
        "openai-organization",
        "openai-project",
        "origin",
    ),
    *("range", "referer", "te", "tracestate", "user-agent", "via", "x-anything", "x-b3-traceid", "x-client-request-id"),
    *("x-envoy-original-path", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "x-request-id"),
    *("x-stainless-lang", "x-weir-key-id", "x-weir-model", "x-weir-plan", "x-weir-pool", "x-weir-reason"),
    *("x-weir-scopes", "x-weir-session", "x-weir-tenant", "x-weir-user"),
)


@dataclass
class Canaries:
    """The markers that were made, by the field that each was put into."""

    run: str = field(default_factory=lambda: "cnry" + secrets.token_hex(5))
    fields: dict[str, str] = field(default_factory=dict)

    def mark(self, where: str) -> str:
        """A new marker for a field."""
        made = f"{self.run}q{len(self.fields)}z"
        self.fields[made] = where
        return made

    def named(self, found: bytes) -> list[str]:
        """The fields whose markers stand in these bytes."""
        low = found.lower()
        if self.run.encode() not in low:
            return []
        return [where for marker, where in self.fields.items() if marker.encode() in low]


def bodies(kind: type, path: str, canaries: Canaries) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what, body): for each field of a request one body that has a marker there, as its type allows and as it does
    not, and one with a field that nobody knows."""
    for each in msgspec.structs.fields(kind):
        here = f"{path}.{each.encode_name}"
        for what, value in _values(each.type, here, canaries):
            yield f"{here} ({what})", {**_least(kind), each.encode_name: value}
        yield f"{here} (wrong)", {**_least(kind), each.encode_name: {canaries.mark(here): canaries.mark(here)}}
    yield f"{path} (unknown)", {**_least(kind), canaries.mark(path): canaries.mark(path)}


def _least(kind: type) -> dict[str, Any]:
    """A request that is served."""
    made: dict[str, Any] = {"model": "weir-fast"}
    names = {each.encode_name for each in msgspec.structs.fields(kind)}
    if "messages" in names:
        made["messages"] = [{"role": "user", "content": "The river"}]
    more = {"prompt": "The river", "input": "The river", "max_tokens": 4}
    return made | {name: value for name, value in more.items() if name in names}


def _values(kind: Any, path: str, canaries: Canaries) -> Iterator[tuple[str, Any]]:
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        for each in typing.get_args(kind):
            yield from _values(each, path, canaries)
    elif kind is str:
        yield "text", canaries.mark(path)
    elif origin is list:
        for what, value in _values(typing.get_args(kind)[0], f"{path}[]", canaries):
            yield f"list of {what}", [value]
    elif origin is dict:
        yield "dict", {canaries.mark(f"{path} key"): 1}
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for each in msgspec.structs.fields(kind):
            others = {
                other.encode_name: _KNOWN.get(other.encode_name, "x")
                for other in msgspec.structs.fields(kind)
                if other.required and other is not each
            }
            for what, value in _values(each.type, f"{path}.{each.encode_name}", canaries):
                yield what, {**others, each.encode_name: value}
    elif kind in (Any, msgspec.Raw):
        yield "anything", {"type": "object", "properties": {canaries.mark(path): {"enum": [canaries.mark(path)]}}}


def filled(message: Message, canaries: Canaries, path: str = "", *, only: str = "") -> Message:
    """The message with a marker in every text of it; `only` chooses one of the ways of a oneof."""
    descriptor: Descriptor = message.DESCRIPTOR
    for each in descriptor.fields:
        if each.containing_oneof is not None and only and each.name != only and each.message_type is not None:
            continue
        here = f"{path or descriptor.name}.{each.name}"
        _fill(message, each, here, canaries)
    return message


def _fill(message: Message, each: FieldDescriptor, path: str, canaries: Canaries) -> None:
    value = getattr(message, each.name)
    entry = each.message_type if each.message_type is not None and each.message_type.GetOptions().map_entry else None
    if entry is not None:
        if entry.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING:
            key = canaries.mark(f"{path} key")
            if entry.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
                value[key] = canaries.mark(path)
    elif each.type == FieldDescriptor.TYPE_STRING:
        if each.is_repeated:
            value.append(canaries.mark(path))
        else:
            setattr(message, each.name, canaries.mark(path))
    elif each.type == FieldDescriptor.TYPE_BYTES and not each.is_repeated:
        setattr(message, each.name, canaries.mark(path).encode())
    elif each.message_type is not None and not each.message_type.full_name.startswith("google."):
        filled(value.add() if each.is_repeated else value, canaries, path)
        if not each.is_repeated:
            value.SetInParent()


class Sender:
    """Sends through the edge of a running mesh; what comes back does not matter."""

    def __init__(self, env: dict[str, str], canaries: Canaries, *, gateway: str) -> None:
        """`env` is what `weir up` writes; `gateway` the "host:port" at which the mesh's own workloads call."""
        self._env = env
        self._gateway = gateway
        self._canaries = canaries
        self.url = env["WEIR_EDGE_URL"]
        self.sent = 0
        self.served = 0
        self._http = httpx2.Client(timeout=30, verify=ssl.create_default_context(cafile=env["WEIR_CA"]))

    def close(self) -> None:
        """Ends."""
        self._http.close()

    def headers(self, **more: str) -> dict[str, str]:
        """Those of a request that is served, traced."""
        trace = TRACE.format(secrets.token_hex(16), secrets.token_hex(8))
        return {"authorization": f"Bearer {self._env['WEIR_KEY_ACME']}", "traceparent": trace, **more}

    def http(self, method: str, path: str, **more: Any) -> httpx2.Response | None:
        """One request."""
        self.sent += 1
        headers = self.headers(**more.pop("headers", {}))
        try:
            response = self._http.request(method, self.url + path, headers=headers, **more)
            self.served += response.status_code == 200
            return response
        except httpx2.HTTPError:
            return None

    def everything(self) -> None:
        """Every API, field by field."""
        self._openai()
        self._surroundings()
        self._native()
        self._admin()

    def _openai(self) -> None:
        for path, kind in (
            ("/v1/chat/completions", CHAT_BODY.type),
            ("/v1/completions", COMPLETION_BODY.type),
            ("/v1/embeddings", EMBEDDING_BODY.type),
        ):
            for _, body in bodies(kind, path, self._canaries):
                self.http("POST", path, json=body)
            mark = self._canaries.mark
            self.http("POST", path, content=mark(f"{path} body, no JSON"))
            self.http("POST", path, content=b'{"model": "' + mark(f"{path} body, cut").encode())
            self.http("POST", path, content=json.dumps({"model": mark(path)}).encode() + b"\xff")
        for path in ("/v1/models/{}", "/v1/models/{}/x", "/{}", "/v1/{}", "/v1/chat/completions/{}", "/admin/v1/{}"):
            marker = self._canaries.mark(f"path {path}")
            self.http("GET", path.format(marker))
            self.http("POST", path.format(marker), json={})

    def _surroundings(self) -> None:
        """Headers, queries, methods, credentials."""
        mark = self._canaries.mark
        body = {"model": "weir-fast", "max_tokens": 4, "messages": [{"role": "user", "content": "The river"}]}
        for name in HEADERS:
            for path in ("/v1/chat/completions", "/v1/nowhere"):
                self.http("POST", path, json=body, headers={name: mark(f"header {name}")})
        self.http("POST", "/v1/chat/completions", json=body, headers={"traceparent": mark("header traceparent")})
        for name in ("authorization", "api-key", "x-api-key"):
            for form in ("{}", "Bearer {}", "Basic {}", "Bearer wk_aaaa_{}", "Bearer {0}.{0}.{0}"):
                value = form.format(mark(f"header {name}"))
                self.http("POST", "/v1/chat/completions", json=body, headers={"authorization": "", name: value})
        for path in ("/v1/chat/completions", "/v1/models", "/v1/nowhere", "/admin/v1/tenants"):
            self.http("POST", f"{path}?{mark('query key')}={mark('query value')}", json=body)
            self.http("GET", f"{path}?{mark('query key')}={mark('query value')}")
        self.http(mark("method").upper(), "/v1/models")
        files = {mark("form field"): (mark("file name"), mark("file content").encode(), "text/plain")}
        self.http("POST", "/v1/files", files=files)
        self.http("POST", "/v1/audio/transcriptions", files=files)

    def _native(self) -> None:
        for channel in (self._channel(), self._inside()):
            self._native_over(channel)
            channel.close()

    def _native_over(self, channel: grpc.Channel) -> None:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for method in pb.DESCRIPTOR.services_by_name["InferenceService"].methods:
            kind: Callable[[], Message] = getattr(pb, method.input_type.name)
            ways = [each.name for oneof in method.input_type.oneofs for each in oneof.fields] or [""]
            for only in ways:
                for known in (False, True):
                    request = filled(kind(), self._canaries, f"native {method.name}", only=only)
                    if known:
                        _with_known_model(request)
                    self._call(getattr(stub, method.name), request, streamed=method.client_streaming)

    def _admin(self) -> None:
        """Refused for want of a role, and refused for what they say: nothing of it is stored."""
        for key in ("WEIR_KEY_ACME", "WEIR_ADMIN_KEY"):
            headers = {"authorization": f"Bearer {self._env[key]}"}
            mark = self._canaries.mark
            for path in ("tenants", "limits", "aliases", "keys", "nowhere"):
                name = mark(f"admin {path} name")
                self.http("GET", f"/admin/v1/{path}/{name}?{mark('admin query')}=1", headers=headers)
                self.http("POST", f"/admin/v1/{path}", json={mark("admin field"): mark("admin value")}, headers=headers)
            with self._channel() as channel:
                stub = registry_pb2_grpc.RegistryServiceStub(channel)
                for method in registry_pb2.DESCRIPTOR.services_by_name["RegistryService"].methods:
                    if method.name == "Watch" and key == "WEIR_ADMIN_KEY":
                        continue  # an accepted one never ends
                    request = getattr(registry_pb2, method.input_type.name)()
                    filled(request, self._canaries, f"admin {method.name} {key}")
                    if "change" in method.input_type.fields_by_name:
                        request.change.dry_run = True
                    self._call(getattr(stub, method.name), request, key=key, streamed=method.client_streaming)

    def _channel(self) -> grpc.Channel:
        address = self.url.partition("://")[2]
        if not self.url.startswith("https"):
            return grpc.insecure_channel(address)
        ca = Path(self._env["WEIR_CA"]).read_bytes()
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca))

    def _inside(self) -> grpc.Channel:
        """As a workload of the mesh, past the edge."""
        names = ("WEIR_CA", "WEIR_CLIENT_KEY", "WEIR_CLIENT_CERT")
        credentials = grpc.ssl_channel_credentials(*(Path(self._env[name]).read_bytes() for name in names))
        options = [("grpc.ssl_target_name_override", "gateway.weir.internal")]
        return grpc.secure_channel(self._gateway, credentials, options)

    def _call(self, method: Any, request: Message, *, key: str = "WEIR_KEY_ACME", streamed: bool = False) -> None:
        self.sent += 1
        metadata = [
            ("authorization", f"Bearer {self._env[key]}"),
            ("traceparent", TRACE.format(secrets.token_hex(16), secrets.token_hex(8))),
            ("x-custom", self._canaries.mark("gRPC metadata")),
            ("x-custom-bin", self._canaries.mark("gRPC binary metadata").encode()),
        ]
        try:
            answer = method(iter([request]) if streamed else request, metadata=metadata, timeout=20)
            if hasattr(answer, "__iter__") and not isinstance(answer, Message):
                for _ in answer:
                    pass
            self.served += 1
        except grpc.RpcError:
            return


def _with_known_model(message: Message) -> None:
    for each in message.DESCRIPTOR.fields:
        if each.name == "model" and each.type == FieldDescriptor.TYPE_STRING:
            message.model = "weir-fast"  # type: ignore[attr-defined]
        elif each.name == "role" and not each.is_repeated:
            message.role = "user"  # type: ignore[attr-defined]
        elif each.message_type is not None and not each.message_type.GetOptions().map_entry:
            value = getattr(message, each.name)
            for inner in value if each.is_repeated else [value] if message.HasField(each.name) else []:
                _with_known_model(inner)


def leaks_in(folder: Path, canaries: Canaries) -> dict[str, list[str]]:
    """Which fields' markers stand in which files, journals' and etcd's among them."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if fields := canaries.named(content):
            found[str(path.relative_to(folder))] = fields
    return found
