"""gRPC's xDS bootstrap file, named by `GRPC_XDS_BOOTSTRAP` before a process starts that dials `xds:///`.

    python -m libs.xds_bootstrap --out FILE --node-id gateway-0 --zone zone-a --xds 127.0.0.1:7001 \
        [--ca ca.pem --cert gateway.pem --key gateway.key]

Source: gRFC A27 (file format) and A65 (mTLS to the xDS server through "tls" channel credentials). The certificate of
the control plane must carry the host of the address; the files are read again every ten minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from libs.config import TlsFiles

REFRESH_SECONDS = 5
"""How soon a process's connection to the control plane follows its TLS files."""
NODE_CLUSTER = "mesh"
"""What the control plane knows proxyless clients by."""


def render(*, node_id: str, zone: str, xds: Sequence[str], tls: TlsFiles | None) -> str:
    """The bootstrap as JSON.

    :param xds: control planes, "host:port"; later ones are used while earlier ones cannot be reached.
    :param tls: this process's identity; None connects in plaintext (tests only).
    :raises ValueError: no control plane.
    """
    if not xds:
        raise ValueError("at least one control plane is needed")
    servers = [
        {"server_uri": address, "channel_creds": [_credentials(tls)], "server_features": ["xds_v3"]} for address in xds
    ]
    node = {"id": node_id, "cluster": NODE_CLUSTER, "locality": {"zone": zone}}
    return json.dumps({"xds_servers": servers, "node": node}, indent=2)


def _credentials(tls: TlsFiles | None) -> dict[str, Any]:
    if tls is None:
        return {"type": "insecure"}
    config = {
        "ca_certificate_file": tls.ca,
        "certificate_file": tls.cert,
        "private_key_file": tls.key,
        "refresh_interval": f"{REFRESH_SECONDS}s",
    }
    return {"type": "tls", "config": config}


def main(argv: Sequence[str] | None = None) -> None:
    """Write the bootstrap to a file."""
    parser = argparse.ArgumentParser(description="Write gRPC's xDS bootstrap.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--node-id", required=True)
    parser.add_argument("--zone", default="")
    parser.add_argument("--xds", action="append", required=True, help="a control plane, host:port; may be repeated")
    parser.add_argument("--ca")
    parser.add_argument("--cert")
    parser.add_argument("--key")
    options = parser.parse_args(argv)
    tls = TlsFiles(options.ca, options.cert, options.key) if options.ca else None
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(render(node_id=options.node_id, zone=options.zone, xds=options.xds, tls=tls))


if __name__ == "__main__":
    main()
