"""`weir up`: from nothing to a streamed completion, or to nothing again."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from libs import envoy_bootstrap, xds_bootstrap
from libs.errors import WeirError, http_status
from libs.registry.authorities import establish
from libs.shipped import ROOT
from libs.supervisor.reading import last_lines
from libs.supervisor.spec import SupervisorSpec
from services.cli import edge
from services.cli.mesh import lifecycle, loading, monitoring, predicting, preflight, report, seed, site
from services.cli.mesh.lifecycle import StartError
from services.cli.mesh.plan import CLIENT, SHARED, build
from services.cli.mesh.sites import Laptop, Site
from services.cli.mesh.topology import TopologyError, parse_overrides, replica_counts, unknown_names, with_replicas
from services.cli.mesh.units import Plan

Say = Callable[[str], None]

PROMPT = "Tell me about rivers."
MAX_TOKENS = 120
# Readiness is per process; the last endpoint may still be on its way through the control plane to Envoy (tens of
# milliseconds). A 503 in this window is not a failure yet.
SETTLE_SECONDS = 60.0


class NotAnsweringError(Exception):
    """A mesh that answered before is up and does not answer now: what is registered cannot be served, such as a version
    that is no longer trusted. It stays up, because that can only be mended in its registry; the message says why."""


@dataclass(slots=True)
class Timeline:
    """When what was reached, in seconds since this command was started."""

    started: float
    """Seconds since the epoch."""
    ready: dict[str, float] = field(default_factory=dict)

    def now(self) -> float:
        """Seconds since the start."""
        return time.time() - self.started


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the person asked for."""

    profile: str
    overrides: tuple[str, ...] = ()


def make_plan(where: Site, options: Options, *, root: Path = ROOT) -> Plan:
    """The plan of a mesh; below `root` is the folder `deploy`. Raises TopologyError."""
    layers = (site.load_profile(root, options.profile), parse_overrides(options.overrides))
    topology = with_replicas(site.load_topology(root), replica_counts(*layers))
    for layer in layers:
        if unknown := unknown_names(topology, layer):
            raise TopologyError(f"no service or process is called {', '.join(unknown)}")
    return build(topology, where, envoy_bootstrap.render, *layers)


def up(where: Laptop, options: Options, *, say: Say, write: Callable[[str], None]) -> None:
    """Brings the mesh up. `say` gets whole lines, `write` pieces of text as they are produced.

    Raises StartError, PreflightError or TopologyError, with nothing left running; KeyboardInterrupt likewise. Raises
    NotAnsweringError with the mesh running. Raises Busy when another mesh than the wanted one runs in the state
    directory.
    """
    timeline = Timeline(psutil.Process().create_time())
    plan = make_plan(where, options, root=where.root)
    site.prepare(where, plan)
    try:
        lock = lifecycle.Lock(where.state)
    except lifecycle.Busy:
        _already_up(where, options, say)
        return
    with _terminated_as_interrupt():
        try:
            _start(where, plan, lock)
            _bring_up(where, plan, options, timeline, say=say, write=write)
        except NotAnsweringError:
            lock.close()
            raise
        except BaseException:
            lock.close()
            lifecycle.clear(where.state)
            raise
        lock.close()


def _already_up(where: Laptop, options: Options, say: Say) -> None:
    """Somebody else holds the lock: wait until the mesh is up and say so."""
    status = lifecycle.status(where.state)
    if status is None:
        raise lifecycle.Busy("another `weir up` is preparing this mesh; try again when it is done")
    if status["state"] == "starting":
        say("another `weir up` is starting this mesh; waiting for it")
        status = next(each for each in lifecycle.watch(where.state) if each["state"] != "starting")
    if status["state"] != "up":
        raise lifecycle.Busy(f"the mesh in {where.state} is {status['state']}")
    running = site.read_json(where.state / "last_up.json")
    wanted = (options.profile, list(options.overrides))
    if running and (running["profile"], running["overrides"]) != wanted:
        raise lifecycle.Busy(
            f"the mesh is already up with profile {' '.join([running['profile'], *running['overrides']])}; "
            "`weir down` first to start another"
        )
    # An etcd that lost its data has lost its users too.
    _authorize(where, make_plan(where, options, root=where.root))
    say(f"the mesh is already up: {len(status['processes'])} processes, state in {where.state}")
    if running:
        edge = running["environment"]["WEIR_EDGE_TLS_URL"]
        say(f"edge {edge}; `source {where.state / 'env'}` for keys; `weir status`, `weir down`")


