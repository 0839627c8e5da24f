"""overlays/ci on a Docker engine, by tests/support/cluster: the manifests as they are, network policies enforced."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.k8s.conftest import documents
from tests.k8s.inside.load import Load
from tests.support.cluster.cluster import Cluster
from tests.support.cluster.node import CommandError
from tests.support.cluster.objects import Pod
from tests.support.engine import ROOT

pytestmark = pytest.mark.timeout(900)  # a bound for a machine that others keep busy; the whole takes 3 minutes
UP_SECONDS = 180.0
SETTLE_SECONDS = 60.0
EDGE = "envoy.weir.svc"
REACH = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = {f"weir-{name}": {name: secrets.token_hex(32).encode() + b"\n"} for name in ("pepper", "cursors", "answers")}
    folder = tmp_path_factory.mktemp("cluster")
    running = Cluster(documents("ci"), folder, made, "weir/control:dev")
    try:
        seconds = running.up(UP_SECONDS)
        print({name: round(each, 1) for name, each in seconds.items()})  # noqa: T201 - figures
        yield running
    finally:
        if folder := os.environ.get("WEIR_TEST_LOGS"):
            running.save_logs(Path(folder))
        running.down()


@pytest.fixture(scope="module")
def load(cluster: Cluster) -> Load:
    keys = dict(re.findall(r"^(WEIR_KEY_\w+)=(\S+)", cluster.node.logs(cluster.of("seed")[0], lines=200), re.MULTILINE))
    url = f"https://{cluster.addresses['envoy']}"
    made = Load(url, EDGE, cluster.ca.pem.decode(), keys["WEIR_KEY_ACME"], "weir-fast")
    # Everybody is ready for himself; who finds whom is another moment, in which a first user gets 503.
    made.settle(SETTLE_SECONDS)
    return made


def reach(cluster: Cluster, pod: Pod, host: str, port: int) -> None:
    """Opens a connection from a pod. Raises CommandError."""
    cluster.node.execute(pod, "python", "-c", REACH, host, str(port))


def test_an_answer_streams_through_the_service_of_the_edge(cluster: Cluster, load: Load) -> None:
    with load.client(keep=True) as client:
        assert len(load.ask(client)) > 20


def test_a_prediction_is_made_through_the_service_of_the_edge(cluster: Cluster, load: Load) -> None:
    golden = Path("models") / "demo" / "cancer-gbdt" / "golden.json"
    case = json.loads((ROOT / golden).read_text(encoding="utf-8"))["cases"][0]
    with load.client(keep=True) as client:
        answer = load.predict(client, "cancer-gbdt", case["inputs"], SETTLE_SECONDS)
    assert answer["parameters"]["weir_version"] == "cancer-gbdt@1"
    assert "weir_degraded" not in answer["parameters"]
    (given,), (wanted,) = answer["outputs"], case["outputs"]
    assert given["data"] == pytest.approx(wanted["data"], rel=1e-5)
    (predictor,) = cluster.of("predictor")
    assert predictor.container["image"] == "weir/predictor:dev"
    cluster.node.execute(predictor, "python", "-c", "import importlib.util as u; assert not u.find_spec('torch')")


def test_the_mesh_needs_nothing_that_the_policies_do_not_allow(cluster: Cluster) -> None:
    assert {name: count for name, count in cluster.denied().items() if count} == {}


def test_an_edge_of_the_call_graph_is_open_and_no_other_flow_is(cluster: Cluster) -> None:
    (gateway, *_), (router,), (safety,) = (cluster.of(each) for each in ("gateway", "router", "safety"))
    reach(cluster, gateway, router.address, router.port("grpc"))
    with pytest.raises(CommandError, match="imed out"):
        reach(cluster, safety, router.address, router.port("grpc"))
    with pytest.raises(CommandError, match="imed out"):
        reach(cluster, gateway, "etcd-0.etcd", 18010)
    assert cluster.denied()[safety.name] > 0  # stopped where it leaves, before where it would arrive
    assert cluster.denied()[router.name] == 0


def test_pods_are_confined(cluster: Cluster) -> None:
    for name in ("gateway", "worker", "envoy"):
        pod = cluster.of(name)[0]
        look = (
            "import os; print(os.getuid(), [l for l in open('/proc/self/status') if l[:4] in ('CapE', 'NoNe', 'Secc')])"
        )
        told = cluster.node.execute(pod, "python3", "-c", look)
        assert told.startswith("10001 ")
        for line in ("CapEff:\\t0000000000000000", "NoNewPrivs:\\t1", "Seccomp:\\t2"):
            assert line in told
        with pytest.raises(CommandError, match="Read-only"):
            cluster.node.execute(pod, "python3", "-c", "open('/usr/share/x', 'w')")


def test_new_certificates_are_shown_without_a_restart(cluster: Cluster) -> None:
    caller, router = cluster.of("gateway")[0], cluster.of("router")[0]
    look = (
        "import socket,ssl,sys; c=ssl.create_default_context(cafile='/etc/weir/tls/ca.crt');"
        "c.load_cert_chain('/etc/weir/tls/tls.crt','/etc/weir/tls/tls.key');"
        "s=c.wrap_socket(socket.create_connection((sys.argv[1],int(sys.argv[2])),3),server_hostname='router.weir.internal');"
        "print(s.getpeercert()['serialNumber'])"
    )
    asked = ("python", "-c", look, router.address, str(router.port("grpc")))
    before = cluster.node.execute(caller, *asked)
    cluster.volumes.renew(router)
    assert cluster.node.execute(caller, *asked) != before


def test_everything_is_replaced_under_load_and_no_request_fails(cluster: Cluster, load: Load) -> None:
    workloads = [each["metadata"]["name"] for each in cluster.manifests.kind("Deployment", "StatefulSet")]
    told = {}
    with load:
        load.wait(5, 60)
        for name in workloads:
            began = time.monotonic()
            ends = cluster.replace(name, 120)
            told[name] = {"s": round(time.monotonic() - began, 1), "end": [round(end.seconds, 1) for end in ends]}
            assert [end.code for end in ends] == [0] * len(ends), name
            load.wait(3, 60)
    print(json.dumps({"requests": load.done.total(), "failed": len(load.failed), "replaced": told}))  # noqa: T201
    assert load.failed == []
    assert load.done["ok"] > len(workloads) * 3
    restarted = {pod.name: state for pod in cluster.pods.values() if (state := cluster.node.state(pod))[2]}
    assert restarted == {}
