"""`weir apply`, `diff`, `edit`, `set`, `delete`, `rollback`: one way to change resources of every kind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from services.cli import calls
from services.cli.app import Argument, Change, DryRun, Json, Option, Reason, UsageError, printable, warn
from services.cli.commands.show import Maybe, One, changes, form, name_of, parsed, print_differences
from services.cli.kinds import label, one, some, targets
from services.cli.output import dry, failed, paint, print_json, would

if TYPE_CHECKING:
    from libs.resources.documents import Place

Files = Annotated[
    Sequence[str],
    Option("-f --file", complete="file", help="A file, a folder (*.yaml, *.yml, *.json below it), or -; repeatable."),
]
Owner = Annotated[str, Option(help="Whose resources these are, such as a team's or a folder's.")]
Prune = Annotated[bool, Option(help="Delete what has this owner and is not in the files.")]
TakeOver = Annotated[bool, Option(help="Take resources over from other owners.")]
_OUTCOMES = ("created", "changed", "unchanged", "pruned")


def apply(file: Files, owner: Owner = "", prune: Prune = False, take_over: TakeOver = False, *, how: Change) -> None:
    """Make resources what files say, all or none. Says what was created, changed, unchanged and pruned."""
    _report(_apply_files(file, owner, prune, take_over, how), how)


def diff(
    target: Maybe = (),
    file: Files = (),
    owner: Owner = "",
    prune: Prune = False,
    take_over: TakeOver = False,
    since: Annotated[int, Option("--from", help="Compare this revision …")] = 0,
    to: Annotated[int, Option(help="… with this one; else with now.")] = 0,
    as_json: Json = False,
) -> None:
    """Show what applying files would change, or how two revisions differ. Exit code 1: they differ; 2: an error."""
    from weir.registry.v1 import registry_pb2 as pb

    if not file and not since:
        raise UsageError("-f FILE compares files with what is there, --from REVISION [--to REVISION] two revisions")
    kind, name = some(target)
    try:
        if file:
            answer = _apply_files(file, owner, prune, take_over, Change(dry_run=True))
            found = [each.change for each in answer.results if each.outcome != pb.OUTCOME_UNCHANGED]
        else:
            answer = calls.ask("registry", "Diff", from_revision=since, to_revision=to, kind=kind, name=name)
            found = answer.changes
    except Exception as error:
        error.exit_code = 2  # type: ignore[attr-defined]
        raise
    print_json({"changes": changes(found)}) if as_json else _print_changes(found, dry_run=bool(file))
    raise SystemExit(1 if found else 0)


def edit(target: One, how: Change) -> None:
    """Change a resource in $VISUAL or $EDITOR. Nobody's change in between is lost."""
    import shlex
    import subprocess
    import tempfile
    from pathlib import Path

    from libs.resources.documents import dump
    from services.cli import files

    kind, name = one(target)
    present = _get(kind.name, name)
    before = dump(form(present, full=False))
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="weir-", delete=False, encoding="utf-8") as draft:
        draft.write(before)
    path = Path(draft.name)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        if subprocess.run([*shlex.split(editor), str(path)], check=False).returncode:  # noqa: S603 - our own argument list, no shell
            raise UsageError(f"{editor} failed; nothing was changed")
        if files.read_text(path)[0] == before:
            print("nothing changed")
        else:
            wanted = _resources([str(path)])[0]
            if [name_of(each) for each in wanted] != [(kind.name, name)]:
                raise UsageError(f"this is not {label(kind.name, name)} alone any more; `weir apply` takes others")
            wanted[0].metadata.revision = present.metadata.revision
            _report(_apply(wanted, how), how)
    except BaseException:
        warn(f"your text is kept in {path}: correct it, then `weir apply -f {path}`")
        raise
    path.unlink()


