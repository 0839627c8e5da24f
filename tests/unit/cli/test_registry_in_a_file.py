"""`weir export` and `import`, against the registry itself over mTLS."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from weir.registry.v1 import registry_pb2 as pb

from libs.registry import MemoryStore, Put, keys
from tests.support.operator import Operator


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


async def test_an_export_takes_a_links_place_and_leaves_what_it_leads_to(full: Operator, tmp_path: Path) -> None:
    other, file = tmp_path / "other", tmp_path / "file"
    other.write_text("somebody's")
    file.symlink_to(other)
    assert (await full("export", file)).code == 0
    assert (other.read_text(), file.is_symlink(), file.stat().st_mode & 0o777) == ("somebody's", False, 0o600)


async def test_an_export_that_cannot_be_written_says_so(full: Operator, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refused = await full("export", tmp_path / "folder")
    assert (refused.code, refused.err) == (1, f"error: {tmp_path / 'folder'}: Is a directory; nothing was written\n")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".folder")]
