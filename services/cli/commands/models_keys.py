"""`weir models keys`: keys that sign model versions, and whose signatures a namespace takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.changes import DryRun, Reason, options
from services.cli.commands.models_registry import list_models, trust_policies
from services.cli.output import Json, failed, failures, plain, print_json, print_table, timestamp
from services.cli.quantities import parse_seconds

app = typer.Typer(help="Keys that sign model versions, and whom a namespace trusts.", invoke_without_command=True)
Namespace = Annotated[str, typer.Option(help="The namespace whose versions are meant.")]
_AT_ONCE = 60.0
"""Seconds: workers look when a policy changes, and take keys that expire so soon as expired (services/worker)."""
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="A key id, or as much of its beginning as tells it apart.")]


@app.callback()
def default(context: typer.Context, as_json: Json = False) -> None:
    """Keys that sign model versions; lists the trusted ones without a command."""
    if context.invoked_subcommand is None:
        list_keys(as_json)


@app.command()
def new(
    path: Annotated[Path, typer.Argument(help="Where the private key goes, mode 0600; the public one to PATH.pub.")],
    as_json: Json = False,
) -> None:
    """Make a key pair (Ed25519). Nobody trusts it yet."""
    from libs.artifacts import KeyFileError, make_key, write_key

    key = make_key()
    try:
        write_key(path, key)
    except KeyFileError as error:
        raise failed(str(error)) from error
    if as_json:
        print_json({"key_id": key.key_id, "private_key": str(path), "public_key": f"{path}.pub"})
    else:
        print(f"{key.key_id}\nnow let a namespace trust it: weir models keys trust {path}.pub")


@app.command("list")
def list_keys(as_json: Json = False) -> None:
    """List trusted keys by namespace."""
    with failures():
        policies = trust_policies()
    if as_json:
        print_json({"trust_policies": [plain(policies[namespace]) for namespace in sorted(policies)]})
        return
    now = time.time()
    print_table(
        ("NAMESPACE", "NEEDED", "KEY", "NOTE", "EXPIRES", "COUNTS"),
        (
            (
                namespace,
                f"{policies[namespace].threshold or 1} of {len(policies[namespace].keys)}",
                key.key_id,
                key.note,
                timestamp(key.expires_at) if key.HasField("expires_at") else "never",
                _counts(key, now),
            )
            for namespace in sorted(policies)
            for key in policies[namespace].keys
        ),
        empty="no namespace has a trust policy: signatures are checked by nobody",
    )


@app.command()
def trust(
    public_key: Annotated[Path, typer.Argument(help="A public key file (PEM), such as weir models keys new makes.")],
    namespace: Namespace = "default",
    note: Annotated[str, typer.Option(help="Whose it is, for people.")] = "",
    expires: Annotated[str, typer.Option(help="From now on, such as 90d; else never.")] = "",
    threshold: Annotated[int | None, typer.Option(min=1, help="So many different keys must have signed.")] = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Trust a further key. A namespace's first one makes signatures compulsory there."""
    from weir.registry.v1 import registry_pb2

    from libs.artifacts import key_id_of

    try:
        pem = public_key.read_text(encoding="ascii")
        added = registry_pb2.TrustedKey(key_id=key_id_of(pem), public_key=pem, note=note)
    except OSError as error:
        raise failed(f"{public_key}: {error.strerror}") from error
    except ValueError as error:
        raise failed(f"{public_key}: {error}") from error
    if expires:
        added.expires_at.FromNanoseconds(int((time.time() + parse_seconds(expires, "--expires")) * 1e9))

    def change(policy: Any) -> None:
        others = [key for key in policy.keys if key.key_id != added.key_id]
        del policy.keys[:]
        policy.keys.extend([*others, added])
        if threshold is not None:
            policy.threshold = threshold

    _change(namespace, change, reason=reason, dry_run=dry_run, as_json=as_json)


@app.command()
def expire(
    key: KeyId,
    namespace: Namespace = "default",
    after: Annotated[str, typer.Option("--in", help="Such as 30d, for a rotation; else now.")] = "0",
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Let a key's signatures count no longer, at once or from some time on. It stays in the list, so that a refusal can
    name it."""
    seconds = parse_seconds(after, "--in")

    def change(policy: Any) -> None:
        _one(policy, key).expires_at.FromNanoseconds(int((time.time() + seconds) * 1e9))

    _change(namespace, change, reason=reason, dry_run=dry_run, as_json=as_json, at=time.time() + seconds + 1)


@app.command()
def distrust(
    key: KeyId,
    namespace: Namespace = "default",
    reason: Reason = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Forget a key. A namespace's last one cannot be forgotten: let it expire."""

    def change(policy: Any) -> None:
        policy.keys.remove(_one(policy, key))

    _change(namespace, change, reason=reason, dry_run=dry_run, as_json=as_json)


def _change(
    namespace: str,
    change: Callable[[Any], None],
    *,
    reason: str,
    dry_run: bool,
    as_json: bool,
    at: float | None = None,
) -> None:
    """Reads, changes and writes a trust policy with the revision that was read, and says what no longer holds then."""
    from weir.registry.v1 import registry_pb2

    from services.cli import calls

    with failures():
        policy = trust_policies().get(namespace) or registry_pb2.TrustPolicy(namespace=namespace)
        change(policy)
        request = registry_pb2.SetTrustPolicyRequest(trust=policy, change=options(reason, dry_run=dry_run))
        stored = calls.registry("SetTrustPolicy", request).trust
        broken = _broken(stored, time.time() if at is None else at)
    if as_json:
        print_json({"trust_policy": plain(stored), "refused_versions": broken, "dry_run": dry_run})
        return
    would = "would trust" if dry_run else "trusts"
    print(f"{namespace} {would} {len(stored.keys)} keys, of which {stored.threshold or 1} must sign")
    for name, why in broken.items():
        print(f"  workers {'would' if dry_run else 'will'} refuse {name}: {why}")
    if broken and (at is None or at < time.time() + _AT_ONCE):
        print(
            f"  and those that serve {'it' if len(broken) == 1 else 'them'} now {'would' if dry_run else 'will'} stop"
        )


def _broken(policy: Any, at: float) -> dict[str, str]:
    """Registered versions of the namespace that do not hold under a policy, with the reason."""
    from libs.artifacts import TrustError, full_name, namespace_of, verify

    broken: dict[str, str] = {}
    for version in list_models().model_versions:
        if namespace_of(version) == policy.namespace:
            try:
                verify(version, policy, at)
            except TrustError as error:
                broken[full_name(version)] = error.message
    return broken


def _one(policy: Any, key_id: str) -> Any:
    found = [key for key in policy.keys if key.key_id.startswith(key_id)]
    if len(found) != 1:
        raise failed(
            f"{policy.namespace} trusts {'several keys' if found else 'no key'} whose id begins with {key_id!r}"
        )
    return found[0]


def _counts(key: Any, now: float) -> str:
    if not key.HasField("expires_at"):
        return "yes"
    end = key.expires_at.seconds
    return "yes" if end > now else f"no, since {datetime.fromtimestamp(end, UTC):%Y-%m-%d}"
