"""`weir.openai.v1.OpenAIService`: HTTP bodies in, HTTP bodies and server-sent events out.

An error before the first event is a body with the envelope, and initial metadata that the edge's status filter turns
into the HTTP status. An error after it is an event in the stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
from google.api import httpbody_pb2
from google.protobuf.message_factory import GetMessageClass
from weir.openai.v1 import openai_pb2, openai_pb2_grpc
from weir.records.v1 import records_pb2

from libs.callers import Caller, Identifier
from libs.catalog import Catalog
from libs.clock import Clock
from libs.cursor import Cursor
from libs.errors import Reason, WeirError
from libs.idempotency import replayed
from services.gateway.cursors import Cursors, digest_of
from services.gateway.idempotency import Idempotency
from services.gateway.openai.desk import FRESH, Desk
from services.gateway.openai.errors import error_body, error_headers
from services.gateway.openai.lists import PromptList
from services.gateway.openai.media import json_text
from services.gateway.openai.requests import OpenAIRequest, parse_chat, parse_completion, parse_embedding
from services.gateway.openai.responses import (
    HEARTBEAT,
    StreamEncoder,
    content_prefix,
    embeddings_body,
    http_body,
    model_body,
    models_body,
    whole_body,
)
from services.gateway.openai.usage import (
    COMPLETIONS,
    EMBEDDINGS,
    PREDICTIONS,
    Surface,
    costs_body,
    page_of,
    usage_body,
)
from services.gateway.output_buffer import Readable, collect
from services.gateway.policy.events import ChoiceUpdate, Finish
from services.gateway.policy.parameters import invalid
from services.gateway.policy.resuming import begun_of
from services.gateway.refusals import limits_of
from services.gateway.request import Accepted
from services.gateway.serve import Pipeline

SERVICE = openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"]
_JSON = content_prefix("application/json")
_SSE = content_prefix("text/event-stream; charset=utf-8")
Headers = list[tuple[str, str]]


class OpenAIServicer(openai_pb2_grpc.OpenAIServiceServicer):
    """The OpenAI facade."""

    def __init__(
        self,
        pipeline: Pipeline,
        identifier: Identifier,
        catalog: Catalog,
        cursors: Cursors,
        idempotency: Idempotency,
        *,
        usage: Callable[[records_pb2.UsageRequest], Awaitable[records_pb2.UsageResponse]],
        desk: Desk,
        max_body_bytes: int,
        clock: Clock,
    ) -> None:
        """`usage` asks the store of records; it raises WeirError. `max_body_bytes` bounds what a compressed body may
        grow to."""
        self._desk = desk
        self._usage = usage
        self._max_body_bytes = max_body_bytes
        self._pipeline = pipeline
        self._identifier = identifier
        self._catalog = catalog
        self._cursors = cursors
        self._idempotency = idempotency
        self._clock = clock

    async def CreateChatCompletion(  # noqa: N802 - the name on the wire
        self, request: httpbody_pb2.HttpBody, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        await self._generate(request, context, parse_chat, chat=True)

    async def CreateCompletion(  # noqa: N802 - the name on the wire
        self, request: httpbody_pb2.HttpBody, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        await self._generate(request, context, parse_completion, chat=False)

    async def CreateEmbedding(  # noqa: N802 - the name on the wire
        self, request: httpbody_pb2.HttpBody, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        async with _refusing(context):
            caller = self._identifier.identify(context, scope="embeddings")
            text = self._text(request, caller)
            given = parse_embedding(text, client_request_id=caller.client_request_id)
            body = digest_of(given.spec.operation, text)
            result = await self._idempotency.embed(given.spec, caller, caller.idempotency_key, body)
            accepted = result.accepted
            await context.send_initial_metadata(_headers(accepted))
            await context.write(http_body(_JSON, embeddings_body(accepted, result.vectors, as_base64=given.base64)))

    async def ListModels(  # noqa: N802 - the name on the wire
        self, request: openai_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        async with _refusing(context):
            caller = self._identifier.identify(context, scope="models.read")
            listed = self._catalog.models(caller.identity.tenant)
            # What predicts has no context, and no place in this API.
            await context.write(http_body(_JSON, models_body(each for each in listed if each.context_length)))

    async def GetModel(  # noqa: N802 - the name on the wire
        self, request: openai_pb2.GetModelRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        async with _refusing(context):
            caller = self._identifier.identify(context, scope="models.read")
            found = self._catalog.model(caller.identity.tenant, request.id)
            if found is None or not found.context_length:
                raise WeirError(Reason.MODEL_NOT_FOUND, f"there is no model {request.id[:100]!r}", limit="model")
            await context.write(http_body(_JSON, model_body(found)))

    async def GetUsage(  # noqa: N802 - the name on the wire
        self, request: openai_pb2.GetUsageRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        await self._page(request, context, COMPLETIONS)

    async def GetEmbeddings(  # noqa: N802 - the name on the wire
        self, request: openai_pb2.GetUsageRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        await self._page(request, context, EMBEDDINGS)

    async def GetPredictions(  # noqa: N802 - the name on the wire
        self, request: openai_pb2.GetUsageRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        await self._page(request, context, PREDICTIONS)

    async def GetCosts(  # noqa: N802 - the name on the wire
        self, request: openai_pb2.GetCostsRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        await self._page(request, context, None)

    async def GetStatus(  # noqa: N802 - the name on the wire
        self, request: openai_pb2.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        async with _refusing(context):
            caller = self._identifier.identify(context, scope="usage.read")
            body = await self._desk.body(caller.identity.tenant)
            await context.send_initial_metadata([("cache-control", f"private, max-age={FRESH:.0f}")])
            await context.write(http_body(_JSON, body))

    async def _page(
        self,
        request: openai_pb2.GetUsageRequest | openai_pb2.GetCostsRequest,
        context: grpc.aio.ServicerContext,
        surface: Surface | None,
    ) -> None:
        """A page of what the caller's own tenant used, or, without a surface, of what it cost."""
        async with _refusing(context):
            caller = self._identifier.identify(context, scope="usage.read")
            page = page_of(request, self._clock.time())
            question = page.question
            question.tenant = caller.identity.tenant
            if isinstance(request, openai_pb2.GetUsageRequest):
                question.models.extend(request.models)
                question.keys.extend(request.api_key_ids)
            question.operations.extend(surface.operations if surface else ())
            rows = (await self._usage(question)).rows
            body = usage_body(page, surface, rows) if surface else costs_body(page, rows)
            await context.write(http_body(_JSON, body))

    async def _generate(
        self,
        request: httpbody_pb2.HttpBody,
        context: grpc.aio.ServicerContext,
        parse: Callable[..., OpenAIRequest],
        *,
        chat: bool,
    ) -> None:
        caller: Caller | None = None
        prompts: PromptList | None = None
        try:
            caller = self._identifier.identify(context, scope="inference")
            text = self._text(request, caller)
            given = parse(text, client_request_id=caller.client_request_id)
            body = digest_of(given.spec.operation, text)
            cursor = self._cursor(given, caller, body)
            if given.more:
                prompts = PromptList(self._pipeline, (given.spec, *given.more), caller, self._clock)
                accepted = await prompts.open()
            else:
                generation = await self._idempotency.open(given.spec, caller, caller.idempotency_key, body, cursor)
        except WeirError as error:
            await _refuse(context, error, [("x-request-id", caller.request_id)] if caller else [])
            return
        if prompts is not None:
            try:
                encoder = StreamEncoder(accepted, chat=chat, include_usage=given.include_usage)
                await self._answer(given, prompts, accepted, context, encoder, chat=chat)
            finally:
                await prompts.aclose()
            return
        tenant, accepted = caller.identity.tenant, generation.accepted
        try:
            encoder = StreamEncoder(
                accepted,
                chat=chat,
                include_usage=given.include_usage,
                trail=self._cursors.trail(accepted.origin, tenant, body, cursor),
                begun=begun_of(cursor),
            )
            with self._pipeline.parts.readers.reading(generation):
                await self._answer(given, generation, accepted, context, encoder, chat=chat)
        finally:  # whatever ends the RPC, a vanished client included; after the generation's own end this does nothing
            generation.stop(Finish.CANCELLED)
            self._cursors.ended(accepted.origin, tenant, generation.end)

    def _text(self, request: httpbody_pb2.HttpBody, caller: Caller) -> bytes:
        return json_text(request, caller.told.get("content-encoding", ""), self._max_body_bytes)

    def _cursor(self, given: OpenAIRequest, caller: Caller, body: bytes) -> Cursor | None:
        """Where its caller is; None: at the beginning.

        :raises WeirError: INVALID_REQUEST, CURSOR_INVALID, CURSOR_GONE.
        """
        if caller.last_event_id and (not given.stream or given.more):
            raise invalid("last_event_id", "only a stream of one prompt goes on where it was")
        if caller.idempotency_key and given.more:
            raise invalid("idempotency_key", "not for lists of prompts")
        return self._cursors.read(caller.last_event_id, caller.identity.tenant, body)

    async def _answer(
        self,
        given: OpenAIRequest,
        generation: Readable,
        accepted: Accepted,
        context: grpc.aio.ServicerContext,
        encoder: StreamEncoder,
        *,
        chat: bool,
    ) -> None:
        if not given.stream:
            await self._whole(generation, accepted, context, chat=chat)
            return
        await context.send_initial_metadata(_headers(accepted))
        end = None
        while end is None:
            updates, heartbeat, end = await generation.take()
            tokens = generation.progress
            data = b"".join([encoder.update(update, tokens) for update in updates])
            if heartbeat and not data:
                data = HEARTBEAT
            if end is not None:
                data += encoder.end(end)
            await context.write(http_body(_SSE, data))

    async def _whole(
        self, generation: Readable, accepted: Accepted, context: grpc.aio.ServicerContext, *, chat: bool
    ) -> None:
        choices, end = await collect(generation)
        failed = generation.failed if isinstance(generation, PromptList) else ()
        for index in failed:
            choices[index] = ChoiceUpdate(index, finish=Finish.ERROR)
        error: WeirError | None = None
        if end.finish is Finish.ERROR and len(failed) in (0, len(choices)):  # of a list, all have failed
            error = end.error
        elif end.finish is Finish.DEADLINE and not any(choice.text for choice in choices):
            error = WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed before the first token")
        if error is not None:
            await _refuse(context, error, _headers(accepted))
            return
        await context.send_initial_metadata(_headers(accepted))
        await context.write(http_body(_JSON, whole_body(accepted, choices, end, chat=chat)))


