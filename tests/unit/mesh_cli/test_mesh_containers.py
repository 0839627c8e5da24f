"""The same mesh in containers: each with its own name, its own key and the addresses of those it calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from libs.authority.callgraph import calls
from libs.config import load
from libs.service.certificate import check_certificate
from services.cli.__main__ import COMMANDS, call
from services.cli.app import parameters, resolve
from services.cli.mesh import initial
from services.cli.mesh.rendering import described
from services.cli.mesh.site import ROOT, load_topology, profiles
from services.cli.mesh.sites import Container
from services.cli.mesh.up import Options, make_plan

PROFILES = [name for name in profiles(ROOT) if name not in ("vllm", "observed")]


def mesh(profile: str = "demo", *overrides: str, **site: Any) -> dict[str, Any]:
    return described(Container(**site), profile, overrides)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for each in value:
            yield from texts(each)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("profile", PROFILES)
def test_nobody_is_called_on_the_machine_itself(profile: str) -> None:
    for text in texts(mesh(profile, public=("weir.example",))):
        assert "127.0.0.1" not in text
        assert "localhost" not in text


def test_a_process_is_told_names_and_finds_its_own_address() -> None:
    gateway = mesh()["processes"]["gateway"]["settings"]
    assert (gateway["host"], gateway["metrics_host"], gateway["advertise"]) == ("0.0.0.0", "0.0.0.0", "auto")
    assert gateway["etcd"] == ["door:18013"]
    assert gateway["xds"] == ["controlplane:18020"]
    assert gateway["trace_endpoint"] == "collector:18028"
    assert gateway["tls"] == {
        "ca": "/etc/weir/tls/ca.crt",
        "cert": "/etc/weir/tls/tls.crt",
        "key": "/etc/weir/tls/tls.key",
    }


def test_every_process_has_one_key_and_envoy_the_edges_too() -> None:
    for name, process in mesh()["processes"].items():
        shown = [each["name"] for each in process["certificates"]]
        assert shown == ([name, "edge"] if name == "envoy" else [name])
        assert len({each["key"] for each in process["certificates"]}) == len(shown)


def test_secrets_go_to_those_who_name_them() -> None:
    holders = {name for name, each in mesh()["processes"].items() if each["secrets"]}
    assert holders == {"registry", "edge-auth", "gateway", "predictor-a", "predictor-b"}
    assert mesh()["processes"]["registry"]["secrets"] == {"pepper": "/etc/weir/secrets/pepper"}
    assert mesh()["processes"]["gateway"]["secrets"].keys() == {"cursors", "answers"}
    assert mesh()["processes"]["predictor-a"]["secrets"] == {"answers": "/etc/weir/secrets/answers"}


def test_the_edge_speaks_plainly_only_when_asked_to() -> None:
    quiet, plain = mesh(), mesh(plain_edge=True)
    assert "http" not in quiet["processes"]["envoy"]["ports"]
    assert quiet["processes"]["controlplane"]["settings"]["edge"]["http_port"] is None
    assert plain["processes"]["envoy"]["ports"]["http"] == 18000
    assert plain["processes"]["controlplane"]["settings"]["edge"]["http_port"] == 18000


def test_envoy_and_the_control_plane_agree_on_where_its_keys_are() -> None:
    processes = mesh()["processes"]
    edge = processes["controlplane"]["settings"]["edge"]
    own, public = processes["envoy"]["certificates"]
    assert edge["identity"] == {part: own[part] for part in ("ca", "cert", "key")}
    assert edge["certificate"] == {part: public[part] for part in ("cert", "key")}
    assert (public["uri"], public["calls"]) == ("", False)


def test_certificates_carry_the_names_that_are_dialled() -> None:
    site = {"public": ("weir.example",), "domains": ("weir.svc",), "members": ("etcd-0", "etcd-1", "etcd-2")}
    processes = mesh(**site)["processes"]
    assert processes["controlplane"]["certificates"][0]["hosts"] == ["controlplane", "controlplane.weir.svc"]
    assert processes["gateway"]["certificates"][0]["hosts"] == []
    assert {"etcd-2.etcd", "etcd-2.etcd.weir.svc"} <= set(processes["etcd"]["certificates"][0]["hosts"])
    assert "weir.example" in processes["envoy"]["certificates"][1]["hosts"]


def test_an_etcd_of_several_members_calls_each_by_its_name() -> None:
    described = mesh(members=("etcd-0", "etcd-1"))
    etcd = described["processes"]["etcd"]
    assert "--name=$(POD_NAME)" in etcd["command"]
    assert "--advertise-client-urls=https://$(POD_NAME).etcd:18010" in etcd["command"]
    assert "--initial-cluster=etcd-0=https://etcd-0.etcd:18011,etcd-1=https://etcd-1.etcd:18011" in etcd["command"]
    assert {"process": "etcd", "port": 18011} in etcd["calls"]
    assert described["processes"]["door"]["settings"]["etcd"] == ["etcd-0.etcd:18010", "etcd-1.etcd:18010"]
    assert "--etcd=etcd-0.etcd:18010,etcd-1.etcd:18010" in described["jobs"]["rights"]["command"]


def test_who_is_used_may_be_called() -> None:
    topology = load_topology(ROOT)
    for name, process in topology.process.items():
        used = {topology.process[each].service for each in process.uses}
        assert used <= calls(process.service), name


def test_calls_are_of_ports_that_are_listened_on() -> None:
    processes = mesh(members=("etcd-0", "etcd-1"))["processes"]
    for each in processes.values():
        assert all(call["port"] in processes[call["process"]]["ports"].values() for call in each["calls"])
    assert {call["process"] for call in processes["etcd"]["calls"]} == {"etcd"}
    assert "etcd" not in {call["process"] for call in processes["gateway"]["calls"]}


def test_engines_have_an_image_of_their_own() -> None:
    assert mesh()["processes"]["worker-a"]["image"] == "engine"
    assert mesh("simulated")["processes"]["worker-a"]["image"] == "control"
    assert mesh()["processes"]["gateway"]["image"] == "control"
    assert mesh()["processes"]["predictor-a"]["image"] == "predictor"
    assert mesh()["processes"]["records"]["image"] == "records"


def packages(image: str) -> set[str]:
    """What an image has beside the layers below it."""
    text = (ROOT / "deploy" / "images" / f"{image}.lock").read_text()
    return {line.partition("==")[0] for line in text.splitlines() if "==" in line}


def test_only_the_store_of_records_has_what_speaks_to_databases() -> None:
    databases = {"sqlalchemy", "alembic", "psycopg", "psycopg-binary"}
    assert databases <= packages("records")
    assert not databases & (packages("control") | packages("predictor") | packages("engine"))


def test_a_predictor_has_no_torch_and_every_other_library_of_a_format() -> None:
    """Nor what only torch brings: with numba and its compiler the image would be 200 MB larger."""
    has = packages("control") | packages("predictor")
    assert {"onnxruntime", "xgboost-cpu", "lightgbm", "scikit-learn", "skops"} <= has
    assert not has & {"torch", "numba", "llvmlite", "sympy"}


def test_replicas_are_found_by_those_who_need_all_of_them() -> None:
    processes = mesh("simulated", "replicas.door=2", "replicas.controlplane=2")["processes"]
    assert processes["gateway"]["settings"]["etcd"] == ["door:18013", "door-2:18060"]
    assert processes["gateway"]["settings"]["xds"] == ["controlplane:18020", "controlplane-2:18061"]


def test_a_blob_store_elsewhere_needs_no_volume() -> None:
    assert mesh()["processes"]["gateway"]["blobs"] == {"path": "/var/lib/weir/blobs", "write": False}
    assert mesh()["processes"]["audit"]["blobs"]["write"]
    assert mesh(blobs="s3://models/weir")["processes"]["gateway"]["blobs"] is None
    assert mesh()["processes"]["router"]["blobs"] is None


def test_what_is_written_down_holds_no_secret() -> None:
    text = json.dumps(mesh())
    assert "PRIVATE KEY" not in text
    assert "wk_" not in text


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each process of a mesh sees as /etc/weir, in a folder of its name."""
    base = tmp_path_factory.mktemp("init")
    initial.write_files(mesh(), base / "mesh", base / "state")
    return base / "mesh"


