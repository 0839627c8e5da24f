"""`weir models grant|revoke|explain` against a registry in this process."""

from __future__ import annotations

from pathlib import Path

from weir.registry.v1 import registry_pb2 as pb

from libs.authority.models import ModelAccess
from libs.registry import RegistrySnapshot
from libs.resources.codec import unpack
from libs.resources.forms import from_plain
from services.cli import files
from services.cli.mesh import seed
from services.cli.mesh.site import ROOT
from tests.support.operator import Operator


async def granted(weir: Operator, subject: str) -> dict[str, object]:
    spec: dict[str, object] = (await weir("get", "model-grant", subject, "--json")).json()["spec"]
    return spec


async def test_grants_add_up_and_are_taken_back_one_by_one(full: Operator) -> None:
    made = await full(
        "models", "grant", "plan:gold", "--namespace", "lab", "--namespace", "lab", "--model", "weir-fast"
    )
    assert made.code == 0, made.err
    assert "plan:gold is granted what is released in the namespaces lab" in made.out
    again = await full("models", "grant", "plan:gold", "--pinned", "lab", "--reason", "they make them", "--json")
    assert again.json() == {
        "subject": "plan:gold",
        "namespaces": ["lab"],
        "models": ["weir-fast"],
        "pinned_namespaces": ["lab"],
        "also": {},
        "dry_run": False,
    }
    assert "they make them" in (await full("history", "model-grant", "plan:gold", "-o", "wide")).out
    left = await full("models", "revoke", "plan:gold", "--model", "weir-fast", "--pinned", "lab")
    assert left.code == 0, left.err
    assert await granted(full, "plan:gold") == {"namespaces": ["lab"]}
    gone = await full("models", "revoke", "plan:gold", "--namespace", "lab")
    assert gone.out == "nothing is granted to plan:gold any more\n"
    assert (await full("get", "model-grant", "plan:gold")).code == 1


async def test_a_dry_run_changes_nothing(full: Operator) -> None:
    dry = await full("models", "revoke", "tenant:acme", "--everything", "--dry-run")
    assert (dry.code, dry.out) == (0, "nothing would be granted to tenant:acme any more\n")
    assert (await granted(full, "tenant:acme"))["models"] == ["weir-fast", "weir-fast@1"]


async def test_what_makes_no_sense_is_refused(full: Operator) -> None:
    for words, said in (
        (("grant", "all"), "say what is meant: --namespace, --model, --pinned"),
        (("grant", "tenant:nobody", "--namespace", "lab"), "no tenant 'nobody'"),
        (("grant", "plan:nobody", "--namespace", "lab"), "no plan policy 'nobody'"),
        (("grant", "acme", "--namespace", "lab"), "must be 'tenant:<id>', 'plan:<id>' or 'all'"),
        (("grant", "all", "--model", "gone"), "no alias or model version 'gone'"),
        (("revoke", "all", "--namespace", "lab"), "all is not granted --namespace lab"),
        (("revoke", "all", "--everything"), "nothing is granted to all"),
    ):
        refused = await full("models", *words)
        assert refused.code != 0, words
        assert said in refused.err, words


async def test_what_a_grant_names_stays_until_the_grant_goes(full: Operator) -> None:
    refused = await full("delete", "alias", "weir-fast")
    assert refused.code == 1
    assert "model-grants/tenant:acme" in refused.err.lower() or "tenant:acme" in refused.err
    described = await full("describe", "tenant", "acme")
    assert "model-grants/tenant:acme" in described.out