def _start(where: Laptop, plan: Plan, lock: lifecycle.Lock) -> None:
    own = {each.name: each.argv[0] for each in plan.processes if each.argv[1:2] == ("-m",)}
    faults = [
        *preflight.check_packages(preflight.PACKAGES),
        *preflight.check_programs({"etcd": where.etcd, "envoy": where.envoy}),
        *preflight.check_programs(
            {each: getattr(where, each) for each in monitoring.SERVICES if plan.all(each)}, "bin/prometheus PROGRAM"
        ),
        *preflight.check_interpreters({name: path for name, path in own.items() if path != where.interpreter}),
        *missing_models(where),
        *preflight.check_ports(plan.ports, host=where.listen),
    ]
    if faults:
        raise preflight.PreflightError("\n".join(faults))
    site.write_files(plan)
    control_planes = plan.all("controlplane")
    where.client_bootstrap.write_text(
        xds_bootstrap.render(node_id=CLIENT, zone="zone-a", xds=control_planes, tls=where.tls(CLIENT))
    )
    spec = SupervisorSpec(state_dir=str(where.state), processes=plan.processes, shared=SHARED)
    lifecycle.launch(spec, lock, without=site.VARIABLES)


def missing_models(where: Laptop) -> list[str]:
    """One line per demo model that is not there."""
    return [
        f"the model in {spec.folder} is missing: `git checkout {spec.folder}` or `make demo-models`"
        for spec in seed.load(where.root).models
        if not (where.root / spec.folder / "manifest.json").is_file()
    ]


def _bring_up(
    where: Laptop, plan: Plan, options: Options, timeline: Timeline, *, say: Say, write: Callable[[str], None]
) -> None:
    say(f"starting {len(plan.processes)} processes (profile {options.profile}, state in {where.state})")
    _authorize(where, plan)
    seeded: seed.Seeded | None = None
    status: dict[str, Any] = {}
    for status in lifecycle.watch(where.state):
        for name in _newly_ready(status, timeline):
            say(f"  ready {name:14} {timeline.ready[name]:6.2f} s")
        if seeded is None and "registry" in timeline.ready:
            seeded = _seed(where, plan)
        if status["state"] != "starting":
            break
    if status.get("state") != "up" or seeded is None:
        raise _start_failure(where, status)
    variables = report.environment(where, plan, seeded.keys)
    site.write_secret(where.state / "env", report.shell(variables))
    (where.state / "mesh.json").write_text(report.mesh_file(where, plan, status, options.profile))
    model = seeded.models[0]
    predicted: predicting.First | None = None
    try:
        _wait_loaded(where, plan, seeded)
        if _predicts(plan, seeded):
            predicted = _first_prediction(where, plan, seeded.keys["acme"])
            say(_said_of(predicted))
        say(f"\n{model}, as tenant acme: {PROMPT}")
        answer, attempts = _first_completion(where, plan, seeded.keys["acme"], model, write)
    except StartError as error:
        if (where.state / "last_up.json").exists():
            raise NotAnsweringError(str(error)) from error
        raise
    to_first = timeline.now() - (time.monotonic() - answer["first_text_at"])
    say(
        f"\n({answer['model']}, {'simulated' if answer['simulated'] else 'real'}, finish {answer['finish_reason']}; "
        f"time to first token {answer['ttft_s'] * 1000:.0f} ms, {to_first:.1f} s after the start of this command)"
    )
    result = {
        "profile": options.profile,
        "overrides": list(options.overrides),
        "to_first_token_s": round(to_first, 3),
        "ttft_ms": round(answer["ttft_s"] * 1000, 1),
        "attempts": attempts,
        "ready_s": {name: round(seconds, 3) for name, seconds in timeline.ready.items()},
        "model": answer["model"],
        "simulated": answer["simulated"],
        "request_id": answer["request_id"],
        "environment": {name: value for name, value in variables.items() if "KEY" not in name},
    }
    (where.state / "last_up.json").write_text(json.dumps(result, indent=2) + "\n")
    if predicted and (why := _lacking(where, plan, seeded.predicting)):
        say(f"not all demo models can be had: {why}")
    asked = predicting.MODEL if predicted else ""
    say(report.summary(where, variables, model=model, predicting=asked, profile=options.profile))


def _authorize(where: Laptop, plan: Plan) -> None:
    """Gives the processes their rights in etcd, which is not ready, and nobody is let at it, before; see `EtcdProbe`.

    Returns also when the mesh has failed meanwhile.
    """
    address = plan.addresses["etcd"]["address"]
    while (status := lifecycle.status(where.state)) is not None and status["state"] in ("starting", "up"):
        try:
            asyncio.run(establish([address], where.etcd_root, plan.identities))
        except WeirError:
            continue  # it is about to start; the call has waited for it
        return


