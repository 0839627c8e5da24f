"""`weir export` and `weir import`: a whole registry in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from libs.private_file import private_file
from services.cli import calls
from services.cli.app import Argument, Change, Json, Option
from services.cli.commands.show import name_of
from services.cli.output import dry, failed, print_fields, print_json, would

FORMAT = "weir-registry/2"
MOST = 2000
"""Resources of one transaction."""
LONG = 60.0
"""Seconds for one."""


def export(
    file: Annotated[
        Path, Argument("Where to; replaced when it exists. It holds the hashes of API keys.", complete="file")
    ],
    as_json: Json = False,
) -> None:
    """Write the registry at one revision to a file that only you can read."""
    from libs.resources.forms import to_plain

    with calls.service() as registry:
        found, revision = calls.listing(registry, _saved(), secrets=True, timeout=LONG)
    lines = [json.dumps(to_plain(each), ensure_ascii=False) + "\n" for each in found]
    head = {"format": FORMAT, "revision": revision, "resources": len(lines), "sha256": _digest(lines)}
    try:
        with private_file(file) as out:
            out.writelines(line.encode() for line in (json.dumps(head) + "\n", *lines))
    except OSError as error:
        raise failed(f"{file}: {error.strerror}; nothing was written") from error
    told = {"file": str(file), **head}
    print_json(told) if as_json else print_fields(told.items())


def import_(
    file: Annotated[Path, Argument("An export.", complete="file")],
    replace: Annotated[bool, Option(help="Delete what the file has not.")] = False,
    *,
    how: Change,
) -> None:
    """Make the registry what an export says.

    Up to 2000 resources are one transaction. More are several, in an order in which each holds; an import that broke
    off is finished by importing the same file again. What --replace deletes is deleted afterwards, in transactions of
    its own. --dry-run checks each of them by itself.
    """
    from weir.registry.v1 import registry_pb2 as pb

    resources = _read(file)
    for resource in resources:
        resource.metadata.revision = 0
    more: dict[str, Any] = {"change": how.options, "timeout": LONG}
    wanted = set(map(name_of, resources))
    changed = deleted = 0
    with calls.service() as registry:
        for batch in _batches(resources):
            answer = registry("Apply", resources=batch, restore=True, **more)
            changed += sum(each.outcome != pb.OUTCOME_UNCHANGED for each in answer.results)
        if replace:
            there, _ = calls.listing(registry, _saved(deletable=True), timeout=LONG)
            present = map(name_of, reversed(there))
            surplus = [{"kind": kind, "name": name} for kind, name in present if (kind, name) not in wanted]
            for gone in _batches(surplus):
                registry("Delete", resources=gone, **more)
                deleted += len(gone)
    told = {"resources": len(resources), "changed": changed, "deleted": deleted}
    if how.as_json:
        print_json({**told, "dry_run": how.dry_run})
        return
    print_fields((would(how.dry_run and name != "resources") + name, count) for name, count in told.items())
    dry(how.dry_run)


def _read(file: Path) -> list[Any]:
    """Its resources, once count and digest hold."""
    from libs.resources.forms import FormError, from_plain

    try:
        # Values hold characters that other ways to split take for the end of a line, such as U+2028.
        with file.open(encoding="utf-8", newline="\n") as written:
            first, *lines = written
        head = json.loads(first)
        if head["format"] != FORMAT:
            raise KeyError(FORMAT)
    except OSError as error:
        raise failed(f"{file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        raise failed(f"{file} is no {FORMAT}; `weir export` writes one") from None
    found: list[Any] = []
    if (len(lines), _digest(lines)) == (head.get("resources"), head.get("sha256")):
        try:
            found = [from_plain(json.loads(line)) for line in lines]
        except FormError as error:
            raise failed(f"{file}: {error}") from error
        except (ValueError, RecursionError):
            found = []
    if len(found) != head.get("resources") or not all(each.metadata.name for each in found):
        raise failed(
            f"{file} is damaged: {len(lines)} of {head.get('resources')} resources, or not as they were written"
        )
    return found


def _saved(*, deletable: bool = False) -> list[str]:
    """Kinds that an export holds; only those of which somebody may delete something, if asked."""
    from libs.resources.kinds import KINDS

    return [kind.name for kind in KINDS if not kind.leased and (kind.change or not deletable)]


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for begin in range(0, len(items), MOST):
        yield items[begin : begin + MOST]
