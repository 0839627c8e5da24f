"""`weir complete`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from services.cli import config
from services.cli.output import Json, failures, print_json


def complete(
    prompt: Annotated[str, typer.Argument(help="What to say to the model.")],
    model: Annotated[str, typer.Option(help="An alias or a version.")] = "weir-fast",
    tenant: Annotated[str, typer.Option(help="Whose development key to use.")] = "acme",
    key: Annotated[str, typer.Option(envvar="WEIR_KEY", help="A key to use instead.")] = "",
    system: Annotated[str, typer.Option(help="A system message.")] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens to generate.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the output reproducible.")] = None,
    grpc: Annotated[bool, typer.Option("--grpc", help="Use the native API over the TLS edge instead of HTTP.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds, all in all.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Stream one completion through the edge."""
    messages = [*([("system", system)] if system else []), ("user", prompt)]
    parameters = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    given = {name: value for name, value in parameters.items() if value is not None}

    def show(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def hide(text: str) -> None:
        """JSON is printed whole, at the end."""

    stream = _native if grpc else _openai
    with failures():
        mesh = config.locate()
        answer = stream(
            mesh,
            key=key or mesh.key_of(tenant),
            model=model,
            messages=messages,
            parameters=given,
            timeout=timeout,
            show=hide if as_json else show,
        )
    if as_json:
        print_json(answer)
        return
    print()
    usage = answer["usage"]
    label = ", simulated" if answer["simulated"] else ""
    tokens = f"{usage['prompt_tokens']}+{usage['completion_tokens']} tokens" if usage else "no usage"
    ttft = "no text" if answer["ttft_s"] is None else f"first token after {answer['ttft_s'] * 1000:.0f} ms"
    typer.echo(f"({answer['model']}{label}, {answer['finish_reason']}, {tokens}, {ttft})", err=True)


def _openai(
    mesh: config.Mesh,
    *,
    key: str,
    model: str,
    messages: list[tuple[str, str]],
    parameters: dict[str, Any],
    timeout: float,
    show: Callable[[str], None],
) -> dict[str, Any]:
    from services.cli.edge import chat

    body = {
        "model": model,
        "messages": [{"role": role, "content": content} for role, content in messages],
        **parameters,
    }
    return chat(mesh.edge_url, key=key, body=body, timeout=timeout, show=show)


def _native(
    mesh: config.Mesh,
    *,
    key: str,
    model: str,
    messages: list[tuple[str, str]],
    parameters: dict[str, Any],
    timeout: float,
    show: Callable[[str], None],
) -> dict[str, Any]:
    from services.cli.native import generate

    return asyncio.run(
        generate(mesh, key=key, model=model, messages=messages, parameters=parameters, seconds=timeout, show=show)
    )