def set_(
    target: Annotated[
        Sequence[str], Argument("KIND NAME FIELD=VALUE …", metavar="KIND NAME FIELD=VALUE", complete="kind")
    ],
    labels: Annotated[Sequence[str], Option("--label", help="NAME=VALUE, or NAME= to take it away; repeatable.")] = (),
    create: Annotated[bool, Option(help="Make it if it is not there.")] = False,
    *,
    how: Change,
) -> None:
    """Change fields of a resource: `weir set tenants acme weight=2 plan=paid`.

    Fields are those of `weir explain KIND`; FIELD= takes one away. Nobody's change in between is lost.
    """
    from services.cli.fields import assign

    count = 1 if "/" in target[0] else 2
    kind, name = one(target[:count])
    present = _get(kind.name, name, create=create)
    made: dict[str, Any] = {"kind": kind.name, "metadata": {"name": name}}
    if present is not None:
        made = form(present, full=False)
    for text in target[count:]:
        assign(made, kind, text)
    for text in labels:
        assign(made, kind, text, labels=True)
    wanted = read_form(made, label(kind.name, name))
    wanted.metadata.revision = -1 if present is None else present.metadata.revision
    _report(_apply([wanted], how), how)


def delete(
    target: Annotated[Sequence[str], Argument("KIND NAME…, or KIND/NAME….", metavar="KIND NAME", complete="kind")] = (),
    file: Files = (),
    *,
    how: Change,
) -> None:
    """Remove resources, all or none. Refused while something that stays refers to one of them."""
    if bool(target) == bool(file):
        raise UsageError("say what: KIND NAME…, or -f FILE")
    named = [name_of(each) for each in _resources(file)[0]] if file else [(k.name, n) for k, n in targets(target)]
    if not named:
        raise UsageError("name what shall go: KIND NAME…; a kind alone is not enough")
    resources = [{"kind": kind, "name": name} for kind, name in named]
    _report(calls.ask("registry", "Delete", resources=resources, change=how.options), how, gone="deleted")


