"""`weir xds`."""

from __future__ import annotations

from typing import Annotated, Any

from services.cli import calls
from services.cli.app import Option, Output, say
from services.cli.output import print_json, print_table

_ACCEPTED = frozenset({"ACKED", "REQUESTED", "DOES_NOT_EXIST"})


def status(
    resources: Annotated[bool, Option(help="One line per resource, not per type.")] = False,
    output: Output = "table",
) -> None:
    """Show every connected client, the versions that it acknowledged and what it refused. Exit code 1 on a refusal."""
    found = _fetch()
    refused = bool(found["refused"]) or any(row["status"] == "NACKED" for row in found["resources"])
    if output == "json":
        print_json(found)
    else:
        say(verdict(found))
        rows = found["resources"] if resources else _by_type(found["resources"])
        columns = ("CLIENT", "CLUSTER", "ZONE", "TYPE", "RESOURCES", "VERSION", "STATUS", "ERROR")
        made = [list(row.values()) for row in rows]
        least = ("VERSION", "ERROR", "TYPE")  # errors stand above, whole
        print_table(
            columns, made, empty="no client is connected", wide=output == "wide", extra=columns[1:3], least=least
        )
    if refused:
        raise SystemExit(1)


def verdict(found: dict[str, Any]) -> str:
    """Whether that is good, in a line."""
    known = f"snapshot revision {found['revision']}"
    clients = {row["client"] for row in found["resources"]}
    bad = [row for row in found["resources"] if row["status"] not in _ACCEPTED]
    late = sorted({row["client"] for row in found["resources"] if row["status"] == "REQUESTED"})
    if found["refused"]:
        return f"not good: {known} is the last that holds together, a newer one is given to nobody: {found['refused']}"
    if bad:
        refusing = {row["client"] for row in bad}
        said = "; ".join(
            f"{each['client']}, {each['type']} {each['name']}: {each['error'] or each['status']}" for each in bad[:3]
        )
        return f"not good: {len(refusing)} of {len(clients)} clients refused, and go on with what they had: {said}"
    if not clients:
        return f"no client is connected, so nobody is told anything ({known}); see `weir status`"
    if late:
        return f"good so far: {', '.join(late)} of {len(clients)} clients have not answered yet ({known})"
    return f"good: all that is connected ({len(clients)}) has acknowledged all that it follows ({known})"


def _fetch() -> dict[str, Any]:
    from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc

    with calls.channel("controlplane") as channel:
        fetch = csds_pb2_grpc.ClientStatusDiscoveryServiceStub(channel).FetchClientStatus
        answer, call = fetch.with_call(csds_pb2.ClientStatusRequest(), timeout=calls.TIMEOUT)
    trailing = {key: str(value) for key, value in call.trailing_metadata() or ()}
    return {
        "revision": int(trailing.get("x-weir-snapshot-revision", "0") or 0),
        "refused": trailing.get("x-weir-snapshot-refused", ""),
        "resources": [row for config in answer.config for row in _rows(config)],
    }


def _rows(config: Any) -> list[dict[str, Any]]:
    from envoy.admin.v3 import config_dump_shared_pb2

    statuses = config_dump_shared_pb2.ClientResourceStatus
    return [
        {
            "client": config.node.id,
            "cluster": config.node.cluster,
            "zone": config.node.locality.zone,
            "type": each.type_url.rpartition(".")[2],
            "name": each.name,
            "version": each.version_info,
            "status": statuses.Name(each.client_status),
            "error": each.error_state.details,
        }
        for each in config.generic_xds_configs
    ]


def _by_type(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per client and type: how many resources, and the worst state among them."""
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["client"], row["type"]), []).append(row)

    def badness(row: dict[str, Any]) -> int:
        return 2 if row["status"] not in _ACCEPTED else int(row["status"] == "REQUESTED")

    return [max(each, key=badness) | {"name": f"{len(each)}"} for each in grouped.values()]


COMMANDS = {"status": status}
