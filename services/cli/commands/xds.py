"""`weir xds`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from services.cli.output import Json, failures, print_fields, print_json, print_table

app = typer.Typer(help="What the control plane serves, and who has taken it.", no_args_is_help=True)
_ACCEPTED = frozenset({"ACKED", "REQUESTED", "DOES_NOT_EXIST"})


@app.command()
def status(
    resources: Annotated[bool, typer.Option(help="One line per resource, not per type.")] = False,
    as_json: Json = False,
) -> None:
    """Show every connected client, the versions that it acknowledged and what it refused. Exit code 1 on a refusal."""
    with failures():
        found = _fetch()
    refused = bool(found["refused"]) or any(row["status"] == "NACKED" for row in found["resources"])
    if as_json:
        print_json(found)
    else:
        print_fields([("snapshot revision", found["revision"]), ("refused snapshot", found["refused"] or "-")])
        _print(found["resources"] if resources else _by_type(found["resources"]))
    if refused:
        raise typer.Exit(1)


def _fetch() -> dict[str, Any]:
    from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc

    from services.cli import calls

    async def fetch(channel: Any) -> tuple[Any, dict[str, str]]:
        stub = csds_pb2_grpc.ClientStatusDiscoveryServiceStub(channel)
        call = stub.FetchClientStatus(csds_pb2.ClientStatusRequest(), timeout=calls.TIMEOUT)
        answer = await call
        trailing = {key: str(value) for key, value in await call.trailing_metadata() or ()}
        return answer, trailing

    answer, trailing = calls.with_channel("controlplane", fetch)
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
    made = []
    for members in grouped.values():
        worst = next((row for row in members if row["status"] not in _ACCEPTED), None)
        waiting = next((row for row in members if row["status"] == "REQUESTED"), None)
        chosen = worst or waiting or members[0]
        made.append({**chosen, "name": f"{len(members)}"})
    return made


def _print(rows: list[dict[str, Any]]) -> None:
    columns = ("client", "cluster", "zone", "type", "name", "version", "status", "error")
    print_table(
        ("CLIENT", "CLUSTER", "ZONE", "TYPE", "RESOURCES", "VERSION", "STATUS", "ERROR"),
        ([row[column] for column in columns] for row in rows),
        empty="no client is connected",
    )
