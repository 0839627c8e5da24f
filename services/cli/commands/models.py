"""`weir models`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.output import Json, failed, failures, plain, print_fields, print_json, print_table

app = typer.Typer(help="Model versions and aliases.", invoke_without_command=True)


@app.callback()
def default(context: typer.Context, as_json: Json = False) -> None:
    """Model versions and aliases; lists them without a command."""
    if context.invoked_subcommand is None:
        list_models(as_json)


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """List versions, and the aliases that point at them."""
    with failures():
        answer = _list()
    if as_json:
        print_json(plain(answer))
        return
    print_table(
        ("VERSION", "TIER", "POOL", "CONTEXT", "ARCHITECTURE", "FILES", "DIGEST"),
        (
            (
                f"{model.name}@{model.version}",
                model.tier,
                model.pool,
                model.context_length,
                model.architecture,
                len(model.artifacts),
                model.digest[:12],
            )
            for model in answer.model_versions
        ),
        empty="no model versions",
    )
    print_table(
        ("ALIAS", "TARGETS", "REVISION"),
        ((alias.name, [_target(target) for target in alias.targets], alias.revision) for alias in answer.aliases),
        empty="no aliases",
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A version such as weir-fast@1, or an alias.")], as_json: Json = False
) -> None:
    """Show a version or an alias whole."""
    with failures():
        answer = _list()
    for model in answer.model_versions:
        if f"{model.name}@{model.version}" == name:
            return _show(plain(model), as_json)
    for alias in answer.aliases:
        if alias.name == name:
            return _show(plain(alias), as_json)
    raise failed(f"no model version or alias is called {name!r}")


@app.command("alias")
def set_alias(
    name: Annotated[str, typer.Argument(help="The alias.")],
    targets: Annotated[list[str], typer.Argument(help="VERSION, or VERSION=PERCENT[:ARM] each; they sum to 100.")],
    revision: Annotated[int, typer.Option(help="The revision that was read; -1 replaces whatever is there.")] = -1,
    as_json: Json = False,
) -> None:
    """Point an alias, atomically."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    with failures():
        wanted = registry_pb2.Alias(name=name, targets=[_parse_target(text) for text in targets], revision=revision)
        alias = calls.registry("SetAlias", registry_pb2.SetAliasRequest(alias=wanted)).alias
    if as_json:
        print_json(plain(alias))
    else:
        print(f"{alias.name} → {', '.join(_target(target) for target in alias.targets)} (revision {alias.revision})")


def _list() -> Any:
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    return calls.registry("ListModels", registry_pb2.ListModelsRequest())


def _show(fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(fields)
        return
    nested = {name: value for name, value in fields.items() if value and isinstance(value, list | dict)}
    print_fields((name, value) for name, value in fields.items() if name not in nested)
    for name, value in nested.items():
        print(f"{name}:")
        for item in value if isinstance(value, list) else [value]:
            print("  " + (" ".join(f"{k}={v}" for k, v in item.items()) if isinstance(item, dict) else str(item)))


def _target(target: Any) -> str:
    return f"{target.model_version}={target.weight}%" + (f" ({target.arm})" if target.arm else "")


def _parse_target(text: str) -> Any:
    from weir.registry.v1 import registry_pb2

    version, _, share = text.partition("=")
    weight, _, arm = share.partition(":")
    if share and not weight.isdigit():
        raise failed(f"{text!r}: expected VERSION=PERCENT or VERSION=PERCENT:ARM")
    return registry_pb2.AliasTarget(model_version=version, weight=int(weight) if weight else 100, arm=arm)
