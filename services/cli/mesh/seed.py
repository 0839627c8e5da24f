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


def model_version(spec: SeedModel, manifest: Mapping[str, Any], source: Path) -> registry_pb2.ModelVersion:
    """The registry's record of a model folder. Pure."""
    sampling = manifest["sampling_defaults"]
    return registry_pb2.ModelVersion(
        name=manifest["name"],
        version=str(manifest["version"]),
        artifacts=[
            registry_pb2.Artifact(path=file["path"], sha256=file["sha256"], bytes=file["bytes"])
            for file in manifest["files"]
        ],
        source=str(source),
        architecture=manifest["architecture"],
        context_length=manifest["context_length"],
        tier=spec.tier,
        pool=spec.pool,
        sampling_defaults=registry_pb2.SamplingDefaults(
            temperature=sampling["temperature"], top_p=sampling["top_p"], max_tokens=spec.max_tokens
        ),
        eos_token_ids=manifest["eos_token_ids"],
        training_data_sha256=manifest["training_data_sha256"],
        chat_template_sha256=manifest["chat_template_sha256"],
    )


def policy(name: str, pack: Mapping[str, Any]) -> registry_pb2.SafetyPolicy:
    """The registry's record of a pattern pack. Pure."""
    return registry_pb2.SafetyPolicy(id=name, rules=[registry_pb2.SafetyRule(**rule) for rule in pack["rules"]])


async def plant(root: Path, *, address: str, tls: TlsFiles, keys: Mapping[str, str]) -> Seeded:
    """Creates what is missing. `keys` are the secrets of an earlier start. Raises SeedError."""
    seed = load(root)
    channel = make_channel(address, tls=tls, server_name="registry.weir.internal", translate_errors=True)
    async with channel:
        planter = _Planter(registry_pb2_grpc.RegistryServiceStub(channel))
        try:
            for name, path in seed.policies.items():
                await planter.policy(policy(name, json.loads((root / path).read_text(encoding="utf-8"))))
            models = await planter.models(root, seed.models)
            await planter.terms(seed)
            await planter.tenants(seed.tenants)
            return Seeded(await planter.keys(seed.tenants, keys), models)
        except WeirError as error:
            raise SeedError(f"the registry refused the seed: {error}") from error


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

    async def models(self, root: Path, specs: tuple[SeedModel, ...]) -> list[str]:
        present = await self._stub.ListModels(registry_pb2.ListModelsRequest(), timeout=TIMEOUT)
        versions = {f"{version.name}@{version.version}": version for version in present.model_versions}
        aliases = {alias.name for alias in present.aliases}
        names: list[str] = []
        for spec in specs:
            folder = root / spec.folder
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            wanted = model_version(spec, manifest, folder)
            full = f"{wanted.name}@{wanted.version}"
            if full not in versions:
                request = registry_pb2.CreateModelVersionRequest(model_version=wanted)
                await self._stub.CreateModelVersion(request, timeout=TIMEOUT)
            elif _digests(versions[full]) != _digests(wanted):
                raise SeedError(
                    f"{full} is registered with other files than {spec.folder} holds; versions never change: raise the "
                    "version in its manifest, or remove the state directory to begin anew"
                )
            if wanted.name not in aliases:
                target = registry_pb2.AliasTarget(model_version=full, weight=100)
                alias = registry_pb2.Alias(name=wanted.name, targets=[target])
                await self._stub.SetAlias(registry_pb2.SetAliasRequest(alias=alias), timeout=TIMEOUT)
            names.append(wanted.name)
        return names

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