def rollback(
    to: Annotated[int, Option(help="The revision to go back to.")],
    reason: Reason,
    target: Maybe = (),
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make a resource, a kind or the whole configuration what it was at a revision.

    Without KIND these stay: keys, roles, trust, model grants, versions, pins, rollouts and the kill switch; and what
    they need of what was made since, such as a tenant that has a key, with its limits. What stays so is told.
    """
    kind, name = some(target)
    change = {"reason": reason, "dry_run": dry_run}
    answer = calls.ask("registry", "Rollback", to_revision=to, kind=kind, name=name, change=change)
    if as_json:
        kept = {"changes": changes(answer.changes), "kept": list(answer.kept)}
        print_json({"revision": answer.revision, "dry_run": dry_run, **kept})
        return
    _print_changes(answer.changes, dry_run=dry_run)
    for each in answer.kept:
        print(f"{printable(each)} stays: it was made since, and what does not go back needs it")
    print(f"revision {answer.revision}")
    dry(dry_run)


def _print_changes(found: Sequence[Any], *, dry_run: bool) -> None:
    """Differences, by resource."""
    for each in found:
        before, after = parsed(each)
        outcome = "created" if before is None else "deleted" if after is None else "changed"
        _print_change(each.resource, outcome, each, dry_run)
    if not found:
        print("no differences")


def read_form(data: Any, place: str) -> Any:
    """A resource out of its plain form.

    :raises UsageError: it is none; the message names the place.
    """
    from libs.resources.documents import Place

    found, faults = _parsed(data, Place(place))
    _raise(faults)
    return found


def _parsed(data: Any, place: Place) -> tuple[Any, list[str]]:
    """The resource, or what is wrong with it: the place of each fault, the field and what it must be."""
    from libs.resources.forms import FormError, from_plain
    from libs.resources.kinds import BY_NAME

    try:
        return from_plain(data), []
    except FormError as error:
        kind = data.get("kind") if isinstance(data, dict) else None
        see = f"`weir explain {kind}`" if isinstance(kind, str) and kind in BY_NAME else "`weir api-resources`"
        return None, [
            f"{place.of(f.field)}: {f.field}{': ' * bool(f.field)}{f.message}; see {see}" for f in error.faults
        ]


def _raise(faults: Sequence[str]) -> None:
    """:raises UsageError: with all of them, if there are any."""
    if faults:
        several = [f"{len(faults)} faults, nothing was changed", *(f"  {each}" for each in faults)]
        raise UsageError("\n".join(several) if len(faults) > 1 else faults[0])


def _report(answer: Any, how: Change, *, gone: str = "pruned") -> None:
    """What became of resources, each with the fields that changed, and a summary."""
    told = [(label(each.resource.kind, each.resource.name), _outcome(each, gone), each) for each in answer.results]
    counts = Counter(outcome for _, outcome, _ in told)
    summary = {each: counts[each] for each in (_OUTCOMES if gone == "pruned" else (gone,))}
    if how.as_json:
        results = [
            {
                "kind": each.resource.kind,
                "name": each.resource.name,
                "outcome": outcome,
                "changes": [dict(zip(("field", "before", "after"), it, strict=True)) for it in _fields(each.change)],
            }
            for _, outcome, each in told
        ]
        print_json({"results": results, "summary": summary, "revision": answer.revision, "dry_run": how.dry_run})
        return
    for name, outcome, each in told:
        _print_change(name, outcome, each.change, how.dry_run)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in summary.items())
    print(f"{'would be: ' * how.dry_run}{counted} (revision {answer.revision})")
    dry(how.dry_run)


def _print_change(name: str, outcome: str, change: Any, dry_run: bool) -> None:
    print(f"{printable(name)} {would(dry_run)}{paint(outcome, outcome)}")
    print_differences(_fields(change))


def _outcome(result: Any, gone: str) -> str:
    from weir.registry.v1 import registry_pb2 as pb

    name = pb.Outcome.Name(result.outcome).removeprefix("OUTCOME_").lower()
    return gone if name == "deleted" else name


def _fields(change: Any) -> Iterable[tuple[str, Any, Any]]:
    """The fields that differ, of what was there before and is there after."""
    from libs.resources.forms import differing

    before, after = parsed(change)
    found = differing(before, after) if before and after else ()
    return [each for each in found if each[0] != "metadata.revision"]


def _apply_files(file: Sequence[str], owner: str, prune: bool, take_over: bool, how: Change) -> Any:
    resources, places = _resources(file)
    owners = {each.metadata.owner for each in resources}
    if prune and not owner and (len(owners) != 1 or not (owner := owners.pop())):
        raise UsageError("--prune needs --owner NAME: it deletes what NAME owns and the files do not have")
    if not resources:
        raise UsageError(f"no resources in {', '.join(file)}; to delete all, use `weir delete`")
    return _apply(resources, how, places, owner=owner, prune=prune, take_over=take_over)


def _apply(resources: Sequence[Any], how: Change, places: Mapping[str, Place] | None = None, **more: Any) -> Any:
    try:
        return calls.ask("registry", "Apply", resources=resources, change=how.options, **more)
    except Exception as error:
        error.places = places  # type: ignore[attr-defined]
        raise


def _resources(paths: Sequence[str]) -> tuple[list[Any], dict[str, Place]]:
    """The resources of files, and where each is written."""
    from services.cli import files

    found, faults = [], list[str]()
    places: dict[str, Place] = {}
    for place, document in files.read(paths):
        resource, wrong = _parsed(document, place)
        faults += wrong
        if wrong:
            continue
        what = label(*name_of(resource))
        if what in places:
            faults.append(f"{place}: {what} is in {places[what]} too")
        places[what] = place
        found.append(resource)
    _raise(faults)
    return found, places


def _get(kind: str, name: str, *, create: bool = False) -> Any:
    """The resource as it is; None when it is not there and shall be made."""
    found = calls.find(kind, name)
    if found is None and not create:
        plural = label(kind, "")[:-1]
        raise failed(f"no {plural}/{name}: `weir get {plural}` lists them, `weir set … --create` makes one")
    return found
