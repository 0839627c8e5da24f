"""`weir get`, `describe`, `watch`, `history`: what the registry holds, and held."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

from libs.tables import WIDTH
from services.cli import calls
from services.cli.app import Argument, Option, Output, printable, say, warn
from services.cli.cells import headings, row
from services.cli.kinds import kinds_called, label, one, some, targets
from services.cli.output import cell, paint, print_found, print_json, print_table, short, timestamp, write

Key = tuple[str, str]
"""Kind and name."""
Form = Annotated[
    str,
    Option("-o --output", choices="table wide yaml json name", help="yaml is what apply takes; --json is -o json."),
]
Kinds = Annotated[str, Argument("A kind, several with commas, or all; or KIND/NAME.", complete="kind")]
Names = Annotated[Sequence[str], Argument("Names; else all of the kind.", complete="name")]
One = Annotated[Sequence[str], Argument("KIND NAME, or KIND/NAME.", metavar="KIND NAME", complete="kind")]
Maybe = Annotated[Sequence[str], Argument("[KIND [NAME]]; else everything.", metavar="KIND NAME", complete="kind")]
Selector = Annotated[str, Option("-l --selector", help="Labels, such as team=search,stage!=test,reviewed.")]
_LAST = 5
"""Changes that `describe` tells."""


def get(kind: Kinds, names: Names = (), selector: Selector = "", output: Form = "table") -> None:
    """Show resources: of a kind, or those named."""
    more: dict[str, Any] = {}
    with calls.service() as registry:
        if named := bool(names) or "/" in kind:
            wanted = targets([kind, *names])
            kinds = list(dict.fromkeys(each for each, _ in wanted))
            found = [registry("Get", kind=each.name, name=name).resource for each, name in wanted]
        else:
            kinds = kinds_called(kind)
            found, more["revision"] = calls.listing(registry, [each.name for each in kinds], selector)
    if output in ("table", "wide"):
        print_resources(kinds, found, wide=output == "wide")
    elif output == "name":
        write("".join(f"{label(*name_of(each))}\n" for each in found))
    elif output == "yaml":
        from libs.resources.documents import dump_all

        write(dump_all([form(each, full=False) for each in found]))
    else:
        forms = list(map(form, found))
        print_json(forms[0] if named and len(forms) == 1 else {"resources": forms, **more})


def describe(target: One, output: Output = "table") -> None:
    """Show a resource whole, what refers to it, and how it came to be so."""
    kind, name = one(target)
    with calls.service() as registry:
        answer = registry("Get", kind=kind.name, name=name)
        past = registry("History", kind=kind.name, name=name, limit=_LAST).entries
    referrers = [label(each.kind, each.name) for each in answer.referrers]
    if output == "json":
        print_json({"resource": form(answer.resource), "referrers": referrers, "history": list(map(_entry, past))})
        return
    from libs.resources.documents import dump

    write(dump(form(answer.resource)) + "\n")
    say("Referred to by: " + (", ".join(referrers) or "nothing"))
    print("Last changes, newest first:")
    for each in past:
        say(f"  {each.revision}  {timestamp(each.at)[:19]}Z  {each.actor}  {each.action}  {each.reason}".rstrip())


def history(
    target: Maybe = (),
    limit: Annotated[int, Option("-n --limit", least=1, most=1000, help="How many changes.")] = 20,
    before: Annotated[int, Option(help="Only changes before this revision.")] = 0,
    output: Output = "table",
) -> None:
    """Who changed what, when and why; newest first."""
    kind, name = some(target)
    entries = calls.ask("registry", "History", kind=kind, name=name, limit=limit, before_revision=before).entries
    wide, told = output == "wide", {"entries": list(map(_entry, entries))}
    rows = [
        (e.revision, short(timestamp(e.at), wide=wide), e.actor, e.action, [c.resource for c in e.changes], e.reason)
        for e in entries
    ]
    columns = ("REVISION", "TIME (UTC)", "WHO", "WHAT", "RESOURCES", "WHY")
    print_found(output, told, columns, rows, empty="no changes", least=("WHAT", "WHY", "WHO"))


def watch(
    kind: Kinds,
    names: Names = (),
    selector: Selector = "",
    output: Annotated[str, Option("-o --output", choices="table json", help="json: a line each.")] = "table",
) -> None:
    """Print what is there, then every change, until interrupted. Goes on behind a restart of the registry."""
    from libs.resources.forms import differing

    wanted = {(each.name, name) for each, name in targets([kind, *names])} if names or "/" in kind else set()
    kinds = sorted({name for name, _ in wanted}) or [each.name for each in kinds_called(kind)]
    for outcome, key, before, after in _followed(kinds, selector):
        if wanted and key not in wanted:
            continue
        if output == "json":
            told = after or {"kind": key[0], "metadata": {"name": key[1]}}
            print_json({"outcome": outcome, "resource": told}, indent=None)
            continue
        revision = f" (revision {after['metadata']['revision']})" if after else ""
        print(f"{printable(label(*key))} {paint(outcome, outcome)}{revision}", flush=True)
        if before and after:
            print_differences(differing(before, after))


def print_resources(kinds: Sequence[Any], found: Sequence[Any], *, wide: bool = False) -> None:
    """A table for each kind."""
    several = len(kinds) > 1
    tables = [
        (kind, [row(kind, each, qualified=several) for each in found if name_of(each)[0] == kind.name])
        for kind in kinds
    ]
    shown = [(kind, rows) for kind, rows in tables if rows] or tables[:1]
    for number, (kind, rows) in enumerate(shown):
        columns, extra = headings(kind)
        print("\n" * bool(number), end="")
        empty = "nothing there" if several else f"no {kind.plural}"
        print_table(columns, rows, empty=empty, wide=wide, extra=extra, least=columns[:1:-1])


def print_differences(changes: Iterable[tuple[str, Any, Any]]) -> None:
    """Fields that differ, with both values."""
    for path, before, after in changes:
        if path != "metadata.revision":
            line = f"  {path}: {shown(before)} → {shown(after)}"
            say(line if len(line) <= WIDTH else f"  {path}:\n    - {shown(before)}\n    + {shown(after)}", flush=True)


def shown(value: Any) -> str:
    """A plain value in one line."""
    if value is None or (isinstance(value, str) and value == cell(value)):
        return value or "-"
    return printable(json.dumps(value, ensure_ascii=False))


def parsed(change: Any) -> tuple[Any, Any]:
    """Before and after of a change, as plain values; None where there was nothing."""
    before, after = (json.loads(text) if text else None for text in (change.before, change.after))
    return before, after


def changes(found: Iterable[Any]) -> list[dict[str, Any]]:
    """Changes as JSON values."""
    return [{"resource": each.resource, **dict(zip(("before", "after"), parsed(each), strict=True))} for each in found]


def form(resource: Any, *, full: bool = True) -> dict[str, Any]:
    """A resource's plain form."""
    from libs.resources.forms import to_plain

    return to_plain(resource, full=full)


