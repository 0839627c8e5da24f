"""Fills a fresh registry from deploy/seed.toml over the registry's own API; what is there already stays."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import json_format
from weir.registry.v1 import registry_pb2, registry_pb2_grpc

from libs.artifacts import (
    BLOBS,
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
from libs.config import TlsFiles
from libs.errors import Reason, WeirError
from libs.registry import keys as registry_keys
from libs.rpc import make_channel

TIMEOUT = 10.0
"""Seconds per call."""


class SeedTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant with limits for all models and one key."""

    id: str
    display_name: str
    plan: str
    weight: float
    scopes: tuple[str, ...]
    limits: dict[str, Any]
    workloads: tuple[str, ...] = ()


class SeedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model folder; the rest is in its manifest."""

    folder: str
    tier: str
    pool: str
    max_tokens: int


class Seed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. Plans, objectives and prices are the registry's messages in their JSON form."""

    tenants: tuple[SeedTenant, ...]
    policies: dict[str, str]
    models: tuple[SeedModel, ...]
    plans: tuple[dict[str, Any], ...] = ()
    slos: tuple[dict[str, Any], ...] = ()
    prices: tuple[dict[str, Any], ...] = ()


class SeedError(Exception):
    """The registry refused something, or holds something that cannot be reconciled; the message says what."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """What the registry knows now."""

    keys: dict[str, str]
    """Secret by tenant; to be kept by the caller, nobody else has it."""
    models: list[str]
    """Aliases, in the order of the seed."""


def load(root: Path) -> Seed:
    """deploy/seed.toml. Raises OSError, tomllib.TOMLDecodeError, msgspec.ValidationError."""
    return msgspec.convert(tomllib.loads((root / "deploy" / "seed.toml").read_text(encoding="utf-8")), Seed)


def trust(namespace: str, key: SigningKey) -> registry_pb2.TrustPolicy:
    """A namespace that takes what this mesh's own key signed. Pure."""
    return registry_pb2.TrustPolicy(namespace=namespace, keys=[key.trusted("this mesh's development key")])


def policy(name: str, pack: Mapping[str, Any]) -> registry_pb2.SafetyPolicy:
    """The registry's record of a pattern pack. Pure."""
    return registry_pb2.SafetyPolicy(id=name, rules=[registry_pb2.SafetyRule(**rule) for rule in pack["rules"]])


async def plant(
    root: Path, *, address: str, tls: TlsFiles, keys: Mapping[str, str], blobs: str, signing_key: Path
) -> Seeded:
    """Creates what is missing. `keys` are the secrets of an earlier start, `blobs` is the address of the blob store
    that takes the models' files, `signing_key` the file of the key that signs them, made if need be. Raises SeedError.
    """
    seed = load(root)
    try:
        store, signer = open_store(blobs), ensure_key(signing_key)
    except (BlobUriError, BlobError, KeyFileError) as error:
        raise SeedError(str(error)) from error
    channel = make_channel(address, tls=tls, server_name="registry.weir.internal", translate_errors=True)
    async with channel:
        planter = _Planter(registry_pb2_grpc.RegistryServiceStub(channel))
        try:
            for name, path in seed.policies.items():
                await planter.policy(policy(name, json.loads((root / path).read_text(encoding="utf-8"))))
            await planter.trust(trust(DEFAULT_NAMESPACE, signer))
            models = await planter.models(root, seed.models, store, signer)
            await planter.terms(seed)
            await planter.tenants(seed.tenants)
            return Seeded(await planter.keys(seed.tenants, keys), models)
        except WeirError as error:
            raise SeedError(f"the registry refused the seed: {error}") from error
        except (PushError, BlobError) as error:
            raise SeedError(str(error)) from error
        finally:
            await store.close()


