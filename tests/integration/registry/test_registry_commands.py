"""`weir registry` as operators run it, against a real registry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.config import TlsFiles
from libs.pki import issue
from libs.registry import MemoryStore
from libs.rpc import make_channel
from libs.service.process import serve
from services.registry.app import build
from tests.support.registry_service import Client, alias, model, settings, tenant


class Mesh:
    """A registry, and the state directory that leads the command to it."""

    def __init__(self, state: Path, client: Client) -> None:
        self.state = state
        self.client = client

    async def run(self, *arguments: object) -> tuple[int, str, str]:
        """Exit code, output and errors of `weir registry …`."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.cli",
            "registry",
            *(str(argument) for argument in arguments),
            env={**os.environ, "WEIR_STATE_DIR": str(self.state)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def json(self, *arguments: object) -> Any:
        code, out, err = await self.run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    pki = tmp_path / "pki"
    tls = {
        name: TlsFiles(**{field: getattr(issue(pki, name), field) for field in ("ca", "cert", "key")})
        for name in ("registry", "cli")
    }
    config = settings(tmp_path, tls=tls["registry"])
    service = await build(config, store=MemoryStore())
    async with serve(service, config) as running, contextlib.AsyncExitStack() as stack:
        await running.ready.wait()
        address = f"127.0.0.1:{running.port}"
        described = {
            "services": {"registry-0": {"service": "registry", "address": address}},
            "edge_url": "",
            "tls": {"ca": str(tls["cli"].ca), "cli_cert": str(tls["cli"].cert), "cli_key": str(tls["cli"].key)},
        }
        (tmp_path / "mesh.json").write_text(json.dumps(described))
        channel = make_channel(address, tls=tls["cli"], server_name="registry.weir.internal", translate_errors=True)
        yield Mesh(tmp_path, Client(await stack.enter_async_context(channel)))


async def test_history_diff_and_rollback(mesh: Mesh) -> None:
    await mesh.client.CreateModelVersion(model())
    await mesh.client.CreateModelVersion(model(version="2"))
    then = (await mesh.client.SetAlias(alias())).alias.revision
    target = pb.AliasTarget(model_version="weir-fast@2", weight=100)
    moved = pb.Alias(name="weir-fast", targets=[target], revision=-1)
    request = pb.SetAliasRequest(alias=moved, change=pb.ChangeOptions(reason="it is better"))
    now = (await mesh.client.SetAlias(request)).alias.revision

    code, out, _ = await mesh.run("history", "aliases/", "--limit", 1)
    assert code == 0
    assert all(word in out for word in (str(now), "registry.SetAlias", "aliases/weir-fast", "it is better"))
    assert str(then) not in out.split()
    listed = (await mesh.json("history"))["entries"]
    assert [entry["revision"] for entry in listed[:2]] == [now, then]
    assert listed[0]["changes"][0]["before"]["targets"][0]["model_version"] == "weir-fast@1"

    code, out, _ = await mesh.run("diff", then)
    assert (code, out.splitlines()[0]) == (0, "~ aliases/weir-fast")
    assert '"weir-fast@1"' in out.splitlines()[1]
    code, out, _ = await mesh.run("rollback", then, "--reason", "it was not", "--dry-run")
    assert (code, out.splitlines()[-1]) == (0, "nothing was changed: a dry run")
    done = await mesh.json("rollback", then, "--reason", "it was not")
    assert done["revision"] > now
    models = await mesh.client.ListModels(pb.ListModelsRequest())
    assert models.aliases[0].targets[0].model_version == "weir-fast@1"
    code, _, err = await mesh.run("rollback", 1, "--reason", "further")
    assert code == 1
    assert "NOT_FOUND" in err


async def test_export_and_import(mesh: Mesh, tmp_path: Path) -> None:
    await mesh.client.SetTenant(tenant("acme"))
    await mesh.client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    report = await mesh.json("export", first)
    assert report["values"] == 2
    assert first.stat().st_mode & 0o077 == 0
    await mesh.client.SetTenant(tenant("globex"))
    code, _, err = await mesh.run("import", first)
    assert code == 1
    assert "CONFLICT" in err
    done = await mesh.json("import", first, "--replace", "--reason", "back")
    assert (done["imported"], done["deleted"]) == (2, 1)
    again = await mesh.json("export", second, "--history")
    assert again["values"] > report["values"]
    entries = (await mesh.client.ListHistory(pb.ListHistoryRequest(limit=1))).entries
    assert entries[0].reason == "back"


async def test_roles(mesh: Mesh) -> None:
    given = await mesh.json("grant", "key:k1", "--role", "viewer", "--role", "publisher", "--namespace", "team-a")
    assert (given["roles"], given["namespaces"]) == (["viewer", "publisher"], ["team-a"])
    code, out, _ = await mesh.run("roles")
    assert code == 0
    assert "viewer, publisher" in out
    code, _, err = await mesh.run("grant", "nobody", "--role", "viewer")
    assert code == 1
    assert "binding.principal" in err
