"""`weir keys`: what is more than a resource, since a secret is made. `weir get keys` lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from libs.deadlines import to_duration
from services.cli import calls
from services.cli.app import Argument, Change, Option, warn
from services.cli.commands.show import form
from services.cli.output import print_json, timestamp
from services.cli.quantities import parse_seconds


def create(
    tenant: Annotated[str, Argument("Whose.")],
    scope: Annotated[
        Sequence[str],
        Option(help="inference, embeddings, models.read, usage.read, admin; repeatable; else the first and the third."),
    ] = (),
    ttl: Annotated[str, Option(help="Such as 12h or 30d; never expires when left out.")] = "",
    note: Annotated[str, Option(help="What it is for.")] = "",
    *,
    how: Change,
) -> None:
    """Create a key and print it: the secret is shown now and never again."""
    scopes = scope or ["inference", "models.read"]
    asked: dict[str, Any] = {"tenant": tenant, "scopes": scopes, "note": note}
    if ttl:
        asked["ttl"] = to_duration(parse_seconds(ttl, "--ttl"))
    made = calls.ask("registry", "CreateKey", change=how.options, **asked)
    key = made.key.key
    if how.as_json:
        print_json({**form(made.key), "secret": made.secret})
        return
    expiry = f", expires {timestamp(key.expires_at)}" if key.HasField("expires_at") else ""
    what = f"of {tenant} with {', '.join(scopes)}{expiry}"
    if how.dry_run:
        print(f"a key {what} would be made")
        return
    print(made.secret)
    warn(f"key {made.key.metadata.name} {what}; it is not shown again")


def revoke(key: Annotated[str, Argument("Its public id, or the whole key.")], how: Change) -> None:
    """Revoke a key; it is refused everywhere within moments."""
    public = key.split("_")[1] if key.startswith("wk_") and key.count("_") == 2 else key
    revoked = calls.ask("registry", "RevokeKey", key_id=public, change=how.options).key
    if how.as_json:
        print_json(form(revoked))
    else:
        state = "would be revoked" if how.dry_run else f"is revoked since {timestamp(revoked.key.revoked_at)}"
        print(f"key {revoked.metadata.name} of {revoked.key.tenant} {state}")


COMMANDS = {"create": create, "revoke": revoke}
