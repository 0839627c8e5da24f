"""The seed file becomes records of the registry."""

import json

import pytest
from weir.registry.v1 import registry_pb2

from services.cli.mesh import seed
from services.cli.mesh.site import ROOT

SEED = seed.load(ROOT)


@pytest.mark.parametrize("spec", SEED.models, ids=lambda spec: spec.folder)
def test_a_model_folder_becomes_a_version_with_its_digests(spec: seed.SeedModel) -> None:
    folder = ROOT / spec.folder
    manifest = json.loads((folder / "manifest.json").read_text())
    version = seed.model_version(spec, manifest, folder)
    assert (version.name, version.tier, version.source) == (manifest["name"], spec.tier, str(folder))
    assert {a.path: a.sha256 for a in version.artifacts} == {f["path"]: f["sha256"] for f in manifest["files"]}
    assert version.context_length >= spec.max_tokens == version.sampling_defaults.max_tokens


@pytest.mark.parametrize(("name", "path"), SEED.policies.items())
def test_a_pattern_pack_becomes_a_policy(name: str, path: str) -> None:
    policy = seed.policy(name, json.loads((ROOT / path).read_text()))
    assert policy.id == name
    assert len({rule.id for rule in policy.rules}) == len(policy.rules) > 0


def test_tenants_are_of_equal_plan_but_the_tiny_one() -> None:
    tenants = {tenant.id: tenant for tenant in SEED.tenants}
    assert tenants["acme"].plan == tenants["globex"].plan == "PLAN_PAID"
    assert tenants["acme"].limits == tenants["globex"].limits
    assert tenants["tiny"].limits["requests_per_minute"] < 10
    assert tenants["admin"].scopes == ("admin", "models.read")
    for tenant in SEED.tenants:
        registry_pb2.Limits(tenant=tenant.id, **tenant.limits)
        registry_pb2.Plan.Value(tenant.plan)
