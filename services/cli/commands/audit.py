"""`weir audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from libs.deadlines import to_seconds
from libs.private_file import private_file
from libs.resources.forms import plain
from libs.usage.records import PREDICT
from services.cli import calls
from services.cli.app import Argument, DryRun, Json, Option, Output, say
from services.cli.output import dry, failed, print_fields, print_found, print_json, short, timestamp

_EVENTS = {"request", "admin", "safety", "security", "tombstone"}
_TOLD = ("records", "first", "sealed", "erased", "tombstones", "checkpoints", "head", "key_fingerprint")
VERIFY_SECONDS = 300.0
"""Verification reads the whole log."""


def tail(
    limit: Annotated[int, Option("--limit -n", least=1, most=1000, help="How many records.")] = 20,
    tenant: Annotated[str, Option(help="Only this tenant's.")] = "",
    output: Output = "table",
) -> None:
    """Show the newest records, oldest of them first."""
    records = calls.ask("audit", "Tail", limit=limit, tenant=tenant).records
    rows = [_told(stored, output == "wide") for stored in records]
    columns = ("RECORD", "TIME (UTC)", "SOURCE", "WHAT")
    print_found(output, {"records": list(map(_plain, records))}, columns, rows, empty="no records", least=("SOURCE",))


def verify(
    directory: Annotated[
        Path | None, Option(help="Verify the files in this folder (log, checkpoints, keys), not the service's.")
    ] = None,
    fingerprint: Annotated[
        str, Option(help="Of the key that must have signed, as an earlier verification printed it; with --directory.")
    ] = "",
    export: Annotated[
        Path | None, Option(help="Verify this file that `weir audit export` wrote.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify the whole chain against its signed checkpoints. Exit code 1 when anything does not hold.

    What was erased by a tombstone is counted and no fault. With --export, a file of records alone, offline: neither the
    log nor a key is needed.
    """
    if export is not None:
        _verify_export(export, fingerprint, as_json)
        return
    if directory is None:
        report = plain(calls.ask("audit", "Verify", timeout=VERIFY_SECONDS), unset=True)
    else:
        report = _verify_files(directory, fingerprint)
    if as_json:
        print_json(report)
    else:
        print("the audit log holds" if report["ok"] else "the audit log DOES NOT HOLD")
        print_fields((name, report[name]) for name in _TOLD)
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


