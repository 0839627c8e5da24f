"""A mesh of containers as data: what each process runs, listens on, reads and calls. Pure; whatever writes it down for
an orchestrator takes it from here, and deploy/README.md says what the fields mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from libs import xds_bootstrap
from libs.authority.callgraph import calls, workloads_call
from libs.authority.identity import Identity, Operator, etcd_user
from libs.authority.stores import ROOT_USER, ROWS, Row
from libs.config import TlsFiles
from libs.pki import EDGE, dns_names
from services.cli.mesh.plan import CLIENT
from services.cli.mesh.sites import FOLDER, Container
from services.cli.mesh.units import Plan, Unit

_DURABLE = ("etcd", "audit", "records", "ratelimit", "gateway", "predictor")
"""Whose folders hold more than caches: the registry, the audit log and its key, sums of what that has truncated, what
is left of quotas, audit records that are on their way."""
_WRITE_BLOBS = ("audit",)
_BESIDE_MODELS = 1 << 30
"""Bytes that a process needs beside what its models may take (`memory_bytes`): itself, some 300 MiB, requests that run,
and a version while it is tried out in a process of its own."""
_CALLED_ON = {"etcd": "client"}
"""The port that a service is called on, where it is not "grpc"."""


def describe(plan: Plan, site: Container, *, asked: Sequence[str]) -> dict[str, Any]:
    """The whole mesh, ready for JSON; `asked` are the words behind `weir render` that this is the answer to."""
    return {
        "blobs": {"uri": site.blobs, "path": site.blobs.removeprefix("file://") if _is_folder(site) else ""},
        "processes": {unit.name: _process(unit, plan, site) for unit in plan.units},
        "jobs": _jobs(plan, site, asked),
        "operator": _operator(plan, site),
        "client": _client(plan, site),
    }


def _process(unit: Unit, plan: Plan, site: Container) -> dict[str, Any]:
    process, service = unit.process, unit.process.service
    called = calls(service) - (frozenset() if process.trace else {"collector"})
    peers = [{"process": unit.name, "port": unit.ports["peer"]}] if process.kind == "etcd" and site.members else []
    metrics = unit.ports.get("metrics") or unit.ports["status"]
    live, ready = {"service": ("/livez", "/readyz"), "etcd": ("/health",) * 2, "envoy": ("/ready",) * 2}[process.kind]
    certificates = [_certificate(unit.identity, unit.tls, site)] if unit.identity and unit.tls else []
    if process.kind == "envoy":
        certificates.append(_certificate(Identity(EDGE), site.tls(EDGE), site))
    return {
        "service": service,
        "kind": process.kind,
        "image": _image(unit),
        "host": site.host(unit.name),
        "zone": process.zone,
        "command": list(unit.argv),
        "environment": dict(unit.env),
        "settings": dict(unit.settings),
        "files": {str(path): content for path, content in unit.files.items()},
        "ports": dict(unit.ports),
        "probes": {"port": metrics, "live": live, "ready": ready, "seconds_to_ready": unit.ready_timeout},
        "after": list(process.after),
        "uses": list(process.uses),
        "calls": [_port(each) for each in plan.units if each.process.service in called] + peers,
        "certificates": certificates,
        "secrets": {name: str(path) for name, path in unit.secrets.items()},
        "state": {"path": str(site.state), "durable": service in _DURABLE},
        "blobs": _blobs(site, write=service in _WRITE_BLOBS) if unit.blobs else None,
        "stop_seconds": unit.stop_grace,
        "memory": _memory(unit),
    }


def _memory(unit: Unit) -> int | None:
    """The bytes that a process may take at most, where its settings bound what it loads; None: the image says."""
    models = unit.settings.get("memory_bytes", 0)
    return models + _BESIDE_MODELS if models else None


def _image(unit: Unit) -> str:
    if unit.process.kind != "service":
        return {"envoy": "edge"}.get(unit.process.kind, unit.process.kind)
    if unit.process.service in ("predictor", "records"):
        return unit.process.service
    if unit.process.service != "worker":
        return "control"
    engine = unit.settings.get("engine", "torch")
    return {"simulated": "control", "torch": "engine"}.get(engine, f"engine-{engine}")


def _port(unit: Unit) -> dict[str, Any]:
    """Where a process is called by others."""
    if unit.process.kind == "envoy":
        return {"process": unit.name, "port": unit.ports["https"]}
    return {"process": unit.name, "port": unit.ports[_CALLED_ON.get(unit.process.service, "grpc")]}


def _certificate(identity: Identity | Operator, tls: TlsFiles, site: Container) -> dict[str, Any]:
    """A certificate that must be issued: whose, with which names, and the files in which its bearer wants it."""
    name = etcd_user(identity)
    workload = isinstance(identity, Identity)
    hosts = site.names(identity.service, name) if isinstance(identity, Identity) else ()
    return {
        "name": name,
        "uri": "" if identity == Identity(EDGE) else identity.spiffe,
        "names": dns_names(identity) if isinstance(identity, Identity) else [],
        "hosts": list(hosts),
        "serves": workload,
        "calls": identity != Identity(EDGE),
        **{part: getattr(tls, part) for part in tls.__struct_fields__},
    }


def _jobs(plan: Plan, site: Container, asked: Sequence[str]) -> dict[str, Any]:
    """What is done once, each after what it names. All may be repeated: what is there stays."""
    etcd = [unit for unit in plan.units if unit.process.kind == "etcd"]
    registry = [unit for unit in plan.units if unit.process.service == "registry"]
    direct = [each for each in plan.identities if ROWS.get(each.service, Row()).direct]
    root, person = Identity(ROOT_USER), Operator(site.operator)
    own = site.tls("")
    files = [f"--{part}={getattr(own, part)}" for part in own.__struct_fields__]
    state = {"path": str(site.state), "durable": True}
    return {
        # Makes keys and secrets where nothing else does, and writes for each process, job and person what it sees as
        # /etc/weir into a folder of its own.
        "files": {
            "image": "control",
            "command": ["weir", "init", "files", f"--state={site.state}", "--out=/mesh", *asked],
            "after": [],
            "calls": [],
            "certificates": [],
            "state": state,
            "out": "/mesh",
        },
        # As soon as etcd answers: before this, nobody else is let at it.
        "rights": {
            "image": "control",
            "command": [
                *("weir", "authority", "establish", *files, f"--etcd={','.join(_etcd_addresses(plan, site))}"),
                *(f"{each.service}/{each.instance}" for each in direct),
            ],
            "after": [unit.name for unit in etcd],
            "calls": [_port(unit) for unit in etcd],
            "certificates": [_certificate(root, own, site)],
        },
        # Fills a fresh registry, once it is ready, and prints the demo keys.
        "seed": {
            "image": "control",
            "command": [
                *("weir", "init", "seed", *files, f"--operator={site.operator}", f"--blobs={site.blobs}"),
                *(f"--registry={_address(unit, site)}" for unit in registry[:1]),
                f"--state={site.state}",
            ],
            "after": [unit.name for unit in registry],
            "calls": [_port(unit) for unit in registry],
            "certificates": [_certificate(person, own, site)],
            "state": state,
            "blobs": _blobs(site, write=True),
        },
    }


def _blobs(site: Container, *, write: bool) -> dict[str, Any] | None:
    """The volume of the blob store, which all who use it share; none where it is elsewhere."""
    return {"path": site.blobs.removeprefix("file://"), "write": write} if _is_folder(site) else None


def _operator(plan: Plan, site: Container) -> dict[str, Any]:
    """What `weir` reads as mesh.json beside the processes: the operators' command line in a container of its own."""
    own = site.tls("")
    edge = next((each for each in plan.addresses.values() if "admin_address" in each), None)
    mesh = {
        "services": plan.addresses,
        "edge_url": f"https://{edge['address']}" if edge else "",
        "blobs": site.blobs,
        "operator": site.operator,
        "tls": {part: getattr(own, part) for part in own.__struct_fields__},
    }
    return {
        "image": "control",
        "environment": {"WEIR_STATE_DIR": str(FOLDER)},
        "files": {str(FOLDER / "mesh.json"): json.dumps(mesh, indent=2) + "\n"},
        "calls": [_port(unit) for unit in plan.units if unit.process.kind != "etcd"],
        "certificates": [_certificate(Operator(site.operator), own, site)],
    }


def _etcd_addresses(plan: Plan, site: Container) -> list[str]:
    found = [unit for unit in plan.units if unit.process.kind == "etcd"]
    return [f"{site.host(each)}:{found[0].ports['client']}" for each in site.members or (unit.name for unit in found)]


def _is_folder(site: Container) -> bool:
    return site.blobs.startswith("file://")


def _client(plan: Plan, site: Container) -> dict[str, Any]:
    """What a tenant's workload needs to call the mesh over "xds:///gateway.weir.internal"."""
    xds = [_address(unit, site) for unit in plan.units if unit.process.service == "controlplane"]
    own = site.tls("")
    bootstrap = xds_bootstrap.render(node_id=CLIENT, zone="zone-a", xds=xds, tls=own) if xds else ""
    return {
        "environment": {"GRPC_XDS_BOOTSTRAP": str(FOLDER / "xds.json")},
        "files": {str(FOLDER / "xds.json"): bootstrap},
        "calls": [_port(unit) for unit in plan.units if unit.process.service in workloads_call()],
        "certificates": [_certificate(Identity(CLIENT), own, site)],
    }


def _address(unit: Unit, site: Container) -> str:
    return f"{site.host(unit.name)}:{unit.ports['grpc']}"
