"""The runner of manifests decides rightly: whom policies let through, what a hosts file says, what it refuses."""

from __future__ import annotations

import pytest

from tests.support.cluster import csi, rules
from tests.support.cluster.objects import (
    Document,
    Manifests,
    Pod,
    UnknownFieldError,
    command,
    environment,
    host_names,
    selects,
)

NODE = "10.0.0.1"


def pod(name: str, address: str, **spec: object) -> Pod:
    container = {"name": name, "image": "x", "ports": [{"name": "grpc", "containerPort": 7}], **spec}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    return Pod(f"{name}-0", address, {"kind": "StatefulSet", "spec": {"serviceName": name, "template": template}})


def policy(selector: Document, **directions: list[Document]) -> Document:
    return {"spec": {"podSelector": selector, "policyTypes": [each.capitalize() for each in directions], **directions}}


A, B, C = pod("a", "10.0.0.2"), pod("b", "10.0.0.3"), pod("c", "10.0.0.4")
DENY = policy({}, ingress=[], egress=[])
A_TO_B = [{"podSelector": {"matchLabels": {"app": "b"}}}]
EGRESS = policy({"matchLabels": {"app": "a"}}, egress=[{"to": A_TO_B, "ports": [{"port": "grpc"}]}])
INGRESS = policy(
    {"matchLabels": {"app": "b"}},
    ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "a"}}}], "ports": [{"protocol": "TCP", "port": 7}]}],
)


def applied(to: Pod, *documents: Document) -> list[str]:
    return rules.policies(to, [A, B, C], ["10.0.0.9"], documents, NODE).splitlines()


def test_without_a_policy_nothing_is_denied() -> None:
    assert not [line for line in applied(A) if line.endswith(f"-j {rules.DENIED}")]


def test_a_denied_pod_is_reached_by_the_node_alone() -> None:
    lines = applied(C, DENY)
    assert [line for line in lines if line.startswith(f"-A {rules.IN} -s")] == [f"-A {rules.IN} -s {NODE} -j ACCEPT"]
    assert {line for line in lines if rules.DENIED in line} == {
        f"-A {rules.IN} -j {rules.DENIED}",
        f"-A {rules.OUT} -j {rules.DENIED}",
    }


def test_an_edge_is_open_at_both_ends_and_on_its_port() -> None:
    leaving = [line for line in applied(A, DENY, EGRESS, INGRESS) if "--dport" in line]
    arriving = [line for line in applied(B, DENY, EGRESS, INGRESS) if "--dport" in line]
    assert leaving == [f"-A {rules.OUT} -d {B.address} -p tcp --dport 7 -j ACCEPT"]
    assert arriving == [f"-A {rules.IN} -s {A.address} -p tcp --dport 7 -j ACCEPT"]
    assert not [line for line in applied(C, DENY, EGRESS, INGRESS) if "--dport" in line]


def test_who_has_gone_refuses_instead_of_being_denied() -> None:
    lines = applied(A, DENY)
    assert lines.index(f"-A {rules.OUT} -d 10.0.0.9 -j REJECT") < lines.index(f"-A {rules.OUT} -j {rules.DENIED}")


def test_a_service_leads_to_a_pod_that_is_ready() -> None:
    service = {
        "metadata": {"name": "s"},
        "spec": {"selector": {"app": "b"}, "ports": [{"port": 80, "targetPort": "grpc"}]},
    }
    told = rules.services(0, [A, B], [service], {"s": "10.1.0.1"})
    assert f"-d 10.1.0.1 -p tcp --dport 80 -j DNAT --to-destination {B.address}:7" in told
    assert "DNAT" not in rules.services(0, [A], [service], {"s": "10.1.0.1"})
    # Then its address is refused, as every service's is that leads nowhere.
    lines = rules.policies(A, [A, B, C], ["10.1.0.0/16"], [DENY], NODE).splitlines()
    assert lines.index(f"-A {rules.OUT} -d 10.1.0.0/16 -j REJECT") < lines.index(f"-A {rules.OUT} -j {rules.DENIED}")


@pytest.mark.parametrize(
    ("operator", "values", "chosen"),
    [("In", ["a"], True), ("NotIn", ["a"], False), ("Exists", None, True), ("DoesNotExist", None, False)],
)
def test_expressions_of_selectors(operator: str, values: list[str] | None, chosen: bool) -> None:
    expression = {"key": "app", "operator": operator, **({"values": values} if values else {})}
    assert selects({"matchExpressions": [expression]}, {"app": "a"}) is chosen


def test_variables_are_filled_in_and_unknown_ones_stay() -> None:
    name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    made = pod("a", "10.0.0.2", env=[name, {"name": "B", "value": "$(POD_NAME)!"}], command=["x", "--at=$(B)", "$(C)"])
    assert environment(made) == {"POD_NAME": "a-0", "B": "a-0!"}
    assert command(made) == (["x", "--at=a-0!", "$(C)"], [])


def test_a_headless_service_names_its_pods() -> None:
    services = [
        {"metadata": {"name": "a"}, "spec": {"clusterIP": "None", "selector": {"app": "a"}}},
        {"metadata": {"name": "b"}, "spec": {"selector": {"app": "b"}}},
    ]
    found = host_names(services, [A, B], {"a": "10.1.0.1", "b": "10.1.0.2"})
    assert found["a-0.a"] == found["a-0.a.weir.svc"] == A.address
    assert found["b"] == found["b.weir.svc.cluster.local"] == "10.1.0.2"
    assert "a" not in found


def test_fields_that_nobody_would_obey_are_refused() -> None:
    odd = pod("a", "10.0.0.2", envFrom=[]).workload | {"metadata": {"name": "a"}}
    with pytest.raises(UnknownFieldError, match="envFrom"):
        Manifests([odd]).check()


def test_the_driver_refuses_attributes_and_variables_that_it_does_not_know() -> None:
    ca = csi.Authority.new()
    with pytest.raises(ValueError, match="uris"):
        csi.files(ca, {"csi.cert-manager.io/uris": "spiffe://x"}, {})
    with pytest.raises(ValueError, match="POD_ZONE"):
        csi.files(ca, {"csi.cert-manager.io/uri-sans": "spiffe://${POD_ZONE}"}, {"POD_NAME": "a"})
