"""Topology, profiles, overrides: data in, settings out."""

from pathlib import Path

import pytest

from libs import shipped
from services.cli import config as cli_config
from services.cli.mesh.site import ROOT, load_profile, load_topology, locate, profiles
from services.cli.mesh.topology import (
    TopologyError,
    merge,
    parse,
    parse_overrides,
    replica_counts,
    settings_for,
    substitute,
    unknown_names,
    with_replicas,
)

SMALL = """
[ports]
edge = 0
[process.worker-a]
service = "worker"
port = 40
settings = { models = ["a"], engine = { kind = "torch", threads = 1 } }
[process.worker-b]
service = "worker"
port = 41
"""


def test_layers_go_from_general_to_special_and_later_layers_win() -> None:
    topology = parse(SMALL)
    profile = {"worker-a": {"zone_bias": 2}, "*": {"log_level": "info", "zone_bias": 0}, "worker": {"zone_bias": 1}}
    overrides = {"worker": {"engine": {"kind": "simulated"}}}
    assert settings_for(topology, "worker-a", profile, overrides) == {
        "models": ["a"],
        "engine": {"kind": "simulated", "threads": 1},
        "log_level": "info",
        "zone_bias": 2,
    }
    assert settings_for(topology, "worker-b", profile)["zone_bias"] == 1


def test_overrides_are_json_or_words_and_nest() -> None:
    assert parse_overrides(["worker.step_interval=0.02", "worker.engine.kind=simulated", "gateway.off=false"]) == {
        "worker": {"step_interval": 0.02, "engine": {"kind": "simulated"}},
        "gateway": {"off": False},
    }


@pytest.mark.parametrize("bad", ["worker", "worker=1", "worker.x", ".x=1", "worker.=1"])
def test_a_malformed_override_is_refused(bad: str) -> None:
    with pytest.raises(TopologyError, match=r"NAME\.FIELD=VALUE"):
        parse_overrides([bad])


def test_names_that_exist_nowhere_are_found() -> None:
    assert unknown_names(parse(SMALL), {"worker": 0, "worker-a": 0, "*": 0, "wroker": 0}) == ["wroker"]


def test_merge_leaves_its_arguments_alone() -> None:
    base = {"a": {"b": 1}, "c": 2}
    assert merge(base, {"a": {"d": 3}, "c": {"e": 4}}) == {"a": {"b": 1, "d": 3}, "c": {"e": 4}}
    assert base == {"a": {"b": 1}, "c": 2}


def test_a_string_that_is_one_variable_takes_its_type() -> None:
    variables: dict[str, str | int] = {"port.etcd": 18010, "state": "/s"}
    assert substitute({"p": "${port.etcd}", "l": ["${state}/x:${port.etcd}", 3]}, variables) == {
        "p": 18010,
        "l": ["/s/x:18010", 3],
    }
    with pytest.raises(TopologyError, match=r"\$\{nothing\}"):
        substitute("${nothing}", variables)


@pytest.mark.parametrize(
    "text",
    ["process = 1", "[process.a]\nservice='a'", "[process.a]\nservice='a'\nkind='etcd'\nport=1", "[", "other = 1"],
)
def test_a_malformed_topology_is_refused(text: str) -> None:
    with pytest.raises(TopologyError):
        parse(text)


def test_every_profile_names_only_what_the_topology_has() -> None:
    topology = load_topology(ROOT)
    assert {"demo", "simulated", "bench"} <= set(profiles(ROOT))
    readme = (ROOT / "deploy" / "README.md").read_text()
    assert not [name for name in profiles(ROOT) if f"`{name}`" not in readme]
    for name in profiles(ROOT):
        profile = load_profile(ROOT, name)
        assert unknown_names(with_replicas(topology, replica_counts(profile)), profile) == []
    with pytest.raises(TopologyError, match="no profile 'nothing'"):
        load_profile(ROOT, "nothing")


