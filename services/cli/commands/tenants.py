"""`weir tenants`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.changes import DryRun, Reason, options, tell
from services.cli.output import Json, failed, failures, plain, print_json, print_table

app = typer.Typer(help="Tenants.", invoke_without_command=True)


@app.callback()
def default(context: typer.Context, as_json: Json = False) -> None:
    """Tenants; lists them without a command."""
    if context.invoked_subcommand is None:
        list_tenants(as_json)


@app.command("list")
def list_tenants(as_json: Json = False) -> None:
    """List tenants."""
    with failures():
        tenants = _tenants()
    if as_json:
        print_json({"tenants": [plain(tenant) for tenant in tenants]})
        return
    _print(tenants)


@app.command("set")
def set_tenant(
    tenant: Annotated[str, typer.Argument(help="Its id.")],
    display_name: Annotated[str | None, typer.Option(help="Its name for people.")] = None,
    plan: Annotated[str | None, typer.Option(help="free or paid.")] = None,
    plan_policy: Annotated[str | None, typer.Option(help="What `weir plans` holds for it; '' is its plan's.")] = None,
    weight: Annotated[float | None, typer.Option(help="In fair queuing.")] = None,
    workload: Annotated[list[str] | None, typer.Option(help="SPIFFE id that acts as it; replaces the list.")] = None,
    safety_policy: Annotated[str | None, typer.Option(help="Its safety policy; '' is the default one.")] = None,
    fail_mode: Annotated[str | None, typer.Option(help="While safety is away: closed or flag.")] = None,
    audit_required: Annotated[bool | None, typer.Option(help="Refuse what cannot be audited.")] = None,
    max_deadline: Annotated[float | None, typer.Option(help="Longest deadline in seconds; 0 takes it away.")] = None,
    training_allowed: Annotated[bool | None, typer.Option(help="It allows training on its data.")] = None,
    jwt_issuer: Annotated[str | None, typer.Option(help="Issuer of its tokens; '' for none.")] = None,
    revision: Annotated[int | None, typer.Option(help="The revision to replace; else the one just read.")] = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Create a tenant, or change what is given of it. A new one is on the free plan unless said otherwise."""
    from google.protobuf.duration_pb2 import Duration
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    with failures():
        present = {each.id: each for each in _tenants()}
        wanted = present.get(tenant) or registry_pb2.Tenant(id=tenant, plan=registry_pb2.PLAN_FREE)
        given: dict[str, Any] = {
            "display_name": display_name,
            "plan": _enum(registry_pb2.Plan, "PLAN", "--plan", plan),
            "plan_policy": plan_policy,
            "weight": weight,
            "safety_policy": safety_policy,
            "safety_fail_mode": _enum(registry_pb2.FailMode, "FAIL_MODE", "--fail-mode", fail_mode),
            "audit_required": audit_required,
            "training_allowed": training_allowed,
            "jwt_issuer": jwt_issuer,
            "revision": revision,
        }
        for field, value in given.items():
            if value is not None:
                setattr(wanted, field, value)
        if workload is not None:
            wanted.ClearField("workloads")
            wanted.workloads.extend(workload)
        if max_deadline is not None:
            wanted.ClearField("max_deadline")
        if max_deadline:
            wanted.max_deadline.CopyFrom(Duration(seconds=int(max_deadline), nanos=int(max_deadline % 1 * 1e9)))
        request = registry_pb2.SetTenantRequest(tenant=wanted, change=options(reason, dry_run=dry_run))
        stored = calls.registry("SetTenant", request).tenant
    if as_json:
        print_json(plain(stored))
    else:
        _print([stored])
    tell(dry_run)


@app.command()
def explain(
    tenant: Annotated[str, typer.Argument(help="Its id.")],
    records: Annotated[int, typer.Option(min=1, max=1000, help="How many of its last requests to read.")] = 1000,
    as_json: Json = False,
) -> None:
    """Say what a tenant is given, how its last requests fared, and what speaks against it."""
    from services.cli.explain import gather, show

    with failures():
        told = gather.tell(tenant, records=records)
    if told is None:
        raise failed(f"no tenant is called {tenant!r}")
    if as_json:
        print_json(told)
    else:
        show.show(told)


def _tenants() -> list[Any]:
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    return list(calls.registry("ListTenants", registry_pb2.ListTenantsRequest()).tenants)


def _print(tenants: list[Any]) -> None:
    from weir.registry.v1 import registry_pb2

    print_table(
        ("TENANT", "NAME", "PLAN", "WEIGHT", "SAFETY", "AUDIT REQUIRED", "WORKLOADS", "REVISION"),
        (
            (
                tenant.id,
                tenant.display_name,
                registry_pb2.Plan.Name(tenant.plan).removeprefix("PLAN_").lower()
                + (f" ({tenant.plan_policy})" if tenant.plan_policy else ""),
                f"{tenant.weight or 1:g}",
                f"{tenant.safety_policy or 'default'}"
                + (" (flags)" if tenant.safety_fail_mode == registry_pb2.FAIL_MODE_FLAG else ""),
                tenant.audit_required,
                [workload.rpartition("/")[2] for workload in tenant.workloads],
                tenant.revision,
            )
            for tenant in tenants
        ),
        empty="no tenants",
    )


def _enum(kind: Any, prefix: str, option: str, value: str | None) -> int | None:
    if value is None:
        return None
    name = f"{prefix}_{value.upper()}"
    if name not in kind.keys() or kind.Value(name) == 0:  # noqa: SIM118 - an enum wrapper is no mapping
        choices = [each.removeprefix(f"{prefix}_").lower() for each in kind.keys() if kind.Value(each)]  # noqa: SIM118
        raise typer.BadParameter(f"must be one of {', '.join(choices)}", param_hint=option)
    return int(kind.Value(name))
