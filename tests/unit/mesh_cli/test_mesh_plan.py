"""From topology to command lines, files and ports."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.authority.identity import Identity
from libs.supervisor.policy import levels
from libs.supervisor.spec import GrpcProbe, HttpProbe
from services.cli.mesh.plan import build
from services.cli.mesh.site import ROOT, load_profile, load_topology, profiles
from services.cli.mesh.sites import Container, Laptop
from services.cli.mesh.topology import TopologyError, parse, replica_counts, with_replicas
from services.cli.mesh.units import Plan


def site(base: int = 18000, state: str = "/state") -> Laptop:
    return Laptop(root=ROOT, state=Path(state), port_base=base, interpreter="python", etcd="etcd", envoy="envoy")


def rendered(**fields: Any) -> str:
    return json.dumps({key: str(value) for key, value in fields.items()})


def whole(base: int = 18000, state: str = "/state", profile: str = "demo") -> Plan:
    layer = load_profile(ROOT, profile)
    return build(with_replicas(load_topology(ROOT), replica_counts(layer)), site(base, state), rendered, layer)


@pytest.mark.parametrize("profile", profiles(ROOT))
def test_the_real_topology_makes_a_plan_that_can_be_ordered(profile: str) -> None:
    plan = whole(profile=profile)
    names = {process.name for process in plan.processes}
    start = levels({p.name: p.after for p in plan.processes})
    stop = levels({p.name: (*p.after, *p.uses) for p in plan.processes})
    assert start[0][0] == "etcd"
    assert all(name.startswith("etcd") for name in start[0])
    assert {"envoy", "gateway", "worker-a", "worker-b", "collector"} <= names
    place = {name: number for number, level in enumerate(stop) for name in level}
    assert place["etcd"] < place["worker-a"] < place["gateway"] < place["envoy"]


def test_two_meshes_side_by_side_share_no_port_and_no_path() -> None:
    one, other = whole(18000, "/one"), whole(18500, "/other")
    assert not set(one.ports) & set(other.ports)
    assert not set(one.files) & set(other.files)
    assert "/one/" not in json.dumps([list(p.argv) for p in other.processes])


def test_a_service_gets_its_settings_its_identity_and_its_probe() -> None:
    plan = whole()
    gateway = next(p for p in plan.processes if p.name == "gateway")
    config = json.loads(plan.files[Path("/state/config/gateway.json")])
    assert config["service"] == "gateway"
    assert config["port"] == 18030
    assert config["metrics_port"] == 18130
    assert config["etcd"] == ["127.0.0.1:18013"]
    assert config["tls"]["cert"] == "/state/pki/gateway.pem"
    assert config["trace_endpoint"] == "127.0.0.1:18028"
    assert gateway.argv == ("python", "-m", "services.gateway", "--config", "/state/config/gateway.json")
    assert config["xds"] == ["127.0.0.1:18020"]
    assert isinstance(gateway.readiness, GrpcProbe)
    assert gateway.readiness.server_name == "gateway.weir.internal"
    assert plan.addresses["gateway"]["metrics"] == "127.0.0.1:18130"


def test_workers_of_one_service_differ_in_name_zone_and_ports() -> None:
    plan = whole()
    configs = [json.loads(plan.files[Path(f"/state/config/worker-{x}.json")]) for x in "ab"]
    for field in ("instance", "zone", "port", "metrics_port", "state_dir"):
        assert configs[0][field] != configs[1][field]
    assert configs[0]["tls"]["cert"] == "/state/pki/worker-a.pem"
    own = [each for each in plan.identities if each.service == "worker"]
    assert own == [Identity("worker", f"worker-{x}", "demo", f"zone-{x}") for x in "ab"]


def test_a_process_is_not_called_like_somebody_elses_certificate() -> None:
    for name in ("edge", "demo-client"):
        topology = parse(f'[process.{name}]\nservice = "gateway"\nport = 1')
        with pytest.raises(TopologyError, match="certificate"):
            build(topology, site(), rendered)


def test_etcd_demands_certificates_and_envoy_keeps_to_itself() -> None:
    plan = whole()
    etcd = next(p for p in plan.processes if p.name == "etcd")
    envoy = next(p for p in plan.processes if p.name == "envoy")
    assert "--client-cert-auth" in etcd.argv
    assert "--disable-hot-restart" in envoy.argv
    assert envoy.readiness == HttpProbe(port=18002, path="/ready")
    edge = plan.addresses["envoy"]
    assert edge["address"] == "127.0.0.1:18001"
    assert (edge["plain_address"], edge["admin_address"]) == ("127.0.0.1:18000", "127.0.0.1:18003")


def test_replicas_share_the_edge_and_every_etcd_knows_the_others() -> None:
    topology = with_replicas(load_topology(ROOT), {"etcd": 3, "envoy": 2, "controlplane": 2})
    plan = build(topology, site(), rendered, {"etcd-2": {"zone": "zone-b"}})
    envoys, etcds = ([p for p in plan.units if p.process.kind == kind] for kind in ("envoy", "etcd"))
    assert len({unit.ports["https"] for unit in envoys}) == 1
    assert len({unit.ports["status"] for unit in envoys}) == 2
    assert len({port for unit in etcds for port in unit.ports.values()}) == 9
    peers = ",".join(f"{unit.name}=https://127.0.0.1:{unit.ports['peer']}" for unit in etcds)
    assert all(f"--initial-cluster={peers}" in unit.argv for unit in etcds)
    assert [unit.identity.zone for unit in etcds] == ["zone-a", "zone-b", "zone-a"]
    door = json.loads(plan.files[Path("/state/config/door.json")])
    assert door["etcd"] == [plan.addresses[unit.name]["address"] for unit in etcds] == plan.all("etcd")


def test_a_service_outside_the_traces_exports_none() -> None:
    assert json.loads(whole().files[Path("/state/config/collector.json")])["trace_endpoint"] == ""


def test_ports_that_collide_are_refused_with_both_names() -> None:
    topology = parse("""
