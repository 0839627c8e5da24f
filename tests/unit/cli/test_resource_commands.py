"""`weir get`, `apply` and the other verbs: the same for every kind, against the registry itself over mTLS."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import MemoryStore, Put, keys
from libs.resources import documents
from libs.resources.kind import Kind
from libs.resources.kinds import KINDS
from services.cli.commands import schema
from services.cli.kinds import kind_called, names_of
from tests.support.operator import Operator

EVERY = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
NAMES = {
    "safety": "strict@1",
    "safety-floor": "mesh",
    "trust": "team-a",
    "roles": "key:k1",
    "models": "weir-fast@1",
    "aliases": "weir-fast",
    "plans": "gold",
    "tenants": "acme",
    "model-grants": "tenant:acme",
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
    for _, form in documents.load_all(text, "all"):
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
