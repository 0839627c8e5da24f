"""Where locust's load goes: as the options say, or to the mesh of this machine."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from libs.config import TlsFiles
from loadtest.locust.settings import Internal, Settings, SettingsError, public, settings
from services.cli.config import Mesh, NoMeshError

OPTIONS = {
    "host": None,
    "model": "weir-fast",
    "keys": "",
    "ca": "",
    "mesh_ca": "",
    "internal_cert": "",
    "internal_key": "",
    "xds_bootstrap": "",
    "gateway": "xds:///gateway.weir.internal",
    "registry": "",
    "operator_cert": "",
    "operator_key": "",
    "candidate": "",
    "signing_key": "",
    "rollout_steps": "25,50",
    "rollout_step_seconds": 5.0,
    "rollout_samples": 10,
}
ENV = """export WEIR_KEY_ACME=wk_a_1
export WEIR_KEY_GLOBEX=wk_b_2
export WEIR_KEY_TINY=wk_c_3
export GRPC_XDS_BOOTSTRAP=/mesh/xds.json
export WEIR_CLIENT_CERT=/mesh/client.pem
export WEIR_CLIENT_KEY=/mesh/client.key
"""


def options(**given: object) -> Namespace:
    return Namespace(**{**OPTIONS, **given})


def no_mesh() -> Mesh:
    raise NoMeshError("no mesh in .weir")


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    (tmp_path / "env").write_text(ENV)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "model-signing.key").write_text("a key")
    file = {
        "edge_url": "https://localhost:18001",
        "operator": "jane",
        "tls": {"ca": "/mesh/ca.pem", "cert": "/mesh/jane.pem", "key": "/mesh/jane.key"},
        "services": {"registry": {"service": "registry", "address": "127.0.0.1:18021"}},
    }
    return Mesh(tmp_path, file)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"umbrella": "wk_u_9"}))
    return str(path)


def test_without_a_host_it_is_the_mesh_of_this_machine(mesh: Mesh, tmp_path: Path) -> None:
    found = settings(options(), lambda: mesh)
    assert (found.edge, found.ca, found.secure) == ("https://localhost:18001", "/mesh/ca.pem", True)
    assert found.keys == {"acme": "wk_a_1", "globex": "wk_b_2"}, "not the tenant that hardly may anything"
    client = TlsFiles(ca="/mesh/ca.pem", cert="/mesh/client.pem", key="/mesh/client.key")
    assert found.internal == Internal(target="xds:///gateway.weir.internal", tls=client, xds_bootstrap="/mesh/xds.json")
    assert found.operator is not None
    assert (found.operator.registry, found.operator.tls.cert) == ("127.0.0.1:18021", "/mesh/jane.pem")
    assert found.operator.signing_key == str(tmp_path / "secrets" / "model-signing.key")
    assert found.operator.steps == (25, 50)


def test_what_is_given_goes_over_what_the_mesh_says(mesh: Mesh, keys: str) -> None:
    found = settings(options(keys=keys, registry="other:21"), lambda: mesh)
    assert found.keys == {"umbrella": "wk_u_9"}
    assert found.operator is not None
    assert (found.operator.registry, found.edge) == ("other:21", "https://localhost:18001")


def test_with_a_host_nothing_is_taken_from_this_machine(keys: str) -> None:
    found = settings(options(host="https://weir.example/", keys=keys), no_mesh)
    assert found == Settings(edge="https://weir.example", ca="", keys={"umbrella": "wk_u_9"}, model="weir-fast")
    assert found.address == ("weir.example", 443)


def test_a_service_may_call_one_gateway_without_xds(keys: str) -> None:
    given = {"internal_cert": "c", "internal_key": "k", "mesh_ca": "m", "gateway": "gateway:30"}
    found = settings(options(host="http://edge:80", keys=keys, ca="public", **given), no_mesh)
    assert found.internal == Internal(target="gateway:30", tls=TlsFiles(ca="m", cert="c", key="k"), xds_bootstrap="")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, "--host: no URL"),
        ({"host": "weir.example"}, "--host: a URL"),
        ({"host": "https://weir.example"}, "--keys: a file of API keys"),
        ({"host": "https://weir.example", "keys": "/nowhere.json"}, "--keys: /nowhere.json"),
    ],
)
def test_what_does_not_suffice_is_named(given: dict[str, object], fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        settings(options(**given), no_mesh)


INTERNAL = {"internal_cert": "c", "internal_key": "k"}
OPERATOR = {"registry": "r:1", "operator_cert": "c", "operator_key": "k"}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({**INTERNAL, "xds_bootstrap": "x"}, "--internal-cert"),
        ({**INTERNAL, "ca": "a"}, "--xds-bootstrap"),
        ({**OPERATOR, "ca": "a", "operator_key": ""}, "--operator-cert"),
        ({**OPERATOR, "ca": "a", "rollout_steps": "50,100"}, "--rollout-steps"),
    ],
)
def test_whoever_is_half_described_is_refused(given: dict[str, object], fault: str, keys: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        settings(options(host="https://weir.example", keys=keys, **given), no_mesh)


def test_no_key_is_in_an_error_of_a_bad_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"acme": ["wk_secret"]}')
    with pytest.raises(SettingsError) as raised:
        settings(options(host="https://weir.example", keys=str(path)), no_mesh)
    assert "wk_secret" not in str(raised.value)


def test_what_is_shown_of_a_run_names_nobody() -> None:
    given = options(lengths="azure-conversation", context=512, think=2.0, host="https://weir.example")
    assert public(given) == {"model": "weir-fast", "lengths": "azure-conversation", "context": 512, "think": 2.0}
