"""`weir models grant|revoke|explain` against a registry in this process."""

from __future__ import annotations

from pathlib import Path

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
        "acme may use weir-fast, granted to tenant:acme\n  it gets weir-fast@1\n",
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
