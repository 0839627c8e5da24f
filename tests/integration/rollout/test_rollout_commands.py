"""`weir rollout` and `weir slo` as processes, against the real registry and controller with mTLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb
from weir.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from libs.authority.identity import Operator
from libs.config import TlsFiles
from libs.registry import MemoryStore, RegistryView
from libs.rpc import make_channel
from libs.service.process import serve
from services.registry.app import build as build_registry
from services.registry.config import Settings as RegistrySettings
from services.rollout.app import build
from tests.integration.rollout.rollout_mesh import ALIAS, BOUND, WATCH, following, populate, settings, write
from tests.support.certificates import tls_of

ROOT = Path(__file__).resolve().parents[3]


class Mesh:
    """Registry and controller behind a state directory, a gateway that has reported, and the command."""

    def __init__(self, state: Path, view: RegistryView) -> None:
        self.state = state
        self.view = view
        self.services: dict[str, dict[str, str]] = {}

    def tls(self, who: str | Operator) -> TlsFiles:
        return tls_of(self.state / "pki", who, "gateway-0" if who == "gateway" else "")

    async def weir(self, *arguments: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "services.cli", *arguments),
            cwd=ROOT,
            env={**os.environ, "WEIR_STATE_DIR": str(self.state)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(BOUND):
            out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def json(self, *arguments: str) -> Any:
        code, out, err = await self.weir(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    store = MemoryStore()
    await populate(store)
    await write(store, pb.Slo(route="generate", tier="fast", availability=0.99))
    await write(store, pb.RoleBinding(principal="operator:jane", roles=["owner"]))
    (tmp_path / "pepper").write_text("0123456789abcdef0123456789abcdef\n")
    async with following(store) as view, contextlib.AsyncExitStack() as stack:
        mesh = Mesh(tmp_path, view)
        registry = RegistrySettings(
            service="registry",
            instance="registry-0",
            pepper_file=str(tmp_path / "pepper"),
            audit_target="",
            drain_seconds=0.1,
            tls=mesh.tls("registry"),
        )
        rollout = settings(tls=mesh.tls("rollout"), stale_seconds=60.0)
        for service, config in (
            (await build_registry(registry, store=store), registry),
            (await build(rollout, store=store), rollout),
        ):
            running = await stack.enter_async_context(serve(service, config, deadline_optional=(WATCH,)))
            await running.ready.wait()
            mesh.services[config.service] = {"service": config.service, "address": f"127.0.0.1:{running.port}"}
        own = mesh.tls(Operator("jane"))
        described = {"ca": own.ca, "cert": own.cert, "key": own.key}
        file = {
            "services": mesh.services,
            "edge_url": "http://127.0.0.1:9",
            "operator": "jane",
            "tls": described,
        }
        (tmp_path / "mesh.json").write_text(json.dumps(file))
        address = mesh.services["rollout"]["address"]
        channel = make_channel(address, tls=mesh.tls("gateway"), server_name="rollout.weir.internal")
        await stack.enter_async_context(channel)
        stream = rollout_pb2_grpc.RolloutServiceStub(channel).ReportOutcomes()
        for events in ((0, 0), (95, 5)):
            frame = rollout_pb2.ReportOutcomesRequest(source="gateway-0", incarnation="1")
            told = frame.objectives.add(route="generate", tier="fast").objectives["availability"]
            told.good, told.bad = events
            await stream.write(frame)
            await stream.read()
        stack.callback(stream.cancel)
        yield mesh


async def reached(mesh: Mesh, phase: pb.RolloutPhase) -> None:
    async with asyncio.timeout(BOUND):
        await mesh.view.wait_until(lambda s: ALIAS in s.rollouts and s.rollouts[ALIAS].state.phase == phase)


async def test_a_rollout_from_the_command_line(mesh: Mesh) -> None:
    canary = ("rollout", "start", ALIAS, "2", "--steps", "10,50", "--step-duration", "10m", "--reason", "better")
    tried = await mesh.json(*canary, "--dry-run")
    assert [step["weight"] for step in tried["spec"]["steps"]] == [1000, 5000]
    begun = await mesh.json(*canary)
    assert (begun["spec"]["baseline"], begun["spec"]["arms"][0]["model_version"]) == ("weir-fast@1", "weir-fast@2")
    code, _, err = await mesh.weir(*canary)
    assert code == 1
    assert "under way" in err
    assert "(CONFLICT)" in err
    await reached(mesh, pb.ROLLOUT_PHASE_CANARY)
    code, out, err = await mesh.weir("rollout", "explain", ALIAS)
    assert code == 0, err
    assert "step 1 of 2, 10%" in out
    assert "canary has 0 of at least 100 requests" in out
    assert "by what 1 gateway reported" in out
    paused = await mesh.json("rollout", "pause", ALIAS, "--reason", "lunch")
    assert paused["status"]["paused"]
    assert (await mesh.json("rollout", "advance", ALIAS, "--reason", "on"))["status"]["step"] == 1
    watching = asyncio.create_task(mesh.weir("rollout", "watch", ALIAS, "--interval", "100ms"))
    aborted = await mesh.json("rollout", "abort", ALIAS, "--reason", "enough")
    assert aborted["status"]["phase"] == "ROLLOUT_PHASE_ABORTED"
    code, out, err = await watching
    assert code == 1
    assert "aborted" in out.splitlines()[-1]
    assert "enough" in err
    known = await mesh.json("rollout", "status", ALIAS)
    assert known["leader_instance"] == "rollout-0"
    kinds = [decision["kind"] for decision in known["decisions"]]
    assert kinds == ["abort", "advance", "pause", "advance", "start"]
    again = await mesh.json(*canary)
    assert (again["status"]["phase"], again["spec"]["id"] != begun["spec"]["id"]) == ("ROLLOUT_PHASE_PREPARING", True)


async def test_the_switches(mesh: Mesh) -> None:
    assert (await mesh.json("rollout", "kill", "--on", "--reason", "fire"))["kill"]
    code, _, err = await mesh.weir("rollout", "start", ALIAS, "2", "--reason", "x")
    assert code == 1
    assert "fire" in err
    both = await mesh.json("rollout", "freeze", "--on", "--reason", "more fire")
    assert (both["kill"], both["freeze"]) == (True, True)
    assert not (await mesh.json("rollout", "kill", "--off", "--reason", "out"))["kill"]
    shown = await mesh.json("rollout", "kill")
    assert (shown["kill"], shown["freeze"]) == (False, True)


async def test_burn_rates_and_rules(mesh: Mesh) -> None:
    found = await mesh.json("slo", "status")
    (budget,) = found["budgets"]
    (objective,) = budget["objectives"]
    assert (objective["objective"], objective["good"], objective["bad"]) == ("availability", 95, 5)
    assert objective["burn_rates"]["5m"] == pytest.approx(5.0)
    assert not found["frozen"]
    code, out, err = await mesh.weir("slo", "status", "--tier", "fast", "-o", "wide")
    assert code == 0, err
    assert "BURN 5m" in out
    target = mesh.state / "rules.yml"
    assert (await mesh.weir("slo", "rules", "--out", str(target)))[0] == 0
    assert "weir_slo_events_total" in target.read_text()


async def test_a_dead_process_is_passed_over(mesh: Mesh) -> None:
    described = json.loads((mesh.state / "mesh.json").read_text())
    with contextlib.closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))  # and no listening: connections are refused, and the port is nobody else's
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
        for service in ("registry", "rollout"):
            described["services"][f"a-{service}"] = {"service": service, "address": dead}
        (mesh.state / "mesh.json").write_text(json.dumps(described))
        assert len((await mesh.json("slo", "status"))["budgets"]) == 1
        begun = await mesh.json("rollout", "start", ALIAS, "2", "--steps", "10", "--reason", "better")
        assert begun["metadata"]["name"] == ALIAS
        assert (await mesh.json("rollout", "status", ALIAS))["leader_instance"] == "rollout-0"
        for service in ("registry", "rollout"):
            described["services"][service]["address"] = dead
        (mesh.state / "mesh.json").write_text(json.dumps(described))
        code, _, err = await mesh.weir("rollout", "status", ALIAS)
    assert code == 1
    assert f"rollout does not answer at {dead} or {dead}" in err