def test_environment_moves_the_mesh() -> None:
    site = locate({"WEIR_PORT_BASE": "28500", "WEIR_STATE_DIR": "/var/tmp/other"})
    assert (site.port_base, site.state) == (28500, Path("/var/tmp/other"))
    assert locate({}).port_base == 18000
    assert locate({}).state == ROOT / ".weir"
    with pytest.raises(TopologyError, match="WEIR_PORT_BASE"):
        locate({"WEIR_PORT_BASE": "ninety"})


MANY = """
[ports]
edge = 60
[process.etcd]
kind = "etcd"
service = "etcd"
[process.gateway]
service = "gateway"
port = 30
zone = "zone-b"
after = ["etcd"]
uses = ["admission"]
[process.gateway-b]
service = "gateway"
port = 31
[process.admission]
service = "admission"
port = 32
after = ["etcd"]
settings = { grace = 1 }
[process.checker]
service = "checker"
port = 33
after = ["gateway"]
uses = ["gateway-b", "admission"]
"""


def test_replicas_are_copies_of_the_first_process_for_those_who_know_it() -> None:
    topology = with_replicas(parse(MANY), {"admission": 3, "gateway": 3})
    assert list(topology.process) == [
        "etcd", "gateway", "gateway-b", "admission", "checker", "admission-2", "admission-3", "gateway-2",
    ]  # fmt: skip
    assert topology.process["gateway-2"].zone == "zone-b"
    assert topology.process["gateway-2"].uses == ("admission", "admission-2", "admission-3")
    assert topology.process["admission-3"].settings == {"grace": 1}
    assert topology.process["checker"].after == ("gateway", "gateway-2")
    ports = [process.port for process in topology.process.values() if process.kind == "service"]
    assert len(set(ports)) == len(ports)
    assert 60 not in ports


def test_replicas_beyond_the_count_go_from_everywhere() -> None:
    topology = with_replicas(parse(MANY), {"gateway": 1})
    assert "gateway-b" not in topology.process
    assert topology.process["checker"].uses == ("admission",)


def test_replica_counts_come_from_all_layers_and_are_no_names_of_services() -> None:
    profile = {"replicas": {"gateway": 2, "admission": 2}, "*": {"log_level": "info"}}
    overrides = parse_overrides(["replicas.gateway=4"])
    assert replica_counts(profile, overrides) == {"gateway": 4, "admission": 2}
    assert unknown_names(parse(MANY), profile) == []


@pytest.mark.parametrize("counts", [{"gateway": 0}, {"gateway": True}, {"gateway": "2"}, {"gateway": 1.5}])
def test_a_count_of_replicas_is_a_whole_number(counts: dict[str, object]) -> None:
    with pytest.raises(TopologyError, match=r"replicas\.gateway"):
        replica_counts({"replicas": counts})


def test_a_mesh_can_be_without_predictors() -> None:
    counts = replica_counts({"replicas": {"predictor": 0}})
    without = with_replicas(load_topology(ROOT), counts).process
    assert not [name for name, each in without.items() if "predictor" in (each.service, *each.uses, *each.after)]
    assert without.keys() | {"predictor-a", "predictor-b"} == load_topology(ROOT).process.keys()


def test_nobody_has_no_replicas() -> None:
    with pytest.raises(TopologyError, match="nobody"):
        with_replicas(parse(MANY), {"nobody": 2})


def test_replicas_need_ports() -> None:
    with pytest.raises(TopologyError, match="no port"):
        with_replicas(parse(MANY), {"gateway": 100})


def test_a_wheel_keeps_its_mesh_in_a_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cli_config, "INSTALLED", True)
    monkeypatch.chdir(tmp_path)
    assert cli_config.state_dir({"XDG_STATE_HOME": "/home/jane/state"}) == Path("/home/jane/state/weir")
    assert cli_config.state_dir({}) == Path.home() / ".local" / "state" / "weir"
    assert cli_config.state_dir({"WEIR_STATE_DIR": "mesh"}) == tmp_path / "mesh"


def test_a_file_that_comes_with_the_program_is_found_from_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = "deploy/calibration/weir-fast.toml"
    assert shipped.find(path) == ROOT / path
    own = tmp_path / path
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert shipped.find(path).resolve() == own
