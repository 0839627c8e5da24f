"""`weir.openai.v1.OpenAIService`: HTTP bodies in, HTTP bodies and server-sent events out.

An error before the first event is a body with the envelope, and initial metadata that the edge's status filter turns
into the HTTP status. An error after it is an event in the stream.
"""

from __future__ import annotations

from collections.abc import Callable

import grpc
from google.api import httpbody_pb2
from weir.openai.v1 import openai_pb2, openai_pb2_grpc

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.telemetry import get_logger
from services.gateway.catalog import Catalog
from services.gateway.faces import Answer, collect, limits_of
from services.gateway.identity import Caller, Identifier
from services.gateway.openai.errors import error_body, error_headers
from services.gateway.openai.lists import PromptList
from services.gateway.openai.requests import OpenAIRequest, parse_chat, parse_completion, parse_embedding
from services.gateway.openai.responses import (
    HEARTBEAT,
    StreamEncoder,
    embeddings_body,
    model_body,
    models_body,
    whole_body,
)
from services.gateway.openai.wire import content_prefix, http_body
from services.gateway.policy.events import Accepted, ChoiceUpdate, Finish
from services.gateway.serve import Pipeline

log = get_logger(__name__)
_JSON = content_prefix("application/json")
_SSE = content_prefix("text/event-stream; charset=utf-8")
Headers = list[tuple[str, str]]


class OpenAIServicer(openai_pb2_grpc.OpenAIServiceServicer):
    """The OpenAI facade."""

    def __init__(self, pipeline: Pipeline, identifier: Identifier, catalog: Catalog, *, clock: Clock) -> None:
        self._pipeline = pipeline
        self._identifier = identifier
        self._catalog = catalog
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
        try:
            caller = self._identifier.identify(context, scope="embeddings")
            given = parse_embedding(request.data, client_request_id=caller.client_request_id)
            result = await self._pipeline.embed(caller.hinted(given.spec), caller)
        except WeirError as error:
            await _refuse(context, error)
            return
        await context.send_initial_metadata(
            [
                ("x-weir-model-version", result.model_version),
                ("x-weir-simulated", str(result.simulated).lower()),
                *limits_of(result),
            ]
        )
        await context.write(
            http_body(
                _JSON, embeddings_body(result.model_version, result.vectors, result.tokens, as_base64=given.base64)
            )
        )

    async def ListModels(  # noqa: N802 - the name on the wire
        self, request: openai_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        try:
            caller = self._identifier.identify(context, scope="models.read")
        except WeirError as error:
            await _refuse(context, error)
            return
        await context.write(http_body(_JSON, models_body(self._catalog.models(caller.identity.tenant))))

    async def GetModel(  # noqa: N802 - the name on the wire
        self, request: openai_pb2.GetModelRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        try:
            caller = self._identifier.identify(context, scope="models.read")
            found = self._catalog.model(caller.identity.tenant, request.id)
            if found is None:
                raise WeirError(Reason.MODEL_NOT_FOUND, f"there is no model {request.id[:100]!r}", limit="model")
        except WeirError as error:
            await _refuse(context, error)
            return
        await context.write(http_body(_JSON, model_body(found)))

    async def _generate(
        self,
        request: httpbody_pb2.HttpBody,
        context: grpc.aio.ServicerContext,
        parse: Callable[..., OpenAIRequest],
        *,
        chat: bool,
    ) -> None:
        caller: Caller | None = None
        try:
            caller = self._identifier.identify(context, scope="inference")
            given = parse(request.data, client_request_id=caller.client_request_id)
            if given.more:
                await self._listed(given, caller, context)
                return
            generation = await self._pipeline.open(
                caller.hinted(given.spec),
                caller.identity,
                request_id=caller.request_id,
                remaining=caller.remaining,
                traceparent=caller.traceparent,
            )
        except WeirError as error:
            await _refuse(context, error, request_id=caller.request_id if caller else "")
            return
        accepted = generation.accepted
        if accepted is None:
            raise RuntimeError("an open generation is accepted")
        try:
            with self._pipeline.readers.reading(generation):
                if given.stream:
                    await self._stream(generation, accepted, context, chat=chat, include_usage=given.include_usage)
                else:
                    await self._whole(generation, accepted, context, chat=chat)
        finally:  # whatever ends the RPC, a vanished client included; after the generation's own end this does nothing
            generation.stop(Finish.CANCELLED)

    async def _listed(self, given: OpenAIRequest, caller: Caller, context: grpc.aio.ServicerContext) -> None:
        """A list of prompts.

        :raises WeirError: what refused its first.
        """
        prompts = PromptList(self._pipeline, (given.spec, *given.more), caller, self._clock)
        accepted = await prompts.open()
        try:
            if given.stream:
                await self._stream(prompts, accepted, context, chat=False, include_usage=given.include_usage)
            else:
                await self._whole(prompts, accepted, context, chat=False)
        finally:
            await prompts.aclose()

    async def _stream(
        self,
        generation: Answer,
        accepted: Accepted,
        context: grpc.aio.ServicerContext,
        *,
        chat: bool,
        include_usage: bool,
    ) -> None:
        encoder = StreamEncoder(accepted, chat=chat, include_usage=include_usage)
        await context.send_initial_metadata(_headers(accepted))
        while True:
            updates, heartbeat, end = await generation.take()
            data = b"".join([encoder.update(update) for update in updates])
            if heartbeat and not data:
                data = HEARTBEAT
            if end is not None:
                data += encoder.end(end)
            await context.write(http_body(_SSE, data))
            if end is not None:
                return

    async def _whole(
        self,
        generation: Answer,
        accepted: Accepted,
        context: grpc.aio.ServicerContext,
        *,
        chat: bool,
    ) -> None:
        choices, end = await collect(generation)
        failed = generation.failed if isinstance(generation, PromptList) else ()
        for index in failed:
            choices[index] = ChoiceUpdate(index, finish=Finish.ERROR)
        if end.finish is Finish.ERROR and len(failed) in (0, len(choices)):  # of a list, all have failed
            error = WeirError(Reason.parse(end.error_reason), end.message, retry_after=end.retry_after)
            await _refuse(context, error, headers=_headers(accepted))
            return
        if end.finish is Finish.DEADLINE and not any(choice.text for choice in choices):
            error = WeirError(Reason.DEADLINE_EXCEEDED, "the deadline passed before the first token")
            await _refuse(context, error, headers=_headers(accepted))
            return
        await context.send_initial_metadata(_headers(accepted))
        await context.write(http_body(_JSON, whole_body(accepted, choices, end, chat=chat)))


async def _refuse(
    context: grpc.aio.ServicerContext, error: WeirError, *, request_id: str = "", headers: Headers | None = None
) -> None:
    """Answer with the envelope, its status and its headers."""
    metadata = error_headers(error) + (limits_of(error) if headers is None else headers)
    if request_id and headers is None:
        metadata.append(("x-request-id", request_id))
    await context.send_initial_metadata(metadata)
    await context.write(http_body(_JSON, error_body(error)))


def _headers(accepted: Accepted) -> Headers:
    headers = [
        ("x-request-id", accepted.request_id),
        ("x-weir-model-version", accepted.model_version),
        ("x-weir-zone", accepted.zone),
        ("x-weir-simulated", "true" if accepted.simulated else "false"),
    ]
    if accepted.arm:
        headers.append(("x-weir-arm", accepted.arm))
    if accepted.degraded:
        headers.append(("x-weir-degraded", ",".join(accepted.degraded)))
    return headers + limits_of(accepted)