[ports]
etcd = 1
[process.controlplane]
service = "controlplane"
port = 20
[process.collector]
service = "collector"
port = 20
""")
    with pytest.raises(TopologyError, match="collector and controlplane both want port 18020"):
        build(topology, site(), rendered)


def test_nobody_watches_unless_a_profile_wants_it() -> None:
    services = {unit.process.service for unit in whole().units}
    assert not services & {"prometheus", "alertmanager"}


def test_prometheus_is_told_where_everything_is_and_shows_no_certificate() -> None:
    plan = whole(profile="observed")
    [unit] = [unit for unit in plan.units if unit.name == "prometheus"]
    assert unit.identity is None
    told = yaml.safe_load(unit.files[Path("/state/config/prometheus.yml")])
    assert all(Path(each).is_file() for each in told["rule_files"])
    [manager] = told["alerting"]["alertmanagers"]
    assert manager["static_configs"] == [{"targets": [plan.addresses["alertmanager"]["address"]]}]
    services, *named = told["scrape_configs"]
    assert [each["url"] for each in services["http_sd_configs"]] == ["http://127.0.0.1:18120/targets"]
    assert {job["job_name"] for job in named} == {"etcd", "envoy", "prometheus", "alertmanager"}
    [envoy] = next(job for job in named if job["job_name"] == "envoy")["static_configs"]
    assert envoy["labels"] == {"instance": "envoy", "__metrics_path__": "/stats/prometheus"}
    assert f"{envoy['targets'][0]}/stats/prometheus" == plan.addresses["envoy"]["metrics"]


def test_containers_have_their_clusters_own_prometheus() -> None:
    layer = load_profile(ROOT, "observed")
    topology = with_replicas(load_topology(ROOT), replica_counts(layer))
    with pytest.raises(TopologyError, match="k8s/components/monitoring"):
        build(topology, Container(), rendered, layer)
