"""A described mesh (`weir render`) as a Compose file. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

CONFIG = "/etc/weir"
"""Where a container finds its settings, its certificates and its secrets: its own folder of the volume `mesh`."""
REPLICATED = ("edge-auth", "ratelimit", "router", "admission", "safety", "gateway")
"""What keeps nothing that another process of its kind could not go on with: two each with the profile `replicas`."""
WITH_REPLICAS = tuple(
    override for service in REPLICATED for override in (f"replicas.{service}=2", f"{service}-2.zone=zone-b")
)
"""Overrides of the mesh that `compose` takes."""
MEMORY = {
    "control": "512m",
    "records": "512m",
    "predictor": "2g",
    "engine": "2g",
    "edge": "512m",
    "etcd": "512m",
}
"""Limits by image, where a process's settings do not say them: several times of what was measured
(docs/performance.md)."""
_MIB = 1 << 20

_CHOSEN = {"engine": "${WEIR_ENGINE:-engine}", "predictor": "${WEIR_PREDICTOR:-predictor}"}
"""Images in whose place whoever starts the mesh may name another one."""
_PROFILE = "${WEIR_PROFILE:-demo}"
_PIP = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
"""Variables that a build takes from whoever starts it."""

_HEADER = """\
# Written by bin/compose-file from deploy/topology.toml: change it there. docs/deploy.md says how to use it.
#
#   docker compose up --wait               the mesh, its edge on http://127.0.0.1:18000 and https://127.0.0.1:18001
#   docker compose logs init               the demo keys
#   docker compose --profile replicas up   with two of each service that keeps no state
#   docker compose run --rm weir status    the operators' command line
#   docker compose run --rm locust         load: chats, internal services and rollouts, 90 seconds
#   docker compose down --volumes          all gone
#
# WEIR_PROFILE=simulated WEIR_ENGINE=control: workers without torch.
# WEIR_PREDICTOR=engine: predictors with torch, for .pt2 models.
# WEIR_HTTP_PORT, WEIR_HTTPS_PORT, WEIR_ADMIN_PORT: ports on this machine.
# WEIR_IMAGES=registry/prefix WEIR_TAG=1.2.3 WEIR_PULL=missing: with images of a registry. Without, none is asked.
"""


_CODE = """\
# Written by bin/compose-file. The services run this checkout's code, which they only read: change it, then restart one.
#
#   export COMPOSE_FILE=docker-compose.yml:docker-compose.code.yml
#   docker compose up --wait; docker compose restart gateway
x-code: &code
  environment:
    PYTHONPATH: /src:/src/protos/gen:/src/libs/sdk:/opt/records:/opt/predictor:/opt/engine
  volumes:
  - .:/src:ro
services:
"""
HARDENED: dict[str, Any] = {
    "init": True,
    "user": "10001:10001",
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "tmpfs": ["/tmp"],  # noqa: S108
    "pids_limit": 512,
    # It keeps the last 100 MB; Docker's usual one keeps everything until the disk is full.
    "logging": {"driver": "local"},
    "networks": ["mesh"],
}
"""What every container begins with: written once, as an anchor."""


class _Merge(str):
    """YAML's `<<`, which takes in another mapping."""


_MERGE = _Merge("<<")


def compose(mesh: Mapping[str, Any]) -> dict[str, Any]:
    """The Compose file of a mesh that was described with `WITH_REPLICAS`."""
    services = {name: _job(name, each) for name, each in _jobs(mesh).items()}
    services |= {name: _process(name, each, mesh) for name, each in mesh["processes"].items()}
    services["weir"] = {
        _MERGE: HARDENED,
        **_image(mesh["operator"]["image"]),
        "profiles": ["tools"],
        "entrypoint": ["weir"],
        "environment": mesh["operator"]["environment"],
        "volumes": [_own("operator")],
    }
    services["locust"] = _load(mesh)
    volumes = sorted({each["source"] for service in services.values() for each in service["volumes"]})
    return {
        "name": "weir",
        "x-hardened": HARDENED,
        "services": services,
        "networks": {"mesh": {}},
        "volumes": {name: {} for name in volumes},
    }


def _load(mesh: Mapping[str, Any]) -> dict[str, Any]:
    """Locust as an internal service, as people with the demo keys and as the operator: it holds the certificates of two
    and the key that signs models, and is only there when asked for."""
    own, operator = mesh["client"]["certificates"][0], mesh["operator"]["certificates"][0]
    ports = {name: each["ports"] for name, each in mesh["processes"].items()}
    return {
        _MERGE: HARDENED,
        **_image("load"),
        "profiles": ["load"],
        "entrypoint": [
            "locust",
            "--locustfile=/opt/load/loadtest/locust/locustfile.py",
            f"--host=https://envoy:{ports['envoy']['https']}",
            f"--ca={own['ca']}",
            "--keys=/run/init/keys.json",
            f"--mesh-ca={own['ca']}",
            f"--internal-cert={own['cert']}",
            f"--internal-key={own['key']}",
            f"--xds-bootstrap={mesh['client']['environment']['GRPC_XDS_BOOTSTRAP']}",
            f"--registry=registry:{ports['registry']['grpc']}",
            f"--operator-cert={operator['cert'].replace(CONFIG, '/run/operator')}",
            f"--operator-key={operator['key'].replace(CONFIG, '/run/operator')}",
            "--signing-key=/run/init/model-signing.key",
            "--only-summary",
        ],
        "command": ["--headless", "--users=20", "--spawn-rate=5", "--run-time=90s", "--stop-timeout=20"],
        "volumes": [
            _own("client"),
            {**_own("operator"), "target": "/run/operator"},
            _volume("init", "/run/init", read_only=True),
        ],
        "depends_on": {"envoy": {"condition": "service_healthy"}},
    }


