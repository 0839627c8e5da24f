"""`weir keys`."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from services.cli.changes import DryRun, Reason, options
from services.cli.output import Json, failures, plain, print_json, print_table, timestamp

app = typer.Typer(help="API keys.", no_args_is_help=True)
_TTL = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@app.command()
def create(
    tenant: Annotated[str, typer.Argument(help="Whose.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="inference, embeddings, models.read, admin; may be repeated.")
    ] = None,
    ttl: Annotated[str, typer.Option(help="Such as 12h or 30d; never expires when left out.")] = "",
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Create a key and print it: the secret is shown now and never again."""
    from google.protobuf.duration_pb2 import Duration
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    scopes = scope or ["inference", "models.read"]
    request = registry_pb2.CreateKeyRequest(
        tenant=tenant, scopes=scopes, note=note, change=options(reason, dry_run=dry_run)
    )
    if ttl:
        request.ttl.CopyFrom(Duration(seconds=_seconds(ttl)))
    with failures():
        made = calls.registry("CreateKey", request)
    if as_json:
        print_json({**_plain(made.key), "secret": made.secret})
        return
    expiry = f", expires {timestamp(made.key.expires_at)}" if made.key.HasField("expires_at") else ""
    what = f"of {tenant} with {', '.join(scopes)}{expiry}"
    if dry_run:
        print(f"a key {what} would be made")
        return
    print(made.secret)
    typer.echo(f"key {made.key.id} {what}; it is not shown again", err=True)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Its public id, or the whole key.")],
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Revoke a key; it is refused everywhere within moments."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    public = key_id.split("_")[1] if key_id.startswith("wk_") and key_id.count("_") == 2 else key_id
    with failures():
        request = registry_pb2.RevokeKeyRequest(key_id=public, change=options(reason, dry_run=dry_run))
        key = calls.registry("RevokeKey", request).key
    if as_json:
        print_json(_plain(key))
    else:
        state = "would be revoked" if dry_run else f"is revoked since {timestamp(key.revoked_at)}"
        print(f"key {key.id} of {key.tenant} {state}")


@app.command("list")
def list_keys(tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "", as_json: Json = False) -> None:
    """List keys, without secrets."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    with failures():
        found = calls.registry("ListKeys", registry_pb2.ListKeysRequest(tenant=tenant)).keys
    if as_json:
        print_json({"keys": [_plain(key) for key in found]})
        return
    print_table(
        ("KEY", "TENANT", "SCOPES", "CREATED", "EXPIRES", "REVOKED", "NOTE"),
        (
            (
                key.id,
                key.tenant,
                list(key.scopes),
                timestamp(key.created_at)[:19],
                timestamp(key.expires_at)[:19] if key.HasField("expires_at") else "never",
                timestamp(key.revoked_at)[:19] if key.HasField("revoked_at") else "-",
                key.note,
            )
            for key in found
        ),
        empty="no keys",
    )


def _plain(key: Any) -> dict[str, Any]:
    return {name: value for name, value in plain(key).items() if name != "hash"}


def _seconds(text: str) -> int:
    match = _TTL.fullmatch(text)
    if match is None:
        raise typer.BadParameter("a number and s, m, h or d, such as 30d", param_hint="--ttl")
    return int(match[1]) * _UNITS[match[2]]