def test_each_folder_holds_the_keys_of_its_owner_and_no_other(written: Path) -> None:
    keys = {path: path.read_text() for path in written.rglob("*.key")}
    shared = {"seed", "operator"}  # one person
    for folder in written.iterdir():
        own = {text for path, text in keys.items() if path.is_relative_to(folder)}
        others = {
            text
            for path, text in keys.items()
            if not path.is_relative_to(folder) and {folder.name, path.relative_to(written).parts[0]} != shared
        }
        assert len(own) == (2 if folder.name == "envoy" else 1)
        assert not own & others, folder.name
        assert all(path.stat().st_mode & 0o077 == 0 for path in folder.rglob("*.key"))
    assert {path.parent.parent.name for path in written.rglob("pepper")} == {"registry", "edge-auth"}
    assert {path.parent.parent.name for path in written.rglob("cursors")} == {"gateway"}
    assert not list(written.rglob("ca.key"))


def test_every_service_takes_its_settings_and_its_certificate(written: Path) -> None:
    started = []
    for name, process in mesh()["processes"].items():
        if process["kind"] != "service":
            continue
        config = written / name / "config.json"
        tls = written / name / "tls"
        paths = {"WEIR_TLS__CA": "ca.crt", "WEIR_TLS__CERT": "tls.crt", "WEIR_TLS__KEY": "tls.key"}
        environ = {**{key: str(tls / file) for key, file in paths.items()}, "WEIR_ADVERTISE": "10.0.0.1"}
        module = import_module(process["command"][2] + ".config")
        settings = load(module.Settings, ["--config", str(config)], environ)
        check_certificate(settings)
        assert (settings.advertised, settings.port) == ("10.0.0.1", process["ports"]["grpc"])
        started.append(name)
    assert len(started) == 17


