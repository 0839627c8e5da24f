"""The bootstrap files of Envoy and of gRPC."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs import envoy_bootstrap, xds_bootstrap
from libs.config import TlsFiles

TLS = TlsFiles("/pki/ca.pem", "/pki/it's.pem", "/pki/it.key")


def clusters(bootstrap: dict[str, Any]) -> dict[str, Any]:
    return {cluster["name"]: cluster for cluster in bootstrap["static_resources"]["clusters"]}


def test_envoys_bootstrap(tmp_path: Path) -> None:
    text = envoy_bootstrap.render(
        node_id="envoy-0", zone="zone-a", xds=("127.0.0.1:7001", "[::1]:7002"), tls=TLS, status_port=9901
    )
    found = yaml.safe_load(text)
    assert found["node"] == {"id": "envoy-0", "cluster": "edge", "locality": {"zone": "zone-a"}}
    assert found["admin"]["address"] == {"pipe": {"path": "admin.sock", "mode": 0o600}}
    (status,) = found["static_resources"]["listeners"]
    assert status["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 9901}
    cluster = clusters(found)["controlplane"]
    hosts = [
        endpoint["endpoint"]["address"]["socket_address"]
        for endpoint in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    assert hosts == [{"address": "127.0.0.1", "port_value": 7001}, {"address": "::1", "port_value": 7002}]
    tls = cluster["transport_socket"]["typed_config"]["common_tls_context"]
    assert tls["tls_certificates"][0]["certificate_chain"] == {"filename": "/pki/it's.pem"}
    assert tls["validation_context"]["match_typed_subject_alt_names"]


def test_envoys_bootstrap_in_plaintext() -> None:
    text = envoy_bootstrap.render(node_id="e", zone="", xds=("127.0.0.1:1",), tls=None, status_port=0)
    assert "transport_socket" not in clusters(yaml.safe_load(text))["controlplane"]


@pytest.mark.parametrize("xds", [(), ("nowhere",), (":1",), ("host:port",)])
def test_bad_addresses(xds: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"control plane|host:port"):
        envoy_bootstrap.render(node_id="e", zone="", xds=xds, tls=None, status_port=0)


def test_grpcs_bootstrap(tmp_path: Path) -> None:
    out = tmp_path / "state" / "gateway-0.json"
    xds_bootstrap.main(
        f"--out {out} --node-id gateway-0 --zone zone-b --xds 127.0.0.1:7001 --ca a.pem --cert c.pem --key k".split()
    )
    found = json.loads(out.read_text())
    assert found["node"] == {"id": "gateway-0", "cluster": "mesh", "locality": {"zone": "zone-b"}}
    (server,) = found["xds_servers"]
    assert server["server_features"] == ["xds_v3"]
    assert server["channel_creds"][0]["type"] == "tls"
    assert server["channel_creds"][0]["config"]["certificate_file"] == "c.pem"


def test_the_commands_agree(tmp_path: Path) -> None:
    out = tmp_path / "envoy.yaml"
    envoy_bootstrap.main(["--out", str(out), "--node-id", "e", "--xds", "127.0.0.1:1", "--status-port", "2"])
    assert out.read_text() == envoy_bootstrap.render(
        node_id="e", zone="", xds=("127.0.0.1:1",), tls=None, status_port=2
    )
