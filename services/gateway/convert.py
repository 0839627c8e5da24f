"""weir.inference.v1 ⇄ domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from weir.inference.v1 import inference_pb2

from libs.cursor import Trail
from libs.deadlines import to_duration
from libs.texts import ChatMessage
from services.gateway.policy.events import ChoiceUpdate, End, Logprob, Usage
from services.gateway.policy.parameters import invalid, known_role
from services.gateway.policy.resuming import ends
from services.gateway.policy.spec import Parameters, Spec, Structure
from services.gateway.request import Accepted

_SCALARS = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "n", "logprobs"),
)


def to_spec(message: inference_pb2.GenerationSpec) -> Spec:
    """A native request as a Spec.

    :raises WeirError: INVALID_REQUEST naming the field.
    """
    kind = message.WhichOneof("input")
    if not message.model:
        raise invalid("model", "is missing")
    if (
        kind is None
        or (kind == "chat" and not message.chat.messages)
        or (kind == "token_ids" and not message.token_ids.ids)
    ):
        raise invalid("input", "is missing")
    turns = [ChatMessage(known_role(m.role, at), m.content) for at, m in enumerate(message.chat.messages)]
    given = message.parameters
    values: dict[str, Any] = {name: getattr(given, name) for name in _SCALARS if given.HasField(cast(Any, name))}
    return Spec(
        model=message.model,
        operation="generate",
        messages=tuple(turns) if kind == "chat" else None,
        prompt=message.prompt if kind == "prompt" else None,
        token_ids=tuple(message.token_ids.ids) if kind == "token_ids" else None,
        parameters=Parameters(
            stop=tuple(given.stop),
            logit_bias=dict(given.logit_bias),
            ignore_eos=given.ignore_eos,
            structure=_structure(given),
            **values,
        ),
        client_request_id=message.client_request_id,
        session=message.sticky_key,
        batch=message.priority == inference_pb2.PRIORITY_BATCH,
    )


def body_of(message: inference_pb2.GenerationSpec) -> bytes:
    """What makes it the same request when it comes again."""
    same = inference_pb2.GenerationSpec()
    same.CopyFrom(message)
    for name in ("client_request_id", "cursor", "idempotency_key"):
        same.ClearField(cast(Any, name))
    return same.SerializeToString(deterministic=True)


def embed_body_of(message: inference_pb2.EmbedRequest) -> bytes:
    """See `body_of`."""
    same = inference_pb2.EmbedRequest(model=message.model, inputs=message.inputs)
    return same.SerializeToString(deterministic=True)


def embed_spec(message: inference_pb2.EmbedRequest, client_request_id: str) -> Spec:
    """A native embedding as a Spec.

    :raises WeirError: INVALID_REQUEST when there is nothing to embed.
    """
    if not message.inputs:
        raise invalid("input", "is missing")
    inputs = tuple(message.inputs)
    return Spec(model=message.model, operation="embed", inputs=inputs, client_request_id=client_request_id)


def from_accepted(accepted: Accepted) -> inference_pb2.Accepted:
    """The first frame's content."""
    origin = accepted.origin
    return inference_pb2.Accepted(
        request_id=accepted.request_id,
        trace_id=accepted.trace_id,
        model_version=accepted.model_version,
        arm=accepted.arm,
        prompt_tokens=accepted.prompt_tokens,
        simulated=accepted.simulated,
        degraded=accepted.degraded,
        zone=accepted.zone,
        replayed=accepted.replayed,
        resumes=origin.request_id if origin is not None and origin.request_id != accepted.request_id else "",
    )


def from_updates(
    updates: Sequence[ChoiceUpdate], trail: Trail | None = None, tokens: int = 0
) -> inference_pb2.GenerateResponse:
    """A delta frame; `trail` makes its cursor, after `tokens` in all: fewer than 0 have none."""
    response = inference_pb2.GenerateResponse()
    if trail is not None and tokens >= 0:
        for update in updates:
            count = len(update.logprobs or ())
            cursor = trail.event(update.index, update.text, tokens, logprobs=count, ended=ends(update.finish))
        response.delta.cursor = cursor
    for update in updates:
        choice = response.delta.choices.add(index=update.index, text=update.text)
        if update.finish is not None:
            choice.finish_reason = cast(Any, int(update.finish))
        if update.logprobs:
            choice.logprobs.extend(map(_logprob, update.logprobs))
    return response


def from_choice(update: ChoiceUpdate) -> inference_pb2.Choice:
    """A whole choice."""
    return inference_pb2.Choice(
        index=update.index,
        text=update.text,
        logprobs=map(_logprob, update.logprobs or ()),
        finish_reason=cast(Any, int(update.finish or 0)),
    )


def from_end(accepted: Accepted, end: End) -> inference_pb2.End:
    """The terminal frame's content."""
    breakdown = end.breakdown
    return inference_pb2.End(
        finish_reason=cast(Any, int(end.finish)),
        usage=from_usage(accepted, end.whole_usage, billed=end.usage),
        breakdown=inference_pb2.Breakdown(
            **{name: to_duration(getattr(breakdown, name)) for name in breakdown.__dataclass_fields__}
        ),
        degraded=end.degraded,
        message="" if end.error is None else end.error.message,
        error_reason=end.error_reason,
    )


def from_usage(accepted: Accepted, usage: Usage, *, billed: Usage) -> inference_pb2.Usage:
    """What was used, and what this request cost of it where that is told."""
    return inference_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        spend_microusd=accepted.cost(billed),
    )


def _structure(given: inference_pb2.GenerationParameters) -> Structure | None:
    if not given.HasField("structured_output"):
        return None
    match given.structured_output.WhichOneof("form"):
        case "json_schema":
            return Structure("json_schema", given.structured_output.json_schema, "structured_output.json_schema")
        case "regex":
            return Structure("regex", given.structured_output.regex, "structured_output.regex")
    raise invalid("structured_output", "has no form")


def _logprob(entry: Logprob) -> inference_pb2.TokenLogprob:
    return inference_pb2.TokenLogprob(
        token=entry.token,
        logprob=entry.logprob,
        token_bytes=entry.raw,
        top=[inference_pb2.TopLogprob(token=t, token_bytes=b, logprob=p) for t, b, p in entry.top],
    )
