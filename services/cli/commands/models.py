"""`weir models`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.changes import DryRun, Reason, options
from services.cli.commands import models_gc, models_keys, models_push
from services.cli.commands.models_registry import list_models
from services.cli.output import Json, failed, failures, plain, print_fields, print_json, print_table

app = typer.Typer(help="Model versions and aliases.", invoke_without_command=True)
app.command("push")(models_push.push)
app.command("sign")(models_push.sign_version)
app.command("verify")(models_push.verify_version)
app.add_typer(models_keys.app, name="keys")
app.command("pins")(models_gc.pins)
app.command("pin")(models_gc.pin)
app.command("unpin")(models_gc.unpin)
app.command("gc")(models_gc.gc)


@app.callback()
def default(context: typer.Context, as_json: Json = False) -> None:
    """Model versions and aliases; lists them without a command."""
    if context.invoked_subcommand is None:
        list_all(as_json)


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """List versions, and the aliases that point at them."""
    with failures():
        answer = list_models()
    if as_json:
        print_json(plain(answer))
        return
    from libs.artifacts import signers

    print_table(
        ("VERSION", "TIER", "POOL", "CONTEXT", "ARCHITECTURE", "FILES", "DIGEST", "SIGNED BY"),
        (
            (
                f"{model.name}@{model.version}",
                model.tier,
                model.pool,
                model.context_length,
                model.architecture,
                len(model.artifacts),
                model.digest[:12],
                [key_id[:12] for key_id in signers(model)] or "nobody",
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
        answer = list_models()
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
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Point an alias, atomically."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    with failures():
        wanted = registry_pb2.Alias(name=name, targets=[_parse_target(text) for text in targets], revision=revision)
        request = registry_pb2.SetAliasRequest(alias=wanted, change=options(reason, dry_run=dry_run))
        alias = calls.registry("SetAlias", request).alias
    if as_json:
        print_json(plain(alias))
    else:
        state = "would be so" if dry_run else f"revision {alias.revision}"
        print(f"{alias.name} → {', '.join(_target(target) for target in alias.targets)} ({state})")


def _show(fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(fields)
        return
    if "signature" in fields:
        fields = {
            **fields,
            "signature": fields["signature"] and "signed by " + ", ".join(_signers(fields["signature"])),
        }
    nested = {name: value for name, value in fields.items() if value and isinstance(value, list | dict)}
    print_fields((name, value) for name, value in fields.items() if name not in nested)
    for name, value in nested.items():
        print(f"{name}:")
        for item in value if isinstance(value, list) else [value]:
            print("  " + (" ".join(f"{k}={v}" for k, v in item.items()) if isinstance(item, dict) else str(item)))


def _signers(signature: str) -> list[str]:
    from weir.registry.v1 import registry_pb2

    from libs.artifacts import signers

    return [key_id[:12] for key_id in signers(registry_pb2.ModelVersion(signature=signature))]


def _target(target: Any) -> str:
    return f"{target.model_version}={target.weight}%" + (f" ({target.arm})" if target.arm else "")


def _parse_target(text: str) -> Any:
    from weir.registry.v1 import registry_pb2

    version, _, share = text.partition("=")
    weight, _, arm = share.partition(":")
    if share and not weight.isdigit():
        raise failed(f"{text!r}: expected VERSION=PERCENT or VERSION=PERCENT:ARM")
    return registry_pb2.AliasTarget(model_version=version, weight=int(weight) if weight else 100, arm=arm)