def test_a_second_time_nothing_changes(tmp_path: Path) -> None:
    def files() -> dict[Path, tuple[bytes, int]]:
        found = (path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock")
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in found}

    initial.write_files(mesh(), tmp_path / "mesh", tmp_path / "state")
    first = files()
    initial.write_files(mesh(), tmp_path / "mesh", tmp_path / "state")
    assert files() == first


def test_the_steps_are_called_as_they_are_told() -> None:
    site = {"plain_edge": True, "public": ("weir.example", "10.0.0.1"), "members": ("etcd-0",), "operator": "jane"}
    told = mesh("simulated", "worker.pool=demo", **site)
    command = told["jobs"]["files"]["command"]
    assert command[3:] == [
        "--state=/var/lib/weir",
        "--out=/mesh",
        "--profile=simulated",
        "--set=worker.pool=demo",
        "--plain",
        "--members=etcd-0",
        "--public=weir.example,10.0.0.1",
        "--operator=jane",
    ]
    for job in ("files", "seed", "rights"):
        words = told["jobs"][job]["command"]
        node: Any = COMMANDS
        path = list(takewhile(lambda word: not word.startswith("-"), words[1:]))
        for word in path[:2]:
            node = resolve(node)[word]
        known = {flag for each in parameters(resolve(node)) for flag in each.flags}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known


def test_the_plan_of_containers_names_no_folder_of_this_machine() -> None:
    plan = make_plan(Container(), Options(profile="demo"))
    assert not any(str(ROOT) in content for content in plan.files.values())


def test_a_command_that_describes_a_mesh_puts_it_together_from_its_options(tmp_path: Path) -> None:
    words = ["--profile", "simulated", "--set=worker.pool=a", "--set", "worker.drain_grace=1.5"]
    assert call(["init", "files", "--out", str(tmp_path / "out"), "--state", str(tmp_path / "state"), *words]) == 0
    written = json.loads((tmp_path / "out" / "worker-a" / "config.json").read_text())
    assert (written["engine"], written["pool"], written["drain_grace"]) == ("simulated", "a", 1.5)