def with_code(mesh: Mapping[str, Any]) -> str:
    """The text of a file over it, for those who change code: services run the checkout instead of the image's copy."""
    ours = [name for name, each in mesh["processes"].items() if each["kind"] == "service"]
    return _CODE + "".join(f"  {name}: *code\n" for name in [*_jobs(mesh), *ours, "weir"])


def _jobs(mesh: Mapping[str, Any]) -> dict[str, Any]:
    """Under the names that they have here: what prints the demo keys is the one that people look for."""
    return {("init" if name == "seed" else name): each for name, each in mesh["jobs"].items()}


def _process(name: str, process: Mapping[str, Any], mesh: Mapping[str, Any]) -> dict[str, Any]:
    replica = process["service"] in REPLICATED and name.endswith("-2")
    probes = process["probes"]
    ready = f"http://127.0.0.1:{probes['port']}{probes['ready']}"
    volumes = [_own(name), _volume(name, process["state"]["path"])]
    if blobs := process["blobs"]:
        volumes.append(_volume("blobs", blobs["path"], read_only=not blobs["write"]))
    return {
        _MERGE: HARDENED,
        **_image(_CHOSEN.get(process["image"], process["image"])),
        **({"profiles": ["replicas"]} if replica else {}),
        "hostname": process["host"],
        "labels": {
            "weir.service": process["service"],
            "weir.zone": process["zone"],
            # Settings lie in a volume: without this a container would go on with those of another profile.
            "weir.profile": _PROFILE,
        },
        "command": list(process["command"]),
        **({"environment": dict(process["environment"])} if process["environment"] else {}),
        **({"ports": _ports(process["ports"])} if process["kind"] == "envoy" else {}),
        "volumes": volumes,
        "depends_on": _after(process, mesh),
        "healthcheck": {
            "test": ["CMD", "python3", "-S", "-E", "/usr/local/bin/ready", ready],
            # Each look is a process of its own: often only until the first good one.
            "interval": "30s",
            "timeout": "10s",
            "retries": 3,
            "start_period": f"{2 * probes['seconds_to_ready']:.0f}s",
            "start_interval": "1s",
        },
        "mem_limit": f"{most // _MIB}m" if (most := process["memory"]) else MEMORY[process["image"]],
        "stop_grace_period": f"{process['stop_seconds']:.0f}s",
        "restart": "unless-stopped",
    }


def _job(name: str, job: Mapping[str, Any]) -> dict[str, Any]:
    volumes = [_volume("mesh", job["out"])] if "out" in job else [_own("seed" if name == "init" else name)]
    if state := job.get("state"):
        volumes.append(_volume(name, state["path"]))
    if blobs := job.get("blobs"):
        volumes.append(_volume("blobs", blobs["path"]))
    after = {"files": {"condition": "service_completed_successfully"}} if name != "files" else {}
    after |= {each: {"condition": "service_healthy"} for each in job["after"]}
    return {
        _MERGE: HARDENED,
        **_image(job["image"]),
        "command": [f"--profile={_PROFILE}" if each == "--profile=demo" else each for each in job["command"]],
        "volumes": volumes,
        **({"depends_on": after} if after else {}),
        "healthcheck": {"disable": True},
        "mem_limit": MEMORY[job["image"]],
        # On a slow machine a model may take longer to load than `init` waits.
        "restart": "on-failure:3",
    }


def _image(target: str) -> dict[str, Any]:
    build = {"context": ".", "target": target, "args": dict.fromkeys(_PIP)}
    # Compose asks a registry first unless told otherwise: what somebody there calls weir/control would run here.
    pull = "${WEIR_PULL:-never}"
    return {"image": f"${{WEIR_IMAGES:-weir}}/{target}:${{WEIR_TAG:-dev}}", "pull_policy": pull, "build": build}


def _own(name: str) -> dict[str, Any]:
    """What only this container sees of everybody's files."""
    return {**_volume("mesh", CONFIG, read_only=True), "volume": {"subpath": name, "nocopy": True}}


def _volume(name: str, path: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"type": "volume", "source": name, "target": path, **({"read_only": True} if read_only else {})}


def _ports(ports: Mapping[str, int]) -> list[str]:
    """What this machine, and nobody else, reaches of the edge."""
    return [
        f"127.0.0.1:${{WEIR_{name.upper()}_PORT:-{ports[name]}}}:{ports[name]}" for name in ("http", "https", "admin")
    ]


def _after(process: Mapping[str, Any], mesh: Mapping[str, Any]) -> dict[str, Any]:
    """What must have happened before. Only the job `rights` is let at an etcd that has no users yet. The edge opens
    when there is something to serve."""
    done = {"condition": "service_completed_successfully"}
    if process["kind"] == "etcd":
        return {"files": done}
    return {
        "rights": done,
        **{each: {"condition": "service_healthy"} for each in process["after"]},
        **({"init": done} if process["kind"] == "envoy" else {}),
    }


class _Dumper(yaml.SafeDumper):
    """With one anchor, and merges of it; everything else is written out."""

    def generate_anchor(self, node: yaml.Node) -> str:
        return "hardened"

    def ignore_aliases(self, data: object) -> bool:
        return data is not HARDENED


_Dumper.add_representer(_Merge, lambda dumper, data: dumper.represent_scalar("tag:yaml.org,2002:merge", data))


def dump(content: Mapping[str, Any]) -> str:
    """The file's text."""
    return _HEADER + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=120)