async def test_explain_says_by_which_grant_or_what_is_missing(full: Operator, tmp_path: Path) -> None:
    told = await full("models", "explain", "acme", "weir-fast")
    assert (told.code, told.out) == (
        0,
        "acme may use weir-fast, granted to tenant:acme\n  it gets weir-fast@1\n  grants that apply to acme:\n"
        "    tenant:acme is granted what is released in the namespaces team-a; the models weir-fast, weir-fast@1; "
        "every version, by its name, of the namespaces team-a\n"
        "    plan:gold is granted nothing\n    all is granted nothing\n",
    )
    revoked = await full("models", "revoke", "tenant:acme", "--everything")
    assert revoked.code == 0, revoked.err
    for name, remedy in (
        ("weir-fast", "weir models grant tenant:acme --namespace"),
        ("weir-fast@1", "weir models grant tenant:acme --model weir-fast@1"),
    ):
        told = await full("models", "explain", "acme", name)
        assert told.code == 1
        assert "for this tenant it does not exist" in told.out
        assert "there are no model grants at all" in told.out
        assert remedy in told.out
        command = told.out.split("to allow it: weir ")[1].split()
        assert (await full(*command)).code == 0
        allowed = (await full("models", "explain", "acme", name, "--json")).json()
        assert allowed["allowed"]
        assert (allowed["by"], allowed["model_version"], allowed["remedy"]) == (["tenant:acme"], "weir-fast@1", "")
        assert (await full("models", "revoke", "tenant:acme", "--everything")).code == 0
    for words, said in (
        (("nobody", "weir-fast"), "no tenant is called 'nobody'"),
        (("acme", "x"), "no alias or version"),
    ):
        told = await full("models", "explain", *words)
        assert told.code == 1
        assert said in told.err


async def test_what_else_still_applies_is_said(full: Operator) -> None:
    granted = await full("models", "grant", "all", "--namespace", "default")
    assert granted.out.splitlines() == [
        "all is granted what is released in the namespaces default",
        "  beside that, tenant:acme is granted what is released in the namespaces team-a; the models weir-fast, "
        "weir-fast@1; every version, by its name, of the namespaces team-a",
    ]
    assert "all is every tenant, also those that come later" in granted.err
    revoked = await full("models", "revoke", "tenant:acme", "--everything")
    assert revoked.out.splitlines() == [
        "nothing is granted to tenant:acme any more",
        "  beside that, all is granted what is released in the namespaces default",
    ]
    plan = await full("models", "grant", "plan:gold", "--namespace", "lab", "--json")
    assert list(plan.json()["also"]) == ["all"]


async def test_a_version_that_comes_by_an_alias_is_told_as_that(full: Operator) -> None:
    await full("models", "revoke", "tenant:acme", "--everything")
    await full("models", "grant", "all", "--namespace", "default")
    told = await full("models", "explain", "acme", "weir-fast@1")
    assert told.code == 1
    assert told.out.splitlines()[:2] == [
        "acme may not use weir-fast@1 by its name: for this tenant it does not exist",
        "  it gets this version by the alias weir-fast; a name needs a grant of its own",
    ]
    assert "    all is granted what is released in the namespaces default" in told.out.splitlines()


def test_tenants_of_the_example_see_their_own_names_only() -> None:
    found = seed.resources(ROOT)
    found += [from_plain(document) for _, document in files.read([str(ROOT / "examples" / "company")])]
    messages = [unpack(each) for each in found]
    of = {kind: [each for each in messages if type(each) is kind] for kind in (pb.Tenant, pb.ModelGrant, pb.Alias)}
    aliases = {each.name: each for each in of[pb.Alias]}
    for name in ("weir-fast", "weir-quality"):
        aliases[name] = pb.Alias(name=name, targets=[pb.AliasTarget(model_version=f"{name}@1", weight=100)])
    snapshot = RegistrySnapshot(
        tenants={each.id: each for each in of[pb.Tenant]},
        model_grants={each.subject: each for each in of[pb.ModelGrant]},
        aliases=aliases,
        model_versions={f"{name}@1": pb.ModelVersion(name=name, version="1") for name in ("weir-fast", "weir-quality")},
    )
    access = ModelAccess.of(snapshot, ModelAccess())
    seen = {tenant: {name for name in aliases if access.may_use(tenant, name)} for tenant in snapshot.tenants}
    assert seen["stone-search"] == {"stone-search-model"}
    assert seen["stone-documents"] == seen["stone-lab"] == {"weir-fast", "weir-quality"}
    assert seen["acme"] == seen["tiny"] == set(aliases)
