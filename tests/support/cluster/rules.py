"""Network policies and services as rules of iptables, for the network namespace of one pod. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tests.support.cluster.objects import Document, Pod, selects

IN, OUT, DENIED, SERVICES = "WEIR-IN", "WEIR-OUT", "WEIR-DENIED", "WEIR-SERVICES"

HERE = f"""*nat
:{SERVICES} - [0:0]
-A OUTPUT -j {SERVICES}
COMMIT
"""
"""Once per node, whose processes reach services too; `GONE` takes it back."""
GONE = f"""*nat
-D OUTPUT -j {SERVICES}
-F {SERVICES}
-X {SERVICES}
COMMIT
"""
FIRST = f"""*filter
:{IN} - [0:0]
:{OUT} - [0:0]
:{DENIED} - [0:0]
-A {DENIED} -j DROP
-A INPUT -j {IN}
-A OUTPUT -j {OUT}
COMMIT
{HERE}"""
"""Once per pod. What is denied has a chain of its own, so that its count outlives changed rules."""


def policies(pod: Pod, pods: Collection[Pod], gone: Iterable[str], rules: Iterable[Document], node: str) -> str:
    """What a pod may receive and send, for `iptables-restore --noflush`.

    :param gone: addresses where nobody is, which is another thing than a denied flow: of former pods, and of services,
        since whoever is behind one is addressed before these rules are looked at.
    :param node: the address of the node, whose probes always pass.
    """
    own = [rule for rule in rules if selects(rule["spec"].get("podSelector"), pod.labels)]
    lines = ["*filter", f":{IN} - [0:0]", f":{OUT} - [0:0]"]
    for chain, interface in ((IN, "-i"), (OUT, "-o")):
        lines.append(f"-A {chain} {interface} lo -j ACCEPT")
        lines.append(f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
        # The last packets of a connection that conntrack has forgotten are no flow that was tried.
        lines.append(f"-A {chain} -p tcp ! --syn -j DROP")
    lines.append(f"-A {IN} -s {node} -j ACCEPT")
    lines += [f"-A {OUT} -d {address} -j REJECT" for address in gone]
    for chain, direction, peers, way in ((IN, "Ingress", "from", "-s"), (OUT, "Egress", "to", "-d")):
        isolating = [rule for rule in own if direction in rule["spec"]["policyTypes"]]
        if isolating:
            allowed = [each for rule in isolating for each in rule["spec"].get(direction.lower(), [])]
            lines += dict.fromkeys(_allow(chain, way, pod, pods, allowed, peers))
            lines.append(f"-A {chain} -j {DENIED}")
    return "\n".join([*lines, "COMMIT", ""])


def _allow(
    chain: str, way: str, pod: Pod, pods: Collection[Pod], allowed: Sequence[Document], peers: str
) -> Iterator[str]:
    for rule in allowed:
        for address, other in _peers(rule.get(peers), pods):
            receiver = other if chain == OUT else pod
            where = f"-A {chain} " + (f"{way} {address} " if address else "")
            if "ports" not in rule:
                yield f"{where}-j ACCEPT"
            for port in rule.get("ports", []):
                wanted = port["port"] if receiver is None else receiver.port(port["port"])
                protocol = port.get("protocol", "TCP").lower()
                yield f"{where}-p {protocol} --dport {wanted} -j ACCEPT"


def _peers(peers: Sequence[Document] | None, pods: Collection[Pod]) -> Iterator[tuple[str, Pod | None]]:
    """Addresses, with the pods that have them; "" is everybody."""
    if peers is None:
        yield "", None
        return
    for peer in peers:
        if "ipBlock" in peer:
            yield peer["ipBlock"]["cidr"], None
        elif "namespaceSelector" not in peer:  # there is no other namespace here
            yield from ((each.address, each) for each in pods if selects(peer["podSelector"], each.labels))


def services(turn: int, ready: Iterable[Pod], documents: Iterable[Document], addresses: Mapping[str, str]) -> str:
    """Where the addresses of services lead, for `iptables-restore --noflush`: to one of the pods that are ready,
    another one for everybody (`turn`)."""
    ready = sorted(ready, key=lambda pod: pod.name)
    lines = ["*nat", f":{SERVICES} - [0:0]"]
    for service in documents:
        spec = service["spec"]
        behind = [pod for pod in ready if selects({"matchLabels": spec["selector"]}, pod.labels)]
        if spec.get("clusterIP") == "None" or not behind:
            continue
        pod = behind[turn % len(behind)]
        for port in spec["ports"]:
            target = f"{pod.address}:{pod.port(port.get('targetPort', port['port']))}"
            where = f"-d {addresses[service['metadata']['name']]} -p tcp --dport {port['port']}"
            lines.append(f"-A {SERVICES} {where} -j DNAT --to-destination {target}")
    return "\n".join([*lines, "COMMIT", ""])
