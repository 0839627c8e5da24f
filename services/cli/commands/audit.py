"""`weir audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.output import Json, failed, failures, plain, print_fields, print_json, timestamp

app = typer.Typer(help="The audit log.", no_args_is_help=True)
VERIFY_SECONDS = 300.0
"""Verification reads the whole log."""


@app.command()
def tail(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many records.")] = 20,
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    as_json: Json = False,
) -> None:
    """Show the newest records, oldest of them first."""
    from weir.audit.v1 import audit_pb2, audit_pb2_grpc

    from services.cli import calls

    request = audit_pb2.TailRequest(limit=limit, tenant=tenant)
    with failures():
        answer = calls.with_channel(
            "audit", lambda channel: audit_pb2_grpc.AuditServiceStub(channel).Tail(request, timeout=calls.TIMEOUT)
        )
    if as_json:
        print_json({"records": [_plain(stored) for stored in answer.records]})
        return
    for stored in answer.records:
        print(
            f"{stored.sequence:>8}  {timestamp(stored.record.time)}  {stored.record.source:<20}  {_line(stored.record)}"
        )
    if not answer.records:
        print("no records")


@app.command()
def verify(
    directory: Annotated[
        Path | None, typer.Option(help="Verify the files in this folder (log, checkpoints, keys), not the service's.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="The folder of segments, when not DIRECTORY/log.")] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(help="The folder of checkpoints.log, when not DIRECTORY/checkpoints.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="The checkpoints' public key, when not DIRECTORY/keys/checkpoint.pub.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify the whole chain against its signed checkpoints. Exit code 1 when anything does not hold."""
    with failures():
        if directory is None and log is None:
            report = _verify_online()
        else:
            base = directory or Path()
            report = _verify_files(
                log or base / "log", checkpoints or base / "checkpoints", public_key or base / "keys" / "checkpoint.pub"
            )
    if as_json:
        print_json(report)
    else:
        print("the audit log holds" if report["ok"] else "the audit log DOES NOT HOLD")
        print_fields((name, report[name]) for name in ("records", "checkpoints", "head"))
        for fault in report["faults"]:
            print(f"fault: {fault}")
        for note in report.get("notes", ()):
            print(f"note: {note}")
    if not report["ok"]:
        raise typer.Exit(1)


def _verify_online() -> dict[str, Any]:
    from weir.audit.v1 import audit_pb2, audit_pb2_grpc

    from services.cli import calls

    answer = calls.with_channel(
        "audit",
        lambda channel: audit_pb2_grpc.AuditServiceStub(channel).Verify(
            audit_pb2.VerifyRequest(), timeout=VERIFY_SECONDS
        ),
    )
    return plain(answer)


def _verify_files(log: Path, checkpoints: Path, public_key: Path) -> dict[str, Any]:
    from libs.auditlog.keys import KeyFileError
    from libs.auditlog.verify import verify_directory

    if not log.is_dir():
        raise failed(f"{log} is no folder")
    try:
        report = verify_directory(log, checkpoints=checkpoints, public_key=public_key)
    except (OSError, KeyFileError) as error:
        raise failed(str(error)) from error
    return {
        "ok": report.ok,
        "records": report.records,
        "checkpoints": report.checkpoints,
        "head": report.head,
        "faults": list(report.faults),
        "notes": list(report.notes),
    }


def _plain(stored: Any) -> dict[str, Any]:
    """A record as JSON values, with the one event that it has."""
    made = plain(stored)
    kind = stored.record.WhichOneof("event")
    made["record"] = {
        name: value
        for name, value in made["record"].items()
        if name not in ("request", "admin", "safety") or name == kind
    }
    return made


def _line(record: Any) -> str:
    match record.WhichOneof("event"):
        case "request":
            event = record.request
            reason = f" {event.reason}" if event.reason else ""
            tokens = f"{event.prompt_tokens}+{event.completion_tokens} tokens"
            took = event.duration.seconds + event.duration.nanos / 1e9
            model = event.model_version or event.model
            simulated = " simulated" if event.simulated else ""
            return f"{event.tenant} {event.operation} {model} {event.outcome}{reason} {tokens} {took:.3f} s{simulated}"
        case "admin":
            event = record.admin
            why = f": {event.reason}" if event.reason else ""
            return f"{event.actor} {event.action} {event.resource} revision {event.revision}{why}"
        case "safety":
            event = record.safety
            return f"{event.tenant} {event.stage} {event.action} {event.category} ({event.pattern})"
        case _:
            return "unknown event"
