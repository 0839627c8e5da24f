"""`weir get`, `apply` and the other verbs: the same for every kind, against the registry itself over mTLS."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import MemoryStore, Put, keys
from libs.resources.kind import Kind
from libs.resources.snapshot import KINDS
from services.cli import files
from services.cli.commands import schema
from services.cli.kinds import kind_called, names_of
from tests.support.operator import Answer, Operator

EVERY = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
NAMES = {
    "safety": "strict",
    "trust": "team-a",
    "roles": "key:k1",
    "models": "weir-fast@1",
    "aliases": "weir-fast",
    "plans": "gold",
    "tenants": "acme",
    "limits": "acme/*",
    "budgets": "acme",
    "slos": "generate/fast",
    "prices": "weir-fast",
    "pins": "weir-fast@1",
    "switches": "rollouts",
    "error-budgets": "generate/fast",
    "rollouts": "weir-fast",
    "spend": "acme",
    "levels": "demo",
    "endpoints": "worker/worker-0",
}
"""One of each kind; of keys one cannot know."""


def checked(value: Any, by: dict[str, Any], root: dict[str, Any]) -> list[str]:
    """What a JSON Schema of `weir schema` has against a value."""
    by = root["$defs"][by["$ref"].rpartition("/")[2]] if "$ref" in by else by
    if "oneOf" in by:
        return [] if sum(not checked(value, each, root) for each in by["oneOf"]) == 1 else ["is not one of them"]
    if "const" in by or "enum" in by:
        return [] if value in by.get("enum", [by.get("const")]) else [f"{value!r} is none of them"]
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "number": int | float}
    if not isinstance(value, types[by["type"]]) or (by["type"] == "integer" and isinstance(value, bool)):
        return [f"{value!r} is no {by['type']}"]
    if by["type"] == "integer":
        return [] if by["minimum"] <= value <= by["maximum"] else [f"{value} is out of bounds"]
    if by["type"] == "array":
        return [fault for each in value for fault in checked(each, by["items"], root)]
    if by["type"] != "object":
        return []
    faults = [f"{name} is missing" for name in by.get("required", ()) if name not in value]
    for name, each in value.items():
        below = by.get("properties", {}).get(name, by.get("additionalProperties"))
        faults += checked(each, below, root) if below else [f"{name} is unknown"]
    return faults


async def test_every_kind_is_there_under_all_its_names(full: Operator) -> None:
    for kind in KINDS:
        for name in names_of(kind):
            assert kind_called(name) is kind
            assert kind_called(name.upper()) is kind
    assert kind_called("tenant").plural == kind_called("Limit").plural.replace("limits", "tenants")
    listed = (await full("api-resources", "--json")).json()["kinds"]
    assert [each["name"] for each in listed] == [kind.plural for kind in KINDS]
    assert all(each["description"] for each in listed)


@EVERY
async def test_a_kind_can_be_listed_shown_and_explained(kind: Kind, full: Operator) -> None:
    for form in ("table", "wide", "json", "yaml", "name"):
        listed = await full("get", kind.plural, "-o", form)
        assert listed.code == 0, listed.err
        assert listed.out.strip(), form
    assert max(map(len, (await full("get", kind.plural)).out.splitlines())) <= 100
    found = (await full("get", kind.name, "--json")).json()
    assert found["revision"] > 0
    assert {each["kind"] for each in found["resources"]} <= {kind.name}
    explained = await full("explain", kind.plural)
    assert schema.comment(kind.message).split()[0] in explained.out
    assert max(map(len, explained.out.splitlines())) <= 100 or kind.plural == "models"
    if kind.plural not in NAMES:
        return
    name = NAMES[kind.plural]
    single = (await full("get", kind.plural, name, "-o", "json")).json()
    assert single == (await full("get", f"{kind.plural}/{name}", "--json")).json()
    assert (single["kind"], single["metadata"]["name"]) == (kind.name, name)
    assert (await full("get", kind.plural, name, "-o", "name")).out == f"{kind.plural}/{name}\n"
    described = await full("describe", kind.plural, name)
    assert f"name: {name}" in described.out.replace("'", "")
    if kind.applied and kind.plural != "rollouts":
        assert "registry.Apply  the beginning" in described.out
    told = (await full("describe", kind.plural, name, "--json")).json()
    assert told["resource"] == single


@EVERY
async def test_what_is_printed_can_be_applied_and_changes_nothing(kind: Kind, full: Operator, tmp_path: Path) -> None:
    """Byte for byte, and through a registry that has nothing of it."""
    if not kind.applied:
        return
    text = (await full("get", kind.plural, "-o", "yaml")).out
    path = tmp_path / "again.yaml"
    path.write_text(text)
    again = await full("apply", "-f", path, "--json")
    assert again.json()["summary"] == {"created": 0, "changed": 0, "unchanged": text.count("kind: "), "pruned": 0}
    assert (await full("diff", "-f", path)).code == 0
    assert (await full("get", kind.plural, "-o", "yaml")).out == text


async def test_a_whole_registry_goes_through_its_files(full: Operator, tmp_path: Path) -> None:
    every = ",".join(kind.plural for kind in KINDS if kind.applied and kind.plural != "rollouts")
    text = (await full("get", every, "-o", "yaml")).out
    whole = schema.schema_of([kind for kind in KINDS if kind.applied])
    for _, form in files.load_all(text, "all"):
        of_kind = schema.schema_of([kind_called(form["kind"])])
        assert checked(form, of_kind, of_kind) == []
        assert checked(form, whole, whole) == []
        for wrong in ({**form, "sepc": {}}, {**form, "spec": {**form.get("spec", {}), "wieght": 1}}):
            assert len(checked(wrong, of_kind, of_kind)) == 1
            assert checked(wrong, whole, whole)
    (tmp_path / "other").mkdir()
    other, path = Operator(tmp_path / "other"), tmp_path / "all.yaml"
    path.write_text(text)
    async with other.registry(MemoryStore()):
        assert (await other("apply", "-f", path)).code == 0
        assert (await other("get", every, "-o", "yaml")).out == text


async def test_a_directory_is_the_source_of_truth(weir: Operator, tmp_path: Path) -> None:
    folder = tmp_path / "company"
    folder.mkdir()
    for name in ("acme", "globex"):
        (folder / f"{name}.yaml").write_text(files.dump({"kind": "Tenant", "metadata": {"name": name}, "spec": PAID}))
    dry = await weir("apply", "-f", folder, "--owner", "company", "--dry-run")
    assert dry.out.endswith("2 created, 0 changed, 0 unchanged, 0 pruned (revision 1)\n")
    assert dry.err == "nothing was changed: a dry run\n"
    assert (await weir("get", "tenants")).out == "no tenants\n"
    assert (await weir("diff", "-f", folder, "--owner", "company")).code == 1
    assert (await weir("apply", "-f", folder, "--owner", "company")).code == 0
    assert (await weir("diff", "-f", folder, "--owner", "company")).out == "no differences\n"
    await weir("set", "tenants", "other", "plan=paid", "--create")

    (folder / "globex.yaml").unlink()
    (folder / "acme.yaml").write_text(
        files.dump({"kind": "Tenant", "metadata": {"name": "acme"}, "spec": {**PAID, "weight": 3.0}})
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
    assert (foreign.code, "belongs to 'company'" in foreign.err) == (1, True)
    assert (await weir("apply", "-f", folder, "--owner", "others", "--take-over")).code == 0
    (folder / "acme.yaml").write_text("# nothing\n")
    assert "no resources" in (await weir("apply", "-f", folder, "--owner", "company", "--prune")).err
    typed = files.dump({"kind": "Tenant", "metadata": {"name": "typed"}, "spec": PAID})
    assert "tenants/typed created" in (await weir("apply", "-f", "-", typed=typed)).out


PAID = {"plan": "PLAN_PAID"}


async def test_every_fault_is_told_with_its_place(weir: Operator, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "kind: Tenant\nmetadata: {name: acme}\nspec: {weight: -1, safety_policy: gone}\n---\n"
        "kind: Limits\nmetadata: {name: gone/*}\n"
    )
    refused = await weir("apply", "-f", path)
    assert refused.code == 1
    assert refused.err.startswith("error: ")
    for place, fault in (("1", "tenants/acme spec.weight: "), ("1", "spec.safety_policy: "), ("5", "limits/gone/* ")):
        assert any(f"bad.yaml:{place}: " in line and fault in line for line in refused.err.splitlines()), fault
    for text, words in (
        ("kind: Tenat\nmetadata: {name: a}", "no kind 'Tenat'"),
        ("kind: Tenant\nmetadata: {name: a}\nspec: {wieght: 1}", "`weir explain Tenant`"),
        ("kind: Tenant\nmetadata: {name: a}\nspec: {weight: heavy}", "bad.yaml:1: spec: "),
        ("[1]", "bad.yaml:1: "),
        ("kind: Tenant\nmetadata: {name: a}\n---\nkind: Tenant\nmetadata: {name: a}", "bad.yaml:4: tenants/a is in"),
    ):
        path.write_text(text)
        answer = await weir("apply", "-f", path)
        assert (answer.code, words in answer.err, answer.err.count("\n")) == (2, True, 1), answer.err
        assert (await weir("diff", "-f", path)).code == 2
    for words, said in (
        (("get", "tenats"), "did you mean tenants?"),
        (("gte", "tenants"), "did you mean get?"),
        (("get", "tenants", "gone"), "`weir get"),
        (("get", "tenants", "-o", "xml"), "'xml' is none of table wide yaml json name"),
        (("describe", "tenants"), "name one resource"),
        (("delete", "tenants"), "a kind alone is not enough"),
        (("delete",), "KIND NAME…, or -f FILE"),
        (("diff",), "--from REVISION"),
        (("apply",), "--file"),
        (("explain", "tenants.wieght"), "did you mean weight?"),
        (("rollback", "--reason", "x"), "--to"),
        (("history", "--limit", "0"), "not within 1"),
    ):
        answer = await weir(*words)
        assert answer.code, words
        assert said in answer.err, answer.err
        assert answer.err.count("\n") == 1


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
        (("tenants", "acme", "plan=gold"), "'gold' is none of free, paid"),
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
    tried = await full("delete", "limits", "acme/*", "--dry-run")
    assert (tried.out.splitlines()[0], tried.err) == ("limits/acme/* deleted", "nothing was changed: a dry run\n")
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


async def test_labels_select(full: Operator) -> None:
    assert "acme" in (await full("get", "tenants", "-l", "team=search,stage!=2")).out
    assert (await full("get", "tenants", "-l", "team!=search")).out == "no tenants\n"
    bad = await full("get", "tenants", "-l", "=")
    assert (bad.code, "selector" in bad.err) == (1, True)


async def test_history_diff_and_rollback(full: Operator) -> None:
    then = (await full("get", "all", "--json")).json()["revision"]
    await full(
        "set", "alias", "weir-fast", "targets=[{model_version: weir-fast@2, weight: 100}]", "--reason", "it is better"
    )
    await full("set", "tenants", "acme", "weight=9")
    told = await full("history", "aliases", "weir-fast", "-n", "1")
    assert all(word in told.out for word in (str(then + 1), "registry.Apply", "aliases/weir-fast", "it is better"))
    assert max(map(len, told.out.splitlines())) <= 100
    [_, entry, *_] = (await full("history", "--json")).json()["entries"]
    assert (entry["reason"], entry["revision"]) == ("it is better", then + 1)
    assert entry["changes"][0]["before"]["spec"]["targets"][0]["model_version"] == "weir-fast@1"
    assert (await full("history", "tenants", "--before", then, "--json")).json()["entries"]
    differs = await full("diff", "--from", then)
    assert (differs.code, differs.out.splitlines()[0]) == (1, "aliases/weir-fast changed")
    assert (
        await full("diff", "tenants", "acme", "--from", then)
    ).out == "tenants/acme changed\n  spec.weight: 2.0 → 9.0\n"
    assert (await full("diff", "--from", then, "--to", then)).code == 0
    tried = await full("rollback", "--to", then, "--reason", "it was not", "--dry-run")
    assert (tried.code, tried.err) == (0, "nothing was changed: a dry run\n")
    one = await full("rollback", "tenants", "acme", "--to", then, "--reason", "it was not")
    assert "spec.weight: 9.0 → 2.0" in one.out
    done = (await full("rollback", "--to", then, "--reason", "it was not", "--json")).json()
    assert [each["resource"] for each in done["changes"]] == ["aliases/weir-fast"]
    assert (await full("diff", "--from", then)).code == 0
    gone = await full("diff", "--from", "1000000")
    assert gone.code == 2
    lost = await full("rollback", "--to", "1000000", "--reason", "further")
    assert (lost.code, lost.err.startswith("error: ")) == (1, True)


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
    assert (lost.code, "(CONFLICT)" in lost.err, "kept in" in lost.err) == (1, True, True), lost.err
    forget(lost)


async def test_watch_goes_on_behind_a_restart(tmp_path: Path, store: MemoryStore) -> None:
    operator = Operator(tmp_path)
    async with operator.registry(store) as port:
        await operator("set", "tenants", "acme", "plan=paid", "--create")
        watching = await operator.start("watch", "tenants", "-o", "json")
        assert watching.stdout is not None

        async def told() -> tuple[str, str, Any]:
            assert watching.stdout is not None
            line = json.loads(await asyncio.wait_for(watching.stdout.readline(), 20))
            found = line["resource"]
            return line["outcome"], found["metadata"]["name"], found.get("spec", {}).get("weight")

        assert await told() == ("present", "acme", None)
        await operator("set", "tenants", "acme", "weight=2")
        assert await told() == ("changed", "acme", 2.0)
        await operator("set", "limits", "acme/*", "concurrency=1", "--create")
        await operator("delete", "limits", "acme/*")
    moved = pb.Tenant(id="meanwhile", plan=pb.PLAN_FREE)
    await store.txn(puts=[Put(keys.key_of(moved), keys.encode(moved))])
    async with operator.registry(store, port=port):
        assert await told() == ("created", "meanwhile", None)
        await operator("delete", "tenants", "meanwhile")
        assert await told() == ("deleted", "meanwhile", None)
        watching.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(watching.communicate(), 20)
        assert watching.returncode == 130
        assert err.endswith(b"ing again\n"), (
            "following, or listing when the new process has no changes of the old one's time"
        )
        lines = await operator.start("watch", "tenants/acme")
        assert lines.stdout is not None
        assert (await asyncio.wait_for(lines.stdout.readline(), 20)).startswith(b"tenants/acme present (revision ")
        await operator("set", "tenants", "other", "plan=paid", "--create")
        await operator("set", "tenants", "acme", "weight=4")
        assert b"changed" in await asyncio.wait_for(lines.stdout.readline(), 20)
        assert await asyncio.wait_for(lines.stdout.readline(), 20) == "  spec.weight: 2.0 → 4.0\n".encode()
        lines.send_signal(signal.SIGINT)
        await asyncio.wait_for(lines.communicate(), 20)


async def test_export_and_import(full: Operator, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    report = (await full("export", first, "--json")).json()
    assert first.stat().st_mode & 0o077 == 0, "it holds the hashes of keys"
    head, *lines = first.read_text().splitlines()
    assert json.loads(head)["resources"] == report["resources"] == len(lines)
    assert not any('"Endpoint"' in line or '"PoolLevel"' in line for line in lines)
    assert any('"hash"' in line for line in lines)
    await full("set", "tenants", "globex", "plan=paid", "--create")
    await full("set", "tenants", "acme", "weight=9")
    tried = (await full("import", first, "--replace", "--dry-run", "--json")).json()
    assert (tried["changed"], tried["deleted"], tried["dry_run"]) == (1, 1, True)
    done = (await full("import", first, "--replace", "--reason", "back", "--json")).json()
    assert (done["resources"], done["changed"], done["deleted"]) == (len(lines), 1, 1)
    assert (await full("history", "-n", "1", "--json")).json()["entries"][0]["reason"] == "back"
    assert (await full("export", second)).code == 0
    plain = [[json.loads(line) for line in path.read_text().splitlines()[1:]] for path in (first, second)]
    for form in (form for forms in plain for form in forms):
        form["metadata"].pop("revision", None)
    assert plain[0] == plain[1]

    (tmp_path / "other").mkdir()
    other = Operator(tmp_path / "other")
    async with other.registry(MemoryStore()):
        filled = await other("import", first)
        assert filled.code == 0, filled.err
        assert (await other("get", "all", "-o", "yaml")).out == (await full("get", "all", "-o", "yaml")).out
        assert (await other("get", "spend", "acme", "--json")).json()["status"]["month_microusd"] == 70
        assert (await other("get", "keys", "-o", "name")).out == (await full("get", "keys", "-o", "name")).out
    written = first.read_text()
    for damaged in (
        "",
        "[]\n",
        written[:-9],
        written + "{}\n",
        written.replace("gold", "gilt"),
        written.partition("\n")[2],
    ):
        first.write_text(damaged)
        refused = await full("import", first)
        assert (refused.code, refused.err.count("\n")) == (1, 1)
        assert str(first) in refused.err
    nowhere = await full("export", tmp_path / "no" / "where")
    assert (nowhere.code, "nothing was written" in nowhere.err) == (1, True)


async def test_keys(full: Operator) -> None:
    made = await full(
        "keys", "create", "acme", "--scope", "inference", "--ttl", "1h", "--note", "two", "--reason", "asked"
    )
    secret = made.out.strip()
    assert secret.startswith("wk_")
    assert secret.rsplit("_", 1)[1] not in made.err
    public = secret.split("_")[1]
    listed = (await full("get", "keys", public, "--json")).json()["spec"]
    assert (listed["tenant"], listed["scopes"], "hash" in listed) == ("acme", ["inference"], False)
    tried = await full("keys", "create", "acme", "--dry-run")
    assert "would be made" in tried.out
    assert "wk_" not in tried.out + tried.err
    assert "would be revoked" in (await full("keys", "revoke", secret, "--dry-run")).out
    assert "is revoked" in (await full("keys", "revoke", secret)).out
    assert (await full("get", "keys", public, "--json")).json()["spec"]["revoked_at"]
    assert (await full("history", "keys", public, "--json")).json()["entries"][-1]["reason"] == "asked"
    for words, said in (
        (("create", "gone"), "gone"),
        (("create", "acme", "--scope", "root"), "'root'"),
        (("create", "acme", "--ttl", "soon"), "500ms"),
        (("revoke", "gone"), "no key"),
    ):
        answer = await full("keys", *words)
        assert answer.code, words
        assert said in answer.err


async def test_the_shell_completes(full: Operator) -> None:
    async def completed(*words: str) -> list[str]:
        return (await full("__complete", *words)).out.splitlines()

    assert await completed("de") == ["delete", "describe"]
    assert await completed("rollout", "p") == ["pause", "promote"]
    assert await completed("get", "te") == ["tenants"]
    assert await completed("get", "tenants", "") == ["acme"]
    assert await completed("get", "tenants", "-o", "y") == ["yaml"]
    assert await completed("get", "tenants", "-o", "yaml", "a") == ["acme"]
    assert await completed("apply", "--ow") == ["--owner"]
    assert await completed("models", "keys", "tr") == ["trust"]
    assert await completed("completion", "z") == ["zsh"]
    assert await completed("nonsense", "") == []
    for shell in ("bash", "zsh", "fish"):
        assert "weir __complete" in (await full("completion", shell)).out
    assert (await full("completion", "tcsh")).code == 2
    full.services.clear()
    full.describe()
    assert await completed("get", "tenants", "") == []


async def test_a_call_costs_little(full: Operator) -> None:
    """By what is imported for it, which no other load on the machine changes: 150 ms of CPU is the bound."""
    listed = await full.process("get", "tenants", environ={"PYTHONPROFILEIMPORTTIME": "1"})
    assert "acme" in listed.out
    imported = {line.rpartition("|")[2].strip() for line in listed.err.splitlines()}
    assert "grpc" in imported
    dear = {"typer", "click", "rich", "msgspec", "yaml", "libs.errors", "libs.rpc", "libs.registry", "cryptography"}
    assert not imported & (dear | {"google.protobuf.json_format", "services.cli.mesh"})


async def test_replacing_leaves_what_nobody_may_delete(full: Operator, store: MemoryStore, tmp_path: Path) -> None:
    file = tmp_path / "before"
    assert (await full("export", file)).code == 0
    late = pb.Spend(tenant="globex", day="2026-11-23", day_microusd=1)
    await store.txn(puts=[Put(keys.key_of(late), keys.encode(late))])
    await full("set", "tenants", "globex", "plan=paid", "--create")
    done = await full("import", file, "--replace", "--json")
    assert done.json()["deleted"] == 1
    assert "globex" in (await full("get", "spend", "-o", "name")).out


async def test_an_export_is_read_as_it_was_written(full: Operator, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert (await full("export", file)).code == 0
    head, *lines = file.read_text().split("\n")[:-1]
    odd = json.dumps(
        {"kind": "Tenant", "metadata": {"name": "odd"}, "spec": {"display_name": "A\u2028B\x85C"}}, ensure_ascii=False
    )
    for added, why in (
        (odd, ""),
        ('{"kind": "Tenant", "spec": {}}', "damaged"),
        ("[", "damaged"),
        ("[" * 100_000, "damaged"),
        ("7", "a resource has the fields"),
    ):
        text = "".join(f"{line}\n" for line in [*lines, added])
        digest = hashlib.sha256(text.encode()).hexdigest()
        new = {**json.loads(head), "resources": len(lines) + 1, "sha256": digest}
        file.write_text(f"{json.dumps(new)}\n{text}")
        refused = await full("import", file)
        assert (refused.code, refused.err.count("\n")) == ((1, 1) if why else (0, 0)), refused.err
        assert why in refused.err


async def test_an_export_leaves_what_lies_in_its_way(full: Operator, tmp_path: Path) -> None:
    other = tmp_path / f"file.{os.getpid()}.partial"
    other.write_text("somebody's")
    refused = await full("export", tmp_path / "file")
    assert (refused.code, refused.err) == (1, f"error: {other}: File exists; nothing was written\n")
    assert other.read_text() == "somebody's"