def erase(
    tenant: Annotated[str, Option(help="Whose records.")],
    reason: Annotated[str, Option(help="subject_request, tenant_left, legal_order or mistake.")],
    subject: Annotated[
        str, Option(help="One end user of the tenant: a request's user, or as records name it, user-… or jwt-…")
    ] = "",
    data_class: Annotated[str, Option("--class", help="Only these: request, safety or security.")] = "",
    before: Annotated[str, Option(help="Only months before this one.", metavar="YYYY-MM")] = "",
    reference: Annotated[str, Option(help="A ticket's number.")] = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Destroy the keys of what a tenant, or one of its end users, left in the audit log.

    A signed tombstone takes their place: the chain holds as before, and what the bill is made of stays. It cannot be
    undone. Copies of keys in older backups are worthless after `weir audit rotate`. When it fails halfway, repeat it.
    """
    from libs.apikeys import recorded_as

    answer = calls.ask(
        "audit",
        "Erase",
        tenant=tenant,
        subject=recorded_as(tenant, subject) if subject else "",
        data_class=data_class,
        before=before,
        reason=reason,
        reference=reference,
        dry_run=dry_run,
    )
    if as_json:
        print_json(plain(answer, unset=True))
    else:
        whom = f"{subject} of {tenant}" if subject else tenant
        numbers = " and ".join(str(each) for each in answer.tombstones)
        print(f"{answer.keys} keys of {whom}" + (f" destroyed; tombstone {numbers}" if numbers else " would go"))
        if answer.clear_upto:
            say(f"records up to {answer.clear_upto} were never sealed: only their retention removes them")
    dry(dry_run and not as_json)


def export(
    file: Annotated[Path, Argument("Where to; must not exist.", "FILE", "file")],
    tenant: Annotated[str, Option(help="Only this tenant's records.")] = "",
    data_class: Annotated[str, Option("--class", help="Only these: request, admin, safety or security.")] = "",
    first: Annotated[int, Option(least=0, help="From this record on.")] = 0,
    last: Annotated[int, Option(least=0, help="Up to this record.")] = 0,
    as_json: Json = False,
) -> None:
    """Write records with their payloads as JSON lines, signed by the log's key.

    `weir audit verify --export FILE --fingerprint HEX` proves them without the mesh. It holds what the log keeps
    sealed: the file is its owner's alone.
    """
    wanted: dict[str, Any] = {"tenant": tenant, "data_class": data_class, "first": first, "last": last}
    try:
        if file.exists():
            raise failed(f"{file} exists")
        with calls.service("audit") as audit, private_file(file) as out:
            for piece in audit("Export", timeout=VERIFY_SECONDS, **wanted):
                out.write(piece.lines)
    except OSError as error:
        raise failed(f"{error.filename or file}: {error.strerror}") from error
    _verify_export(file, "", as_json)


def rotate(as_json: Json = False) -> None:
    """Make a new key-encryption key for the audit log and destroy the old one.

    Every data key is wrapped anew. Take a backup right after: keys in earlier ones open nothing any more, erased ones
    among them. With a key in KMS, name the new one in the service's settings and restart it instead; this then wraps
    anew what is left.
    """
    answer = calls.ask("audit", "RotateKeys")
    if as_json:
        print_json(plain(answer, unset=True))
    else:
        print(f"{answer.keys} keys are wrapped by {answer.kek}; back up the keys now")


def _verify_export(file: Path, pinned: str, as_json: bool) -> None:
    from msgspec import to_builtins

    from libs.auditlog.export import ExportError, check

    try:
        with file.open("rb") as lines:
            found = check(lines, fingerprint=pinned)
    except ExportError as error:
        raise failed(f"{file} DOES NOT HOLD: {error}") from error
    except OSError as error:
        raise failed(f"{file}: {error.strerror}") from error
    told = to_builtins(found)
    told |= told.pop("head")
    if as_json:
        print_json(told)
        return
    print(f"{file} holds")
    print_fields(
        (name, told[name]) for name in ("records", "erased", "chained", "by", "time", "tenant", "key_fingerprint")
    )
    if not pinned:
        say("note: signed by the key that it names; compare its fingerprint with an earlier `weir audit verify`")


def _verify_files(folder: Path, pinned: str) -> dict[str, Any]:
    from libs.auditlog.keys import KeyFileError, fingerprint
    from libs.auditlog.verify import verify_directory
    from libs.sealing.vault import VaultError, kept

    log, key, vault = folder / "log", folder / "keys" / "checkpoint.pub", folder / "sealing" / "keys.db"
    if not log.is_dir():
        raise failed(f"{log} is no folder")
    try:
        keys, buried = kept(vault) if vault.exists() else (None, [])
        report = verify_directory(log, checkpoints=folder / "checkpoints", public_key=key, keys=keys, buried=buried)
        found = fingerprint(key)
    except (OSError, KeyFileError, VaultError) as error:
        raise failed(str(error)) from error
    if not pinned:
        report.notes.append(
            "signed by the key beside the log and compared with no anchor: who had both could forge both"
        )
    elif pinned != found:
        report.faults.append("the public key is not the one with that fingerprint")
    told = {name: getattr(report, name) for name in ("ok", *_TOLD[:-1])}
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


def _told(stored: Any, wide: bool) -> tuple[object, ...]:
    if stored.damage:
        return stored.sequence, None, None, f"DAMAGED: {stored.damage}"
    record = stored.record
    erased = f" (erased by tombstone {stored.erased_by})" if stored.erased_by else ""
    return stored.sequence, short(timestamp(record.time), wide=wide), record.source, _line(record) + erased


def _line(record: Any) -> str:
    match record.WhichOneof("event"):
        case "request":
            event = record.request
            reason = f" {event.reason}" if event.reason else ""
            rows = event.operation == PREDICT
            used = f"{event.rows} rows" if rows else f"{event.prompt_tokens}+{event.completion_tokens} tokens"
            took = f"{to_seconds(event.duration):.3f} s{' simulated' * event.simulated}"
            model = event.model_version or event.model
            return f"{event.tenant} {event.operation} {model} {event.outcome}{reason} {used} {took}"
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
        case "tombstone":
            event = record.tombstone
            what = " ".join(part for part in (event.tenant, event.data_class, event.subject and "one user") if part)
            before = f" before {event.before}" if event.before else ""
            return (
                f"{event.actor} erased {what}{before} ({event.reason} {event.reference}): {event.keys_destroyed} keys"
            )
        case _:
            return "unknown event"


COMMANDS = {"tail": tail, "verify": verify, "accept": accept, "erase": erase, "export": export, "rotate": rotate}
