"""`weir.inference.v1.PredictionService`: the Open Inference Protocol over HTTP, as Envoy's transcoder hands it on.

Every method makes the gRPC message of what it was given and lets the gRPC face answer it. Errors are bodies
`{"error": …}` with the status beside them, which the edge's filter puts in its place.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import msgspec
from google.api.httpbody_pb2 import HttpBody
from google.protobuf.message import Message
from inference import open_inference_pb2 as oip
from inference import open_inference_pb2_grpc
from weir.inference.v1 import predictions_pb2, predictions_pb2_grpc

from libs.codings import WBITS, decompressed
from libs.errors import Reason, WeirError, http_status
from libs.quota import retry_headers
from services.predictor.rest_json import HEADER_LENGTH, body_of, plain, request_of

SERVICE = predictions_pb2.DESCRIPTOR.services_by_name["PredictionService"].full_name
Headers = list[tuple[str, str]]
_WORTH_IT = 1024
"""Bytes: what is smaller is not compressed."""


class PredictionRest(predictions_pb2_grpc.PredictionServiceServicer):
    """The HTTP face of a gRPC face."""

    def __init__(self, inference: open_inference_pb2_grpc.GRPCInferenceServiceServicer, *, max_bytes: int) -> None:
        """`max_bytes` bounds what a compressed body may grow to, and an answer."""
        self._inference = inference
        self._max_bytes = max_bytes

    async def ModelInfer(  # noqa: N802 - the name on the wire
        self, request: predictions_pb2.ModelBodyRequest, context: grpc.aio.ServicerContext
    ) -> HttpBody:
        """See the proto."""
        given = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}

        async def answer(told: _Told) -> HttpBody:
            data = decompressed(request.body.data, given.get("content-encoding", ""), self._max_bytes)
            message, wanted = request_of(data, given.get(HEADER_LENGTH, ""), request.name, request.version)
            body, length = body_of(await self._inference.ModelInfer(message, told), wanted)
            if length is not None:
                told.headers.append((HEADER_LENGTH, str(length)))
            coding = coding_of(given.get("accept-encoding", "")) if len(body) >= _WORTH_IT else ""
            if coding:
                told.headers.append(("content-encoding", coding))
                body = compressed(body, coding)
            if len(body) > self._max_bytes:
                words = f"the answer has {len(body)} bytes, and may have {self._max_bytes}: ask for fewer rows"
                raise WeirError(Reason.PAYLOAD_TOO_LARGE, words, limit="max_message_bytes")
            kind = "application/json" if length is None else "application/octet-stream"
            return HttpBody(content_type=kind, data=body)

        return await _answered(context, answer)

    async def ServerLive(  # noqa: N802 - the name on the wire
        self, request: predictions_pb2.ServerRequest, context: grpc.aio.ServicerContext
    ) -> HttpBody:
        """See the proto."""
        return await self._truth(context, self._inference.ServerLive, oip.ServerLiveRequest(), "live")

    async def ServerReady(  # noqa: N802 - the name on the wire
        self, request: predictions_pb2.ServerRequest, context: grpc.aio.ServicerContext
    ) -> HttpBody:
        """See the proto."""
        return await self._truth(context, self._inference.ServerReady, oip.ServerReadyRequest(), "ready")

    async def ModelReady(  # noqa: N802 - the name on the wire
        self, request: predictions_pb2.ModelRequest, context: grpc.aio.ServicerContext
    ) -> HttpBody:
        """See the proto."""
        asked = oip.ModelReadyRequest(name=request.name, version=request.version)
        return await self._truth(context, self._inference.ModelReady, asked, "ready")

    async def ServerMetadata(  # noqa: N802 - the name on the wire
        self, request: predictions_pb2.ServerRequest, context: grpc.aio.ServicerContext
    ) -> HttpBody:
        """See the proto."""
        return await self._message(context, self._inference.ServerMetadata, oip.ServerMetadataRequest())

    async def ModelMetadata(  # noqa: N802 - the name on the wire
        self, request: predictions_pb2.ModelRequest, context: grpc.aio.ServicerContext
    ) -> HttpBody:
        """See the proto."""
        asked = oip.ModelMetadataRequest(name=request.name, version=request.version)
        return await self._message(context, self._inference.ModelMetadata, asked)

    async def ModelConfig(  # noqa: N802 - the name on the wire
        self, request: predictions_pb2.ModelRequest, context: grpc.aio.ServicerContext
    ) -> HttpBody:
        """See the proto."""
        asked = oip.ModelConfigRequest(name=request.name, version=request.version)
        return await self._message(context, self._inference.ModelConfig, asked, "config")

    async def ModelStatistics(  # noqa: N802 - the name on the wire
        self, request: predictions_pb2.ModelRequest, context: grpc.aio.ServicerContext
    ) -> HttpBody:
        """See the proto."""
        asked = oip.ModelStatisticsRequest(name=request.name, version=request.version)
        return await self._message(context, self._inference.ModelStatistics, asked)

    async def RepositoryIndex(  # noqa: N802 - the name on the wire
        self, request: predictions_pb2.BodyRequest, context: grpc.aio.ServicerContext
    ) -> HttpBody:
        """See the proto."""

        async def answer(told: _Told) -> HttpBody:
            try:
                asked = msgspec.json.decode(request.body.data or b"{}", type=_Index)
            except msgspec.DecodeError as error:
                raise WeirError(Reason.INVALID_REQUEST, f"the body: {str(error)[:200]}", limit="body") from None
            message = oip.RepositoryIndexRequest(repository_name=asked.repository_name, ready=asked.ready)
            return _json(plain(await self._inference.RepositoryIndex(message, told))["models"])

        return await _answered(context, answer)

    async def Unsupported(  # noqa: N802 - the name on the wire
        self, request: predictions_pb2.PathRequest, context: grpc.aio.ServicerContext
    ) -> HttpBody:
        """See the proto."""

        async def answer(told: _Told) -> HttpBody:
            raise WeirError(Reason.UNIMPLEMENTED, f"/v2/{request.path[:100]} is not supported here", limit="path")

        return await _answered(context, answer)

    async def _truth(
        self, context: grpc.aio.ServicerContext, method: Callable[..., Awaitable[Any]], asked: Message, field: str
    ) -> HttpBody:
        async def answer(told: _Told) -> HttpBody:
            true = bool(getattr(await method(asked, told), field))
            if not true:
                told.headers.append(("x-weir-http-status", "503"))
            return _json({field: true})

        return await _answered(context, answer)

    async def _message(
        self, context: grpc.aio.ServicerContext, method: Callable[..., Awaitable[Any]], asked: Message, field: str = ""
    ) -> HttpBody:
        async def answer(told: _Told) -> HttpBody:
            message = await method(asked, told)
            return _json(plain(getattr(message, field) if field else message))

        return await _answered(context, answer)


class _Index(msgspec.Struct):
    repository_name: str = ""
    ready: bool = False


class _Told:
    """A call's context that keeps its headers back: there may be more of them."""

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        self.headers: Headers = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def send_initial_metadata(self, headers: Headers) -> None:
        """Keep them."""
        self.headers += headers

    def set_trailing_metadata(self, headers: Headers) -> None:
        """Over HTTP there is nothing behind a body: they come before it."""
        self.headers += headers


