"""`weir models keys`: keys that sign model versions, and whose signatures a namespace takes (`weir get trust`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from libs.resources.forms import plain
from services.cli import calls
from services.cli.app import Argument, Change, Json, Option
from services.cli.output import failed, print_json
from services.cli.quantities import parse_seconds

Namespace = Annotated[str, Option(help="The namespace whose versions are meant.")]
_AT_ONCE = 60.0
"""Seconds: workers look when a policy changes, and take keys that expire so soon as expired (services/worker)."""
KeyId = Annotated[str, Argument(metavar="KEY", help="A key id, or as much of its beginning as tells it apart.")]


def new(
    path: Annotated[Path, Argument("Where the private key goes, mode 0600; the public one to PATH.pub.")],
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


def trust(
    public_key: Annotated[Path, Argument("A public key file (PEM), such as weir models keys new makes.")],
    namespace: Namespace = "default",
    note: Annotated[str, Option(help="Whose it is, for people.")] = "",
    expires: Annotated[str, Option(help="From now on, such as 90d; else never.")] = "",
    threshold: Annotated[int | None, Option(least=1, help="So many different keys must have signed.")] = None,
    *,
    how: Change,
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

    _change(namespace, change, how)


def expire(
    key: KeyId,
    namespace: Namespace = "default",
    after: Annotated[str, Option("--in", help="Such as 30d, for a rotation; else now.")] = "0",
    *,
    how: Change,
) -> None:
    """Let a key's signatures count no longer, at once or from some time on. It stays in the list, so that a refusal can
    name it."""
    seconds = parse_seconds(after, "--in")

    def change(policy: Any) -> None:
        _one(policy, key, namespace).expires_at.FromNanoseconds(int((time.time() + seconds) * 1e9))

    _change(namespace, change, how, at=time.time() + seconds + 1)


def distrust(key: KeyId, namespace: Namespace = "default", *, how: Change) -> None:
    """Forget a key. A namespace's last one cannot be forgotten: let it expire."""

    def change(policy: Any) -> None:
        policy.keys.remove(_one(policy, key, namespace))

    _change(namespace, change, how)


def _change(namespace: str, change: Callable[[Any], None], how: Change, *, at: float | None = None) -> None:
    """Reads, changes and writes a trust policy with the revision that was read, and says what no longer holds then."""
    from weir.registry.v1 import registry_pb2 as pb

    from libs.resources.codec import unpack

    with calls.service() as registry:
        there = {each.metadata.name: each for each in calls.listing(registry, ["TrustPolicy"])[0]}
        absent = pb.Resource(metadata=pb.Metadata(name=namespace, revision=-1), trust=pb.TrustPolicy())
        present = there.get(namespace, absent)
        change(present.trust)
        registry("Apply", resources=[present], change=how.options)
        versions = calls.read(registry, ["models"]).model_versions
    policy: Any = unpack(present)
    broken = _broken(policy, versions, time.time() if at is None else at)
    if how.as_json:
        print_json({"trust_policy": plain(policy, unset=True), "refused_versions": broken, "dry_run": how.dry_run})
        return
    would, will = ("would trust", "would") if how.dry_run else ("trusts", "will")
    print(f"{namespace} {would} {len(policy.keys)} keys, of which {policy.threshold or 1} must sign")
    for name, why in broken.items():
        print(f"  workers {will} refuse {name}: {why}")
    if broken and (at is None or at < time.time() + _AT_ONCE):
        print(f"  and those that serve {'it' if len(broken) == 1 else 'them'} now {will} stop")


def _broken(policy: Any, versions: Mapping[str, Any], at: float) -> dict[str, str]:
    """Registered versions of the namespace that do not hold under a policy, with the reason."""
    from libs.artifacts import TrustError, namespace_of, verify

    broken: dict[str, str] = {}
    for name, version in versions.items():
        if namespace_of(version) == policy.namespace:
            try:
                verify(version, policy, at)
            except TrustError as error:
                broken[name] = error.message
    return broken


def _one(policy: Any, key_id: str, namespace: str) -> Any:
    found = [key for key in policy.keys if key.key_id.startswith(key_id)]
    if len(found) != 1:
        raise failed(f"{namespace} trusts {'several keys' if found else 'no key'} whose id begins with {key_id!r}")
    return found[0]


COMMANDS = {"new": new, "trust": trust, "expire": expire, "distrust": distrust}
