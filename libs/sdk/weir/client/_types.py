"""Plain values in and out of the client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from weir.inference.v1 import inference_pb2

Input = str | Sequence[Mapping[str, str]] | Sequence[int]
"""A prompt, chat messages (`{"role": …, "content": …}`), or token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Generation parameters; None takes the model's default. Ranges are documented in `GenerationParameters`."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: Sequence[str] = ()
    seed: int | None = None
    n: int | None = None
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    json_schema: Mapping[str, Any] | str | None = None
    """A JSON Schema that the whole output matches, as a mapping or as text."""
    regex: str | None = None
    """A regular expression that the whole output matches; not beside `json_schema`."""

    def to_proto(self) -> inference_pb2.GenerationParameters:
        """As the wire message; unset stays unset.

        :raises ValueError: both `json_schema` and `regex` are given.
        """
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        schema, regex = values.pop("json_schema"), values.pop("regex")
        message = inference_pb2.GenerationParameters(**{name: v for name, v in values.items() if v is not None})
        if schema is not None and regex is not None:
            raise ValueError("an output matches a JSON Schema or a regular expression, not both")
        if schema is not None:
            message.structured_output.json_schema = schema if isinstance(schema, str) else json.dumps(schema)
        if regex is not None:
            message.structured_output.regex = regex
        return message


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole generation."""

    text: str
    """The first choice's text."""
    choices: list[inference_pb2.Choice]
    """Every choice."""
    accepted: inference_pb2.Accepted
    """What the request became: version, zone, simulated, degraded, trace id."""
    end: inference_pb2.End
    """Finish reason, usage, breakdown."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Vectors in the order of the inputs."""

    vectors: list[list[float]]
    model_version: str
    prompt_tokens: int
    simulated: bool
    replayed: bool = False
    """Given before, to the same idempotency key; nothing is billed."""


def to_spec(
    model: str,
    given: Input,
    parameters: Parameters,
    *,
    client_request_id: str = "",
    sticky_key: str = "",
    batch: bool = False,
) -> inference_pb2.GenerationSpec:
    """The wire message of a generation."""
    spec = inference_pb2.GenerationSpec(
        model=model,
        parameters=parameters.to_proto(),
        client_request_id=client_request_id,
        sticky_key=sticky_key,
        priority=inference_pb2.PRIORITY_BATCH if batch else inference_pb2.PRIORITY_UNSPECIFIED,
    )
    if isinstance(given, str):
        spec.prompt = given
        return spec
    for item in given:
        if isinstance(item, int):
            spec.token_ids.ids.append(item)
        else:
            spec.chat.messages.add(role=item["role"], content=item["content"])
    return spec