class _Planter:
    def __init__(self, stub: registry_pb2_grpc.RegistryServiceStub) -> None:
        self._stub: Any = stub

    async def policy(self, wanted: registry_pb2.SafetyPolicy) -> None:
        # Revision 0: must not exist. There is no list of policies, so the refusal is how one learns that it does.
        try:
            await self._stub.SetSafetyPolicy(registry_pb2.SetSafetyPolicyRequest(policy=wanted), timeout=TIMEOUT)
        except WeirError as error:
            if error.reason not in (Reason.CONFLICT, Reason.ALREADY_EXISTS):
                raise

    async def trust(self, wanted: registry_pb2.TrustPolicy) -> None:
        present = await self._stub.ListTrustPolicies(registry_pb2.ListTrustPoliciesRequest(), timeout=TIMEOUT)
        if wanted.namespace not in {policy.namespace for policy in present.trusts}:
            await self._stub.SetTrustPolicy(registry_pb2.SetTrustPolicyRequest(trust=wanted), timeout=TIMEOUT)

    async def models(self, root: Path, specs: tuple[SeedModel, ...], store: BlobStore, signer: SigningKey) -> list[str]:
        present = await self._stub.ListModels(registry_pb2.ListModelsRequest(), timeout=TIMEOUT)
        versions = {full_name(version): version for version in present.model_versions}
        aliases = {alias.name for alias in present.aliases}
        names: list[str] = []
        for spec in specs:
            version = await self._model(root / spec.folder, spec, versions, store, signer)
            if version.name not in aliases:
                target = registry_pb2.AliasTarget(model_version=full_name(version), weight=100)
                alias = registry_pb2.Alias(name=version.name, targets=[target])
                await self._stub.SetAlias(registry_pb2.SetAliasRequest(alias=alias), timeout=TIMEOUT)
            names.append(version.name)
        return names

    async def _model(
        self,
        folder: Path,
        spec: SeedModel,
        versions: Mapping[str, registry_pb2.ModelVersion],
        store: BlobStore,
        signer: SigningKey,
    ) -> registry_pb2.ModelVersion:
        """Pushes a model unless it is registered; its files are there afterwards in any case."""
        made = (await push(folder, store, Options(tier=spec.tier, pool=spec.pool, max_tokens=spec.max_tokens))).version
        known = versions.get(full_name(made))
        if known is not None and _digests(known) != _digests(made):
            raise SeedError(
                f"{full_name(made)} is registered with other files than {spec.folder} holds; versions never change: "
                "raise the version in its manifest, or remove the state directory to begin anew"
            )
        # One that was registered before there were signatures keeps its content and gets one.
        wanted = known or made
        if not wanted.signature or wanted.source != BLOBS:
            wanted.source = BLOBS
            wanted.signature = sign(wanted, signer)
            options = registry_pb2.ChangeOptions(reason="the models of this checkout")
            request = registry_pb2.CreateModelVersionRequest(model_version=wanted, change=options)
            await self._stub.CreateModelVersion(request, timeout=TIMEOUT)
        await upload(wanted, folder, store)
        return wanted

    async def terms(self, seed: Seed) -> None:
        """Plans, objectives and prices; after the models that they name, before the tenants that name them."""
        plans = await self._stub.ListPlanPolicies(registry_pb2.ListPlanPoliciesRequest(), timeout=TIMEOUT)
        slos = await self._stub.ListSlos(registry_pb2.ListSlosRequest(), timeout=TIMEOUT)
        prices = await self._stub.ListPrices(registry_pb2.ListPricesRequest(), timeout=TIMEOUT)
        present = {registry_keys.key_of(message) for message in (*plans.plans, *slos.slos, *prices.prices)}
        for plan in (json_format.ParseDict(each, registry_pb2.PlanPolicy()) for each in seed.plans):
            if registry_keys.key_of(plan) not in present:
                await self._stub.SetPlanPolicy(registry_pb2.SetPlanPolicyRequest(plan=plan), timeout=TIMEOUT)
        for slo in (json_format.ParseDict(each, registry_pb2.Slo()) for each in seed.slos):
            if registry_keys.key_of(slo) not in present:
                await self._stub.SetSlo(registry_pb2.SetSloRequest(slo=slo), timeout=TIMEOUT)
        for price in (json_format.ParseDict(each, registry_pb2.Price()) for each in seed.prices):
            if registry_keys.key_of(price) not in present:
                await self._stub.SetPrice(registry_pb2.SetPriceRequest(price=price), timeout=TIMEOUT)

    async def tenants(self, specs: tuple[SeedTenant, ...]) -> None:
        known = await self._stub.ListTenants(registry_pb2.ListTenantsRequest(), timeout=TIMEOUT)
        limited = await self._stub.ListLimits(registry_pb2.ListLimitsRequest(), timeout=TIMEOUT)
        present = {tenant.id for tenant in known.tenants}
        limits = {(each.tenant, each.model) for each in limited.limits}
        for spec in specs:
            if spec.id not in present:
                tenant = registry_pb2.Tenant(
                    id=spec.id,
                    display_name=spec.display_name,
                    plan=spec.plan,
                    weight=spec.weight,
                    workloads=spec.workloads,
                )
                await self._stub.SetTenant(registry_pb2.SetTenantRequest(tenant=tenant), timeout=TIMEOUT)
            if (spec.id, "*") not in limits:
                wanted = json_format.ParseDict({"tenant": spec.id, "model": "*", **spec.limits}, registry_pb2.Limits())
                await self._stub.SetLimits(registry_pb2.SetLimitsRequest(limits=wanted), timeout=TIMEOUT)

    async def keys(self, specs: tuple[SeedTenant, ...], have: Mapping[str, str]) -> dict[str, str]:
        listed = await self._stub.ListKeys(registry_pb2.ListKeysRequest(), timeout=TIMEOUT)
        live = {key.id for key in listed.keys if not key.HasField("revoked_at")}
        keys = dict(have)
        for spec in specs:
            secret = keys.get(spec.id, "")
            if not secret or secret.split("_")[1] not in live:
                request = registry_pb2.CreateKeyRequest(tenant=spec.id, scopes=spec.scopes, note="development")
                keys[spec.id] = (await self._stub.CreateKey(request, timeout=TIMEOUT)).secret
        return keys


def _digests(version: registry_pb2.ModelVersion) -> dict[str, str]:
    return {artifact.path: artifact.sha256 for artifact in version.artifacts}
