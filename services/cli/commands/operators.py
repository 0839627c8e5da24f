"""`weir operators`: people who operate the mesh, by their certificates and roles; `weir whoami`.

Their bindings, and those of keys and services, are resources: `weir get roles`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from libs.authority.identity import Operator
from libs.authority.operators import OIDC, OPERATOR, PER_TENANT, Grant, binding_of, may_change, rows
from libs.resources.kind import Kind, Role
from libs.resources.kinds import KINDS
from services.cli import calls
from services.cli.app import Argument, Change, Json, Option, Output, UsageError, warn
from services.cli.config import locate
from services.cli.output import failed, print_fields, print_found, print_json, short, timestamp, zulu

Name = Annotated[str, Argument("Who: jane; or of a person with a token, oidc:ISSUER/NAME.")]
_KIND = "RoleBinding"
_ROLES = " ".join(role.value for role in Role)


def add(
    name: Name,
    role: Annotated[Sequence[str], Option(choices=_ROLES, help="What for; repeatable.")] = (),
    namespace: Annotated[Sequence[str], Option(help="Changes only models of these; repeatable.")] = (),
    tenant: Annotated[Sequence[str], Option(help="Knows only these; repeatable.")] = (),
    csr: Annotated[
        Path | None, Option(help="A certificate request (PEM, P-256) whose key stays with the person; - reads it.")
    ] = None,
    *,
    how: Change,
) -> None:
    """Let a person operate the mesh, or change what for: roles, and a certificate.

    The certificate says only who somebody is, for seven days; added again, with the same roles or without any, it is
    made anew. With --csr it is printed, and the key never leaves the person's machine. A person with a token of an
    operators' issuer (services/edge_auth) needs none.
    """
    from libs.pki import issue

    principal = _principal(name)
    if csr is not None and principal.startswith(OIDC):
        raise UsageError("a person with a token has no certificate; leave --csr out")
    if role:
        spec = {"roles": role, "namespaces": namespace, "tenants": tenant}
        resource = {"metadata": {"name": principal}, "role": spec}
        calls.ask("registry", "Apply", resources=[resource], change=how.options)
    elif namespace or tenant or calls.find(_KIND, principal) is None:
        raise UsageError(f"say what for: --role {_ROLES.replace(' ', '|')}")
    made: dict[str, str] = {}
    if not how.dry_run and csr is not None:
        made = {"certificate": _signed(name, csr)}
    elif not how.dry_run and not principal.startswith(OIDC):
        files = issue(_authority(), Operator(name))
        made = {"certificate": files.cert, "key": files.key}
    if how.as_json:
        print_json({"principal": principal, "roles": list(role), **made})
        return
    print(*(value.rstrip("\n") for value in made.values()), sep="\n", end="\n" if made else "")
    warn(f"{principal} {'would be' if how.dry_run else 'is'} {', '.join(role) or 'as before'}")


def list_(output: Output = "table") -> None:
    """List who may operate the mesh, what for, until when, and who said so."""
    with calls.service() as registry:
        bound, _ = calls.listing(registry, [_KIND])
        found = [_row(each, registry("History", kind=_KIND, name=each.metadata.name, limit=1)) for each in bound]
    columns = ("WHO", "ROLES", "NAMESPACES", "TENANTS", "CERTIFICATE UNTIL", "CHANGED", "BY")
    rows = [
        (
            *(each["principal"], each["roles"], each["namespaces"] or "all", each["tenants"] or "all"),
            *(short(each[name], wide=output == "wide") for name in ("certificate_until", "changed")),
            each["changed_by"],
        )
        for each in found
    ]
    least = columns[4:1:-1]
    print_found(output, {"operators": found}, columns, rows, empty="nobody has a role", extra=columns[5:], least=least)


def revoke(name: Name, how: Change) -> None:
    """Let a person operate nothing any more: its next call is refused, its watches end. The last owner stays one."""
    principal = _principal(name)
    calls.ask("registry", "Delete", resources=[{"kind": _KIND, "name": principal}], change=how.options)
    if not how.dry_run and not principal.startswith(OIDC):
        for path in locate().certificate_of(name)[1:]:
            Path(path).unlink(missing_ok=True)
    if how.as_json:
        print_json({"principal": principal, "revoked": not how.dry_run})
    else:
        print(f"{principal} {'would be' if how.dry_run else 'is'} nobody here any more")


def whoami(as_json: Json = False) -> None:
    """Say who you are to the mesh, what you may and what not. Exit code 1 when you may nothing."""
    mesh = locate()
    until = _until(Path(mesh.tls.cert))
    try:
        answer = calls.ask("registry", "WhoAmI")
    except Exception as error:
        if calls.reason_of(error) not in ("SCOPE_MISSING", "PERMISSION_DENIED"):
            raise
        who = f"you are {OPERATOR}{mesh.operator}, certificate until {until or 'unknown'}"
        raise failed(f"{who}: nobody to this mesh, you may nothing") from error
    held = binding_of(answer.roles, answer.namespaces, answer.tenants)
    grant = Grant(answer.principal, held.roles, held.namespaces, held.tenants)
    told = {
        "principal": answer.principal,
        "known_by": answer.known_by,
        "certificate_until": until,
        "roles": list(answer.roles),
        "namespaces": list(answer.namespaces) or "all",
        "tenants": list(answer.tenants) or "all",
        "may_change": [kind.plural for kind in _changing(grant)],
        "may_not": list(_refused(grant)),
    }
    if as_json:
        print_json(told)
    else:
        print_fields((name.replace("_", " "), value) for name, value in told.items())


def _refused(grant: Grant) -> Iterator[str]:
    """What a person may not, in words."""
    if grant.tenants:
        yield "know of anything but these tenants"
    able = {kind.plural for kind in _changing(grant)}
    yield from (f"change {kind.plural}" for kind in KINDS if kind.change and kind.plural not in able)
    for row in rows(()):
        if not grant.roles & row.roles or (grant.tenants and row.what not in PER_TENANT):
            yield f"call {row.what}"


def _changing(grant: Grant) -> list[Kind]:
    """Kinds that a person may change, as far as they are within its bounds."""
    return [kind for kind in KINDS if kind.change and may_change(grant, kind) and (kind.tenant or not grant.tenants)]


def _principal(name: str) -> str:
    if name.startswith(OIDC):
        return name
    try:
        return f"{OPERATOR}{Operator(name).name}"
    except ValueError as error:
        raise UsageError(f"{error}: small letters, digits and dashes") from error


def _signed(name: str, csr: Path) -> str:
    from libs.pki import sign_request

    try:
        request = sys.stdin.buffer.read() if str(csr) == "-" else csr.read_bytes()
        return sign_request(_authority(), Operator(name), request)
    except (OSError, ValueError) as error:
        raise failed(f"{csr}: {error}; nothing is signed") from error


def _authority() -> Path:
    folder = locate().pki
    if not (folder / "ca.key").is_file():
        raise failed(f"{folder} has no CA: certificates are made where the mesh's CA is")
    return folder


def _row(binding: Any, history: Any) -> dict[str, Any]:
    principal = binding.metadata.name
    name = principal.removeprefix(OPERATOR)
    last = history.entries[0] if history.entries else None
    return {
        "principal": principal,
        "roles": list(binding.role.roles),
        "namespaces": list(binding.role.namespaces),
        "tenants": list(binding.role.tenants),
        "certificate_until": _until(Path(locate().certificate_of(name).cert)) if name != principal else "",
        "changed": timestamp(last.at) if last is not None else "",
        "changed_by": last.actor if last is not None else "",
    }


def _until(certificate: Path) -> str:
    """When a certificate ends; empty for one that is not on this machine."""
    from cryptography import x509

    try:
        return zulu(x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc)
    except (OSError, ValueError):
        return ""


COMMANDS = {"add": add, "list": list_, "revoke": revoke}
