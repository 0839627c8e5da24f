"""`weir registry`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.changes import DryRun, Reason, options, tell
from services.cli.output import Json, failed, failures, plain, print_fields, print_json, print_table, timestamp

app = typer.Typer(
    help="The registry as a whole: its history, going back, roles, export and import.", no_args_is_help=True
)
LONG = 600.0
"""Seconds for a whole registry."""


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="Where to; replaced when it exists. It holds the hashes of API keys.")],
    history: Annotated[bool, typer.Option("--history", help="With the history, for reading.")] = False,
    as_json: Json = False,
) -> None:
    """Write the whole configuration at one revision to a file that only you can read."""
    from weir.registry.v1 import registry_pb2, registry_pb2_grpc

    from services.cli import calls, exports

    request = registry_pb2.ExportRequest(history=history)

    async def run(channel: Any) -> list[Any]:
        return [part async for part in registry_pb2_grpc.RegistryServiceStub(channel).Export(request, timeout=LONG)]

    with failures(), _files():
        values, revision, digest = exports.write(file, calls.with_channel("registry", run))
    report = {"file": str(file), "values": values, "revision": revision, "digest": digest}
    print_json(report) if as_json else print_fields(report.items())


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="An export.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace the configuration that is there.")] = False,
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make the registry what an export says. One that broke off is finished by importing the same file again."""
    from weir.registry.v1 import registry_pb2_grpc

    from services.cli import calls, exports

    async def run(channel: Any) -> Any:
        return await registry_pb2_grpc.RegistryServiceStub(channel).Import(iter(parts), timeout=LONG)

    with failures(), _files():
        parts = exports.read(file)
        parts[-1].replace = replace
        parts[-1].change.CopyFrom(options(reason, dry_run=dry_run))
        answer = calls.with_channel("registry", run)
    report = plain(answer) | {"dry_run": dry_run}
    print_json(report) if as_json else print_fields(report.items())


@app.command("history")
def history(
    resource: Annotated[str, typer.Argument(help="Only of this, such as aliases/weir-fast or rollouts/.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many changes.")] = 20,
    before: Annotated[int, typer.Option(help="Only changes before this revision.")] = 0,
    as_json: Json = False,
) -> None:
    """Who changed what, when and why; newest first."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    request = registry_pb2.ListHistoryRequest(resource=resource, limit=limit, before_revision=before)
    with failures():
        entries = calls.registry("ListHistory", request).entries
    if as_json:
        print_json({"entries": [{**plain(entry), "changes": _changes(entry.changes)} for entry in entries]})
        return
    print_table(
        ("REVISION", "TIME", "WHO", "WHAT", "RESOURCES", "WHY"),
        (
            (entry.revision, timestamp(entry.at), entry.actor, entry.action, _resources(entry.changes), entry.reason)
            for entry in entries
        ),
        empty="no changes",
    )


@app.command("diff")
def diff(
    from_revision: Annotated[int, typer.Argument(help="From this revision.")],
    to_revision: Annotated[int, typer.Argument(help="To this one; now when left out.")] = 0,
    as_json: Json = False,
) -> None:
    """Show how the configuration differs between two revisions."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    request = registry_pb2.DiffRevisionsRequest(from_revision=from_revision, to_revision=to_revision)
    with failures():
        answer = calls.registry("DiffRevisions", request)
    if as_json:
        print_json({"to_revision": answer.to_revision, "changes": _changes(answer.changes)})
    else:
        _print_changes(answer.changes)


@app.command("rollback")
def rollback(
    to_revision: Annotated[int, typer.Argument(help="The revision to go back to.")],
    reason: Reason,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make aliases, tenants, limits, plans, objectives, prices and safety policies what they were at a revision.

    Keys, roles, trust, versions, pins, rollouts and the kill switch stay, and so does who may act as a tenant.
    """
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    request = registry_pb2.RollbackToRevisionRequest(to_revision=to_revision, change=options(reason, dry_run=dry_run))
    with failures():
        answer = calls.registry("RollbackToRevision", request)
    if as_json:
        print_json({"revision": answer.revision, "dry_run": dry_run, "changes": _changes(answer.changes)})
        return
    _print_changes(answer.changes)
    print("nothing was changed: a dry run" if dry_run else f"revision {answer.revision}")


@app.command("roles")
def roles(as_json: Json = False) -> None:
    """List who may do what beyond their scopes."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    with failures():
        bindings = calls.registry("ListRoleBindings", registry_pb2.ListRoleBindingsRequest()).bindings
    if as_json:
        print_json({"bindings": [plain(binding) for binding in bindings]})
    else:
        _print_bindings(bindings)


@app.command("grant")
def grant(
    principal: Annotated[str, typer.Argument(help="key:<id>, tenant:<id>, or a service's SPIFFE id.")],
    role: Annotated[
        list[str] | None,
        typer.Option(help="viewer, publisher, releaser, operator or owner; may be repeated. None takes all away."),
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="Only models, aliases and rollouts in it; may be repeated.")
    ] = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Give a caller exactly these roles."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    binding = registry_pb2.RoleBinding(principal=principal, roles=role or [], namespaces=namespace or [], revision=-1)
    with failures():
        request = registry_pb2.SetRoleBindingRequest(binding=binding, change=options(reason, dry_run=dry_run))
        stored = calls.registry("SetRoleBinding", request).binding
    if as_json:
        print_json(plain(stored))
    else:
        _print_bindings([stored])
    tell(dry_run)


@contextmanager
def _files() -> Iterator[None]:
    """Turns what is wrong with a file into one line and exit code 1."""
    from services.cli.exports import ExportFileError

    try:
        yield
    except (ExportFileError, OSError) as error:
        raise failed(str(error)) from error


def _print_bindings(bindings: Iterable[Any]) -> None:
    print_table(
        ("PRINCIPAL", "ROLES", "NAMESPACES", "REVISION"),
        ((each.principal, list(each.roles), list(each.namespaces) or "all", each.revision) for each in bindings),
        empty="no roles are given",
    )


def _resources(changes: Any) -> str:
    names = [change.resource for change in changes]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _changes(changes: Any) -> list[dict[str, Any]]:
    """Changes with their values as JSON, null where there is none."""
    return [
        {"resource": change.resource, "before": _parsed(change.before), "after": _parsed(change.after)}
        for change in changes
    ]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def _print_changes(changes: Any) -> None:
    for change in changes:
        before, after = _parsed(change.before), _parsed(change.after)
        sign = "+" if before is None else "-" if after is None else "~"
        print(f"{sign} {change.resource}")
        if not isinstance(before, dict) or not isinstance(after, dict):
            continue
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                print(f"    {name}: {_shown(before.get(name))} → {_shown(after.get(name))}")
    if not changes:
        print("no differences")


def _shown(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)