def name_of(resource: Any) -> Key:
    """A resource's kind and name."""
    from libs.resources.codec import kind_of

    kind = kind_of(resource)
    return (kind.name if kind else ""), resource.metadata.name


def _followed(kinds: Sequence[str], selector: str) -> Iterator[tuple[str, Key, Any, Any]]:
    """What becomes of resources: the outcome, which, before and after in their plain form."""
    import grpc

    known: dict[Key, Any] = {}
    at, began, listed = 0, False, dict[Key, Any]()
    asked: dict[str, Any] = {"kinds": kinds, "selector": selector, "timeout": None}
    with calls.service() as registry:
        while True:
            try:
                for answer in registry("Watch", from_revision=at, wait=began, **asked):
                    listed |= {name_of(each): form(each) for each in answer.resources}
                    listed |= {(each.kind, each.name): None for each in answer.deleted}
                    if answer.more:
                        continue
                    if not at and began:
                        # Listed again: what happened meanwhile is not to be had any more.
                        listed = dict.fromkeys(known.keys() - listed.keys()) | listed
                    for key, after in listed.items():
                        before = known.pop(key, None)
                        if after is not None:
                            known[key] = after
                        if before != after:
                            outcome = "changed" if before else "created" if began else "present"
                            yield "deleted" if after is None else outcome, key, before, after
                    at, began, listed = answer.revision + 1, True, {}
            except grpc.RpcError as error:
                reason = calls.reason_of(error)
                if not began or reason not in ("REVISION_GONE", "DEPENDENCY_UNAVAILABLE", "DRAINING", "CANCELLED"):
                    raise
                if reason == "REVISION_GONE":
                    warn(f"changes behind revision {at - 1} are not kept any more; listing again")
                    at = 0
                else:
                    warn(f"the registry went away behind revision {at - 1}; following again")
            listed = {}
            time.sleep(0.5)


def _entry(entry: Any) -> dict[str, Any]:
    told = {name: getattr(entry, name) for name in ("id", "revision", "actor", "action", "reason")}
    return {**told, "at": timestamp(entry.at), "changes": changes(entry.changes)}
