"""`weir complete`."""

from __future__ import annotations

from typing import Annotated, Any

from services.cli import config
from services.cli.app import Argument, Json, Option, warn
from services.cli.output import print_json, write


def complete(
    prompt: Annotated[str, Argument("What to say to the model.")],
    model: Annotated[str, Option(help="An alias or a version.")] = "weir-fast",
    tenant: Annotated[str, Option(help="Whose development key to use.")] = "acme",
    key: Annotated[str, Option(env="WEIR_KEY", help="A key to use instead.")] = "",
    system: Annotated[str, Option(help="A system message.")] = "",
    max_tokens: Annotated[int | None, Option(least=1, help="Most tokens to generate.")] = None,
    temperature: Annotated[float | None, Option(least=0, most=2, help="0 is greedy.")] = None,
    seed: Annotated[int | None, Option(help="Makes the output reproducible.")] = None,
    grpc: Annotated[bool, Option("--grpc", help="Use the native API over the TLS edge instead of HTTP.")] = False,
    timeout: Annotated[float, Option(help="Seconds, all in all.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Stream one completion through the edge."""
    messages = [*([("system", system)] if system else []), ("user", prompt)]
    parameters = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    body = {
        "model": model,
        "messages": [{"role": role, "content": content} for role, content in messages],
        **{name: value for name, value in parameters.items() if value is not None},
    }
    mesh = config.locate()
    given: dict[str, Any] = {
        "key": key or mesh.key_of(tenant),
        "body": body,
        "timeout": timeout,
        "show": (lambda _: None) if as_json else write,  # JSON is printed whole, at the end
    }
    if grpc:
        from services.cli.native import chat as native

        answer = native(mesh, **given)
    else:
        from services.cli.edge import chat

        answer = chat(mesh.edge_url, ca=mesh.tls.ca, **given)
    if as_json:
        print_json(answer)
        return
    print()
    usage = answer["usage"]
    label = ", simulated" if answer["simulated"] else ""
    tokens = f"{usage['prompt_tokens']}+{usage['completion_tokens']} tokens" if usage else "no usage"
    ttft = "no text" if answer["ttft_s"] is None else f"first token after {answer['ttft_s'] * 1000:.0f} ms"
    warn(f"({answer['model']}{label}, {answer['finish_reason']}, {tokens}, {ttft})")
