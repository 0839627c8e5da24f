"""`weir apply`, `set`, `edit` and `delete`, against the registry itself over mTLS."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from libs.resources import documents
from tests.support.operator import Answer, Operator


async def test_a_directory_is_the_source_of_truth(weir: Operator, tmp_path: Path) -> None:
    folder = tmp_path / "company"
    folder.mkdir()
    for name in ("acme", "globex"):
        (folder / f"{name}.yaml").write_text(
            documents.dump({"kind": "Tenant", "metadata": {"name": name}, "spec": PAID})
        )
    dry = await weir("apply", "-f", folder, "--owner", "company", "--dry-run")
    assert dry.out.splitlines() == [
        "tenants/acme would be created",
        "tenants/globex would be created",
        "would be: 2 created, 0 changed, 0 unchanged, 0 pruned (revision 1)",
    ]
    assert dry.err == "nothing was changed: a dry run\n"
    assert (await weir("get", "tenants")).out == "no tenants\n"
    differs = await weir("diff", "-f", folder, "--owner", "company")
    assert (differs.code, differs.out.splitlines()[0]) == (1, "tenants/acme would be created")
    assert (await weir("apply", "-f", folder, "--owner", "company")).code == 0
    assert (await weir("diff", "-f", folder, "--owner", "company")).out == "no differences\n"
    await weir("set", "tenants", "other", "plan=paid", "--create")

    (folder / "globex.yaml").unlink()
    (folder / "acme.yaml").write_text(
        documents.dump({"kind": "Tenant", "metadata": {"name": "acme"}, "spec": {**PAID, "weight": 3.0}})
    )
    done = await weir("apply", "-f", folder, "--owner", "company", "--prune", "--reason", "CI")
    assert done.out.splitlines() == [
        "tenants/acme changed",
        "  spec.weight: - → 3.0",
        "tenants/globex pruned",
        "0 created, 1 changed, 0 unchanged, 1 pruned (revision 4)",
    ]
    assert (await weir("get", "tenants", "-o", "name")).out == "tenants/acme\ntenants/other\n"
    told = (await weir("apply", "-f", folder, "--owner", "company", "--prune", "--json")).json()
    assert told["summary"] == {"created": 0, "changed": 0, "unchanged": 1, "pruned": 0}
    assert not told["dry_run"]

    unowned = await weir("apply", "-f", folder, "--prune")
    assert (unowned.code, "--owner" in unowned.err) == (2, True)
    foreign = await weir("apply", "-f", folder, "--owner", "others")
    assert (foreign.code, foreign.err) == (
        1,
        "error: tenants/acme belongs to 'company', not to 'others' [owner] (CONFLICT); `--take-over` takes it over\n",
    )
    assert (await weir("apply", "-f", folder, "--owner", "others", "--take-over")).code == 0
    (folder / "acme.yaml").write_text("# nothing\n")
    assert "no resources" in (await weir("apply", "-f", folder, "--owner", "company", "--prune")).err
    typed = documents.dump({"kind": "Tenant", "metadata": {"name": "typed"}, "spec": PAID})
    assert "tenants/typed created" in (await weir("apply", "-f", "-", typed=typed)).out


PAID = {"plan": "PLAN_PAID"}


async def test_every_fault_is_told_with_its_place(weir: Operator, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "kind: Tenant\nmetadata: {name: acme}\nspec: {weight: -1, safety_policies: [gone@1]}\n---\n"
        "kind: Limits\nmetadata: {name: gone/*}\n"
    )
    refused = await weir("apply", "-f", path)
    assert refused.code == 1
    assert refused.err.startswith("error: ")
    for place, fault in (
        ("3", "tenants/acme spec.weight: "),
        ("3", "spec.safety_policies[0]: "),
        ("6", "limits/gone/* "),
    ):
        assert any(f"bad.yaml:{place}: " in line and fault in line for line in refused.err.splitlines()), fault
    for text, words in (
        ("kind: Tenat\nmetadata: {name: a}", "no kind 'Tenat'"),
        ("kind: Tenant\nmetadata: {name: a}\nspec: {wieght: 1}", "`weir explain Tenant`"),
        (
            "kind: Tenant\nmetadata: {name: a}\nspec: {weight: heavy}",
            "bad.yaml:3: spec.weight: must be a number, not 'heavy'",
        ),
        ("[1]", "bad.yaml:1: "),
        ("kind: Tenant\nmetadata: {name: a}\n---\nkind: Tenant\nmetadata: {name: a}", "bad.yaml:4: tenants/a is in"),
    ):
        path.write_text(text)
        answer = await weir("apply", "-f", path)
        assert (answer.code, words in answer.err, answer.err.count("\n")) == (2, True, 1), answer.err
        assert (await weir("diff", "-f", path)).code == 2
    path.write_text(
        "kind: Tenant\nmetadata: {name: acme}\nspec:\n  plan: gold\n  weight: heavy\n  wieght: 1\n---\n"
        "kind: Limits\nmetadata:\n  name: acme/*\nspec:\n  concurrency: many\n  spend_window: soon\n---\n"
        "kind: Tennant\n"
    )
    refused = await weir("apply", "-f", path)
    assert (refused.code, refused.err.splitlines()) == (
        2,
        [
            "error: 6 faults, nothing was changed",
            f"  {path}:4: spec.plan: must be one of free, paid; not 'gold'; see `weir explain Tenant`",
            f"  {path}:5: spec.weight: must be a number, not 'heavy'; see `weir explain Tenant`",
            f"  {path}:6: spec.wieght: no such field; did you mean weight?; see `weir explain Tenant`",
            f"  {path}:12: spec.concurrency: must be a whole number from 0, not 'many'; see `weir explain Limits`",
            f"  {path}:13: spec.spend_window: must be a number and ms, s, m, h or d, such as 500ms or 30d; not 'soon'; "
            "see `weir explain Limits`",
            f"  {path}:15: kind: no kind 'Tennant'; did you mean Tenant?; see `weir api-resources`",
        ],
    )
    for words, said in (
        (("get", "tenats"), "did you mean tenants?"),
        (("get", "widgets"), "no kind 'widgets'; `weir api-resources`"),
        (("gte", "tenants"), "did you mean get?"),
        (("get", "tenants", "gone"), "`weir get"),
        (("get", "tenants", "-o", "xml"), "'xml' is none of table wide yaml json name"),
        (("describe", "tenants"), "name one resource"),
        (("delete", "tenants"), "a kind alone is not enough"),
        (("delete",), "KIND NAME…, or -f FILE"),
        (("diff",), "--from REVISION"),
        (("apply",), "--file"),
        (("apply", "-f", "x", "--resaon=y"), "did you mean --reason?"),
        (("explain", "tenants.wieght"), "did you mean weight?"),
        (("rollback", "--reason", "x"), "--to"),
        (("history", "--limit", "0"), "not within 1"),
    ):
        answer = await weir(*words)
        assert answer.code, words
        assert said in answer.err, answer.err
        assert answer.err.count("\n") == 1


async def test_what_get_prints_is_what_apply_takes(full: Operator, tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(
        "kind: Tenant\nmetadata: {name: short}\nspec: {plan: paid, max_deadline: 1m}\n---\nkind: Limits\n"
        "metadata: {name: short/*}\nspec: {spend_microusd: $0.02, spend_window: 1d}\n---\n"
        "kind: PlanPolicy\nmetadata: {name: short}\nspec: {over_quota: serve-idle, weight: 1}\n"
    )
    answer = await full("apply", "-f", path)
    assert answer.code == 0, answer.err
    tenant = (await full("get", "tenants", "short", "--json")).json()["spec"]
    assert (tenant["plan"], tenant["max_deadline"]) == ("PLAN_PAID", "60s")
    limits = (await full("get", "limits", "short/*", "--json")).json()["spec"]
    assert limits == {"spend_microusd": 20_000, "spend_window": "86400s"}
    assert " serve-idle " in (await full("get", "plans", "short")).out
    assert (await full("apply", "-f", path, "--json")).json()["summary"]["unchanged"] == 3


async def test_set_changes_fields_of_any_kind(full: Operator) -> None:
    changed = (
        await full(
            *("set", "tenants", "acme", "weight=3", "plan=free", "max_deadline=2s", "display_name=", "--reason", "why"),
            *("--label", "team=", "--label", "a.b/c=d", "--json"),
        )
    ).json()
    fields = {each["field"]: (each["before"], each["after"]) for each in changed["results"][0]["changes"]}
    assert fields == {
        "spec.weight": (2.0, 3.0),
        "spec.plan": ("PLAN_PAID", "PLAN_FREE"),
        "spec.max_deadline": ("1.500s", "2s"),
        "spec.display_name": ("Ächme, Inc. 😀", None),
        "metadata.labels.team": ("search", None),
        "metadata.labels.a.b/c": (None, "d"),
    }
    for words in (
        ("limits", "acme/*", "spend_microusd=$0.05", "spend_window=1d", "tokens_per_minute=7"),
        ("limits/acme/*", "spec.concurrency=1"),
        ("plan", "gold", "over_quota=refuse", "ladder.0.cap_output.max_tokens=8", "ladder.2="),
        (
            "alias",
            "weir-fast",
            "targets=[{model_version: weir-fast@1, weight: 90}, {model_version: weir-fast@2, weight: 10}]",
        ),
        ("role", "key:k1", "roles=viewer,releaser"),
        ("switch", "rollouts", "freeze=", "reason="),
        ("pin", "weir-fast@2", "reason=1", "--create"),
    ):
        answer = await full("set", *words)
        assert answer.code == 0, answer.err
    limits = (await full("get", "limits", "acme/*", "--json")).json()["spec"]
    assert (limits["spend_microusd"], limits["spend_window"], limits["concurrency"]) == (50_000, "86400s", 1)
    plan = (await full("get", "plans", "gold", "--json")).json()["spec"]
    assert [list(step) for step in plan["ladder"]] == [["cap_output"], ["cached_answer"]]
    assert plan["ladder"][0]["cap_output"]["max_tokens"] == 8
    assert (await full("get", "roles", "key:k1", "--json")).json()["spec"]["roles"] == ["viewer", "releaser"]
    assert (await full("get", "pins", "weir-fast@2", "--json")).json()["spec"]["reason"] == "1"
    for words, said in (
        (("tenants", "gone", "weight=1"), "`weir set … --create` makes one"),
        (("tenants", "acme", "wieght=1"), "did you mean weight?"),
        (("tenants", "acme", "plan=gold"), "spec.plan: must be one of free, paid; not 'gold'"),
        (("tenants", "acme", "weight"), "expected FIELD=VALUE"),
        (("tenants", "acme", "max_deadline=soon"), "500ms"),
        (("plans", "gold", "ladder.7.cap_output.max_tokens=1"), "there are 2 elements"),
        (("tenants", "acme", "weight=-1"), "tenants/acme spec.weight"),
    ):
        answer = await full("set", *words)
        assert answer.code, words
        assert said in answer.err
    tried = await full("set", "tenants", "acme", "weight=9", "--dry-run")
    assert (tried.code, tried.err) == (0, "nothing was changed: a dry run\n")
    assert (await full("get", "tenants", "acme", "--json")).json()["spec"]["weight"] == 3.0


async def test_delete_refuses_what_is_referred_to(full: Operator, one_of_each: Path) -> None:
    needed = await full("delete", "tenants", "acme")
    assert (needed.code, "limits/acme/*" in needed.err) == (1, True)
    assert needed.err.endswith("(CONFLICT); `weir describe tenants acme` says what refers to it\n")
    assert "then repeat" not in needed.err
    ended = await full("rollout", "abort", "weir-fast", "--reason", "x")
    assert "has ended: PROMOTED; `weir rollout start weir-fast` begins another" in ended.err
    gone = await full("delete", "tenants", "gone")
    assert gone.err == "error: there is no tenants/gone (NOT_FOUND); `weir get tenants` lists them\n"
    tried = await full("delete", "limits", "acme/*", "--dry-run")
    assert (tried.out.splitlines()[0], tried.err) == (
        "limits/acme/* would be deleted",
        "nothing was changed: a dry run\n",
    )
    both = await full("delete", "limits/acme/*", "budgets/acme", "--json")
    assert both.json()["summary"] == {"deleted": 2}
    assert (await full("delete", "limits", "acme/*")).code == 1
    key = (await full("get", "keys", "-o", "name")).out.strip()
    assert "weir keys revoke" in (await full("delete", key)).err
    assert (await full("keys", "revoke", key.partition("/")[2])).code == 0
    assert (await full("delete", key)).code == 0
    whole = await full("get", "all", "-o", "name")
    assert "limits" not in whole.out
    again = await full("apply", "-f", one_of_each)
    assert again.out.count(" created\n") == 2
    assert (await full("delete", "-f", one_of_each)).code == 0
    assert (await full("get", "all", "-o", "name")).out == "rollouts/weir-fast\n"
    assert (await full("get", "tenants,limits")).out == "nothing there\n"


def forget(kept: Answer) -> None:
    """Removes the text that a failed edit kept, where it says."""
    Path(kept.err.splitlines()[0].split()[-1].rstrip("`")).unlink()


async def test_edit(full: Operator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def editing(script: str) -> None:
        path = tmp_path / "editor.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("VISUAL", f"{shlex.quote(str(path))} ")

    editing("true")
    assert (await full("edit", "tenants", "acme")).out == "nothing changed\n"
    editing("sed -i 's/weight: .*/weight: 7.0/' $1")
    changed = await full("edit", "tenants", "acme", "--reason", "heavier")
    assert "  spec.weight: 2.0 → 7.0" in changed.out
    for script, said in (
        ("sed -i 's/weight: .*/weight: -7.0/' $1", "spec.weight"),
        ("sed -i 's/name: acme/name: other/' $1", "not tenants/acme alone"),
        ("echo 'kind: ][' > $1", ":1: "),
        ("exit 3", "failed; nothing was changed"),
    ):
        editing(script)
        kept = await full("edit", "tenants", "acme")
        assert kept.code
        assert said in kept.err
        forget(kept)
    meanwhile = f"WEIR_STATE_DIR={shlex.quote(str(full.state))} weir_meanwhile=1"
    command = "exec python -m services.cli set tenants acme weight=8 >&2"
    editing(f"sed -i 's/plan: .*/plan: PLAN_FREE/' $1\n{meanwhile} {command}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    lost = await full("edit", "tenants", "acme")
    assert (lost.code, "(CONFLICT); it was changed meanwhile" in lost.err, "kept in" in lost.err) == (1, True, True)
    forget(lost)


async def test_a_registry_goes_back_although_a_tenant_came_and_has_a_key(full: Operator) -> None:
    then = (await full("get", "all", "--json")).json()["revision"]
    await full("set", "tenants", "late", "plan=paid", "--create")
    await full("set", "tenants", "idle", "plan=paid", "--create")
    await full("keys", "create", "late")
    tried = await full("rollback", "--to", then, "--reason", "x", "--dry-run")
    assert tried.out.splitlines()[:2] == [
        "tenants/idle would be deleted",
        "tenants/late stays: it was made since, and what does not go back needs it",
    ]
    assert (await full("rollback", "--to", then, "--reason", "x", "--json")).json()["kept"] == ["tenants/late"]
    named = await full("rollback", "tenants", "late", "--to", then, "--reason", "x")
    assert (named.code, "`weir keys revoke " in named.err) == (1, True)
