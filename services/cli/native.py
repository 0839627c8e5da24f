"""A streamed generation over the native API, through the TLS edge."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from weir.client import Client, Parameters
from weir.inference.v1 import inference_pb2

from services.cli.config import Mesh


def chat(
    mesh: Mesh, *, key: str, body: Mapping[str, Any], timeout: float, show: Callable[[str], None]
) -> dict[str, Any]:
    """As `services.cli.edge.chat`, with the same fields in its answer.

    :raises WeirError: refused, or broken.
    """
    return asyncio.run(_chat(mesh, key, dict(body), timeout, show))


async def _chat(
    mesh: Mesh, key: str, body: dict[str, Any], seconds: float, show: Callable[[str], None]
) -> dict[str, Any]:
    edge = urlsplit(mesh.edge_url)
    started = time.monotonic()
    first: float | None = None
    pieces: list[str] = []
    model, messages = body.pop("model"), body.pop("messages")
    async with (
        Client(edge.netloc, ca=mesh.tls.ca, api_key=key) as client,
        client.generate(model, messages, timeout=seconds, parameters=Parameters(**body)) as stream,
    ):
        async for piece in stream:
            if piece.text:
                if first is None:
                    first = round(time.monotonic() - started, 4)
                pieces.append(piece.text)
                show(piece.text)
        accepted = stream.accepted or inference_pb2.Accepted()
        end = stream.end or inference_pb2.End()
    return {
        "text": "".join(pieces),
        "finish_reason": inference_pb2.FinishReason.Name(end.finish_reason).removeprefix("FINISH_REASON_").lower(),
        "model": accepted.model_version,
        "simulated": accepted.simulated,
        "request_id": accepted.request_id,
        "usage": {
            "prompt_tokens": end.usage.prompt_tokens,
            "completion_tokens": end.usage.completion_tokens,
            "total_tokens": end.usage.prompt_tokens + end.usage.completion_tokens,
        },
        "ttft_s": first,
    }
