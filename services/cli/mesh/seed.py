"""Fills a fresh registry from deploy/seed over the registry's own API; what is there already stays."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs.artifacts import (
    DEFAULT_NAMESPACE,
    BlobError,
    BlobStore,
    BlobUriError,
    KeyFileError,
    Options,
    PushError,
    SigningKey,
    ensure_key,
    full_name,
    open_store,
    push,
    sign,
    upload,
)
from libs.authority.operators import OPERATOR
from libs.config import TlsFiles
from libs.errors import WeirError
from libs.resources.codec import key_of, pack, unpack
from libs.resources.forms import FormError, from_plain
from libs.resources.kind import Role
from libs.rpc import make_channel
from services.cli import files
from services.cli.app import UsageError

FOLDER = Path("deploy") / "seed"
OWNER = "seed"
TIMEOUT = 10.0
"""Seconds per call."""


class SeedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model folder; what is not said here is in its manifest."""

    folder: str
    tier: str = ""
    pool: str = ""
    max_tokens: int = 0


class Seed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """deploy/seed/more.toml."""

    policies: dict[str, str]
    """Pattern packs by the names of the policies that they become, "default@1"."""
    keys: dict[str, tuple[str, ...]]
    """Scopes by tenant."""
    models: tuple[SeedModel, ...]


class SeedError(Exception):
    """The registry refused something, or holds something that cannot be reconciled; the message says what."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """What the registry knows now."""

    keys: dict[str, str]
    """Secret by tenant; to be kept by the caller, nobody else has it."""
    models: list[str]
    """Aliases of models that generate, in the order of the seed."""
    predicting: list[str] = field(default_factory=list)
    """Those of models that predict."""


def load(root: Path) -> Seed:
    """What is no resource. Raises OSError, tomllib.TOMLDecodeError, msgspec.ValidationError."""
    return msgspec.convert(tomllib.loads((root / FOLDER / "more.toml").read_text(encoding="utf-8")), Seed)


def resources(root: Path) -> list[pb.Resource]:
    """What deploy/seed/*.yaml holds, and the safety policies that the packs become.

    :raises SeedError: a file is wrong; the message says where.
    """
    made = []
    for name, path in load(root).policies.items():
        rules = json.loads((root / path).read_text(encoding="utf-8"))["rules"]
        identity, _, version = name.partition("@")
        policy = pb.SafetyPolicy(id=identity, version=version, rules=[pb.SafetyRule(**rule) for rule in rules])
        made.append(pack(policy))
    try:
        for place, document in files.read([str(root / FOLDER)]):
            try:
                made.append(from_plain(document))
            except FormError as error:
                raise SeedError(f"{place}: {error}") from error
    except UsageError as error:
        raise SeedError(str(error)) from error
    return made


async def plant(
    root: Path,
    *,
    address: str,
    tls: TlsFiles,
    operator: str,
    keys: Mapping[str, str],
    blobs: str,
    signing_key: Path,
) -> Seeded:
    """Creates what is missing. `operator` calls, and becomes an owner; `keys` are the secrets of an earlier start,
    `blobs` is the address of the blob store that takes the models' files, `signing_key` the file of the key that signs
    them, made if need be. Raises SeedError.
    """
    seed = load(root)
    try:
        store, signer = open_store(blobs), ensure_key(signing_key)
    except (BlobUriError, BlobError, KeyFileError) as error:
        raise SeedError(str(error)) from error
    channel = make_channel(address, tls=tls, server_name="registry.weir.internal", translate_errors=True)
    async with channel:
        stub: Any = registry_pb2_grpc.RegistryServiceStub(channel)
        try:
            present = {key_of(each): each for each in await _listed(stub)}
            models = [await _model(root, spec, present, store, signer) for spec in seed.models]
            trust = pb.TrustPolicy(namespace=DEFAULT_NAMESPACE, keys=[signer.trusted("this mesh's development key")])
            aliases = [_alias(version) for version in models]
            owner = pb.RoleBinding(principal=f"{OPERATOR}{operator}", roles=[Role.OWNER.value])
            wanted = [*resources(root), *map(pack, (trust, owner, *aliases))]
            missing = [each for each in wanted if key_of(each) not in present]
            for each in missing:
                # Another `weir up` may have been quicker, and an operator behind it.
                each.metadata.revision = -1
            missing += [each for each in map(pack, models) if _is_new(each, present)]
            if missing:
                change = pb.ChangeOptions(reason="the seed of this checkout")
                await stub.Apply(pb.ApplyRequest(resources=missing, owner=OWNER, change=change), timeout=TIMEOUT)
            for spec, version in zip(seed.models, models, strict=True):
                await upload(version, root / spec.folder, store)
            keys_there = [each for each in present.values() if each.WhichOneof("spec") == "key"]
            live = {each.metadata.name for each in keys_there if not each.key.HasField("revoked_at")}
            names = [[each.name for each in models if each.HasField("prediction") == so] for so in (False, True)]
            return Seeded(await _keys(stub, seed.keys, keys, live), *names)
        except WeirError as error:
            raise SeedError(f"the registry refused the seed: {error}") from error
        except (PushError, BlobError) as error:
            raise SeedError(str(error)) from error
        finally:
            await store.close()


async def _listed(stub: Any) -> list[pb.Resource]:
    request, found = pb.ListRequest(), list[pb.Resource]()
    while True:
        page = await stub.List(request, timeout=TIMEOUT)
        found += page.resources
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return found


async def _model(
    root: Path, spec: SeedModel, present: Mapping[str, pb.Resource], store: BlobStore, signer: SigningKey
) -> pb.ModelVersion:
    """A model folder as the version that shall be registered; its files are in the blob store."""
    options = Options(tier=spec.tier, pool=spec.pool, max_tokens=spec.max_tokens)
    made = (await push(root / spec.folder, store, options)).version
    stored = present.get(key_of(made))
    known: Any = unpack(stored) if stored is not None else None
    if known is not None and _digests(known) != _digests(made):
        raise SeedError(
            f"{full_name(made)} is registered with other files than {spec.folder} holds; versions never change: "
            "raise the version in its manifest, or remove the state directory to begin anew"
        )
    wanted: pb.ModelVersion = known or made
    if not wanted.signature:
        wanted.signature = sign(wanted, signer)
    return wanted


def _alias(version: pb.ModelVersion) -> pb.Alias:
    return pb.Alias(name=version.name, targets=[pb.AliasTarget(model_version=full_name(version), weight=100)])


def _is_new(version: pb.Resource, present: Mapping[str, pb.Resource]) -> bool:
    stored = present.get(key_of(version))
    return stored is None or stored.model != version.model


async def _keys(
    stub: Any, scopes: Mapping[str, Iterable[str]], have: Mapping[str, str], live: set[str]
) -> dict[str, str]:
    keys = dict(have)
    for tenant, its in scopes.items():
        secret = keys.get(tenant, "")
        if not secret or secret.split("_")[1] not in live:
            request = pb.CreateKeyRequest(tenant=tenant, scopes=its, note="development")
            keys[tenant] = (await stub.CreateKey(request, timeout=TIMEOUT)).secret
    return keys


def _digests(version: pb.ModelVersion) -> dict[str, str]:
    return {artifact.path: artifact.sha256 for artifact in version.artifacts}