async def _answered(context: grpc.aio.ServicerContext, answer: Callable[[_Told], Awaitable[HttpBody]]) -> HttpBody:
    told = _Told(context)
    try:
        body = await answer(told)
    except WeirError as error:
        told.headers += [("x-weir-http-status", str(http_status(error.reason))), ("x-weir-reason", error.reason.name)]
        told.headers += retry_headers(None if error.retry_after is None else round(error.retry_after * 1e9))
        body = _json({"error": error.message})
    await context.send_initial_metadata(told.headers)
    return body


def _json(content: object) -> HttpBody:
    return HttpBody(content_type="application/json", data=msgspec.json.encode(content))


def compressed(data: bytes, coding: str) -> bytes:
    """The body in this content coding: quickly rather than well."""
    writer = zlib.compressobj(1, zlib.DEFLATED, WBITS[coding])
    return writer.compress(data) + writer.flush()


def coding_of(accepted: str) -> str:
    """The content coding for an `Accept-Encoding`; empty where none of ours is wanted."""
    wanted = {}
    for each in accepted.lower().split(","):
        name, _, weight = each.partition(";")
        wanted[name.strip()] = weight.strip().rstrip("0") not in ("q=", "q=0.")
    return next((coding for coding in WBITS if wanted.get(coding)), "")


def register(
    inference: open_inference_pb2_grpc.GRPCInferenceServiceServicer, server: grpc.aio.Server, *, max_bytes: int
) -> None:
    """Serve the HTTP face of `inference`."""
    servicer = PredictionRest(inference, max_bytes=max_bytes)
    predictions_pb2_grpc.add_PredictionServiceServicer_to_server(servicer, server)