def _newly_ready(status: Mapping[str, Any], timeline: Timeline) -> Iterator[str]:
    for process in status["processes"]:
        if process["ready"] and process["name"] not in timeline.ready:
            timeline.ready[process["name"]] = timeline.now()
            yield process["name"]


def _seed(where: Laptop, plan: Plan) -> seed.Seeded:
    known = where.secrets / "keys.json"
    planted = seed.plant(
        where.root,
        address=plan.addresses["registry"]["address"],
        tls=where.operator_tls,
        operator=where.operator,
        keys=site.read_json(known),
        blobs=where.blobs,
        signing_key=where.signing_key,
    )
    try:
        seeded = asyncio.run(planted)
        site.write_secret(known, json.dumps(seeded.keys, indent=2) + "\n")
        return seeded
    except seed.SeedError as error:
        raise StartError(str(error), _log_tail(where, "registry")) from error


def _wait_loaded(where: Laptop, plan: Plan, seeded: seed.Seeded) -> None:
    if why := _lacking(where, plan, [*seeded.models, *([predicting.MODEL] if _predicts(plan, seeded) else [])]):
        worker = next((name for name, each in plan.addresses.items() if each["service"] == "worker"), "registry")
        raise StartError(why, _log_tail(where, worker))


def _lacking(where: Laptop, plan: Plan, aliases: list[str]) -> str:
    """Why some of these models cannot be asked; "" once all can."""
    address = plan.addresses["registry"]["address"]
    try:
        asyncio.run(loading.wait_loaded(aliases, address=address, tls=where.operator_tls))
    except (loading.LoadError, WeirError) as error:
        return str(error)
    return ""


def _predicts(plan: Plan, seeded: seed.Seeded) -> bool:
    return predicting.MODEL in seeded.predicting and bool(plan.all("predictor"))


def _first_prediction(where: Laptop, plan: Plan, key: str) -> predicting.First:
    ca, url = where.tls("demo-client").ca, report.edge_url(plan)
    try:
        return asyncio.run(predicting.first(where.root, url, ca=ca, key=key, settle=SETTLE_SECONDS))
    except WeirError as error:
        predictor = next(name for name, each in plan.addresses.items() if each["service"] == "predictor")
        raise StartError(f"the first prediction failed: {error}", _log_tail(where, predictor)) from error


def _said_of(first: predicting.First) -> str:
    given = float(first.prediction["probability"][0])
    return (
        f"\n{predicting.MODEL}, as tenant acme: a tumour that it has not seen\n"
        f"malignant with probability {given:.4f}, {first.expected:.4f} where it was trained "
        f"({first.prediction.version}, {first.seconds * 1000:.1f} ms through the edge)"
    )


def _first_completion(
    where: Laptop, plan: Plan, key: str, model: str, write: Callable[[str], None]
) -> tuple[dict[str, Any], int]:
    """As any client would ask over HTTP: the answer, and how often it took to ask."""
    url = report.edge_url(plan)
    ca = where.tls("demo-client").ca
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": MAX_TOKENS, "seed": 7}
    deadline = time.monotonic() + SETTLE_SECONDS
    attempts = 0
    while True:
        attempts += 1
        try:
            answer = edge.chat(url, ca=ca, key=key, body=body, timeout=30.0, show=write)
        except WeirError as error:
            soon = isinstance(error, edge.Refused) and http_status(error.reason) == 503
            if soon and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            raise StartError(f"the first completion failed: {error}", _log_tail(where, "gateway")) from error
        if not answer["text"] or answer["finish_reason"] not in ("stop", "length"):
            why = f"no text came (finish reason {answer['finish_reason'] or 'none'})"
            raise StartError(f"the first completion failed: {why}", _log_tail(where, "gateway"))
        return answer, attempts


def _start_failure(where: Laptop, status: Mapping[str, Any]) -> StartError:
    """What to say when the supervisor gave up. It stops everything before it says that it failed."""
    failure = status.get("failure")
    if failure is None:
        return StartError(f"the mesh is {status.get('state', 'gone')}", _log_tail(where, "supervisor"))
    lines = failure["last_lines"] or ["(it wrote nothing)"]
    return StartError(f"{failure['name']} {failure['reason']}", lines)


def _log_tail(where: Laptop, name: str) -> list[str]:
    path: Path = where.state / "logs" / f"{name}.log"
    return last_lines(path, 20) if path.exists() else []


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end an `up` like Ctrl-C does: with everything stopped."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
