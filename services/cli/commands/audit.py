"""`weir audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from libs.resources.forms import plain
from services.cli import calls
from services.cli.app import Json, Option, say
from services.cli.output import failed, print_fields, print_json, timestamp

_EVENTS = {"request", "admin", "safety", "security"}
VERIFY_SECONDS = 300.0
"""Verification reads the whole log."""


def tail(
    limit: Annotated[int, Option("--limit -n", least=1, most=1000, help="How many records.")] = 20,
    tenant: Annotated[str, Option(help="Only this tenant's.")] = "",
    as_json: Json = False,
) -> None:
    """Show the newest records, oldest of them first."""
    answer = calls.ask("audit", "Tail", limit=limit, tenant=tenant)
    if as_json:
        print_json({"records": [_plain(stored) for stored in answer.records]})
        return
    for stored in answer.records:
        if stored.damage:
            say(f"{stored.sequence:>8}  DAMAGED: {stored.damage}")
            continue
        record = stored.record
        say(f"{stored.sequence:>8}  {timestamp(record.time)}  {record.source:<20}  {_line(record)}")
    if not answer.records:
        print("no records")


def verify(
    directory: Annotated[
        Path | None, Option(help="Verify the files in this folder (log, checkpoints, keys), not the service's.")
    ] = None,
    fingerprint: Annotated[
        str, Option(help="Of the key that must have signed, as an earlier verification told it; with --directory.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Verify the whole chain against its signed checkpoints. Exit code 1 when anything does not hold."""
    if directory is None:
        report = plain(calls.ask("audit", "Verify", timeout=VERIFY_SECONDS), unset=True)
    else:
        report = _verify_files(directory, fingerprint)
    if as_json:
        print_json(report)
    else:
        print("the audit log holds" if report["ok"] else "the audit log DOES NOT HOLD")
        print_fields((name, report[name]) for name in ("records", "checkpoints", "head", "key_fingerprint"))
        for fault in report["faults"]:
            say(f"fault: {fault}")
        for note in report.get("notes", ()):
            say(f"note: {note}")
    if not report["ok"]:
        raise SystemExit(1)


def accept(
    reason: Annotated[str, Option(help="Why the log on the disk is the true one; recorded in it.")],
    as_json: Json = False,
) -> None:
    """Take the log as it is although an anchor contradicts it or is lost.

    For an owner, after `weir audit verify` has said what is wrong and somebody knows why: a disk that was restored from
    a backup, an etcd that was. The damage is not undone: what the anchors knew of and the log lacks stays lost, and the
    record of this says so.
    """
    answer = calls.ask("audit", "Accept", reason=reason)
    if as_json:
        print_json(plain(answer, unset=True))
        return
    for fault in answer.faults:
        say(f"accepted: {fault}")
    say(f"record {answer.sequence} says so; the log takes records again")


def _verify_files(folder: Path, pinned: str) -> dict[str, Any]:
    from libs.auditlog.keys import KeyFileError, fingerprint
    from libs.auditlog.verify import verify_directory

    log, key = folder / "log", folder / "keys" / "checkpoint.pub"
    if not log.is_dir():
        raise failed(f"{log} is no folder")
    try:
        report = verify_directory(log, checkpoints=folder / "checkpoints", public_key=key)
        found = fingerprint(key)
    except (OSError, KeyFileError) as error:
        raise failed(str(error)) from error
    if not pinned:
        report.notes.append(
            "signed by the key beside the log and compared with no anchor: who had both could forge both"
        )
    elif pinned != found:
        report.faults.append("the public key is not the one with that fingerprint")
    told = {name: getattr(report, name) for name in ("ok", "records", "checkpoints", "head")}
    return {**told, "key_fingerprint": found, "faults": list(report.faults), "notes": list(report.notes)}


def _plain(stored: Any) -> dict[str, Any]:
    """A record as JSON values, with the one event that it has."""
    if stored.damage:
        return {"sequence": stored.sequence, "damage": stored.damage}
    made = plain(stored, unset=True)
    kind = stored.record.WhichOneof("event")
    for name in _EVENTS - {kind}:
        del made["record"][name]
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
        case "security":
            event = record.security
            whom = " ".join(part for part in (event.tenant, event.key_id, event.actor, event.action) if part)
            where = f" from network {event.network}" if event.network else ""
            others = " (many callers)" if event.summed else ""
            return f"{event.count} × {event.kind} {event.reason} {whom}{where}{others}"
        case _:
            return "unknown event"


COMMANDS = {"tail": tail, "verify": verify, "accept": accept}