@contextlib.asynccontextmanager
async def _refusing(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
    try:
        yield
    except WeirError as error:
        await _refuse(context, error, [])


async def _refuse(context: grpc.aio.ServicerContext, error: WeirError, headers: Headers) -> None:
    """Answer with the envelope, its status and its headers."""
    await context.send_initial_metadata(error_headers(error) + limits_of(error) + headers)
    await context.write(http_body(_JSON, error_body(error)))


def _headers(accepted: Accepted) -> Headers:
    headers = [
        ("x-request-id", accepted.request_id),
        ("x-weir-model-version", accepted.model_version),
        ("x-weir-zone", accepted.zone),
        ("x-weir-simulated", _bool(accepted.simulated)),
    ]
    if accepted.arm:
        headers.append(("x-weir-arm", accepted.arm))
    if accepted.replayed:
        headers += replayed(accepted.request_id)
    if accepted.degraded:
        headers.append(("x-weir-degraded", ",".join(accepted.degraded)))
    return headers + accepted.limits.headers()


def _bool(value: bool) -> str:
    return "true" if value else "false"


def register(servicer: object, server: grpc.aio.Server) -> None:
    """Add the servicer; its methods write serialised bodies (every method of this service streams HttpBody)."""
    handlers = {
        method.name: grpc.unary_stream_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=None,
        )
        for method in SERVICE.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
