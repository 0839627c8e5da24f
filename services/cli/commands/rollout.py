"""`weir rollout`: what an operator does with rollouts beside applying them. `weir get rollouts` lists them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

from libs.deadlines import to_duration
from libs.resources.codec import unpack
from services.cli import calls
from services.cli.app import Argument, Change, Json, Option, Output, UsageError, say
from services.cli.commands import rollout_views as views
from services.cli.commands.rollout_plan import Said, full_name, plan
from services.cli.output import dry, failed, print_fields, print_json, would
from services.cli.quantities import parse_seconds

Alias = Annotated[str, Argument("The alias, such as weir-fast.")]
On = Annotated[bool | None, Option("--on/--off", help="Set it, or clear it; without either, show it.")]
_NUMBER = re.compile(r"[0-9][0-9.,]*( m?s\b)?")
_COUNTS_SECONDS = 30.0
"""Between two lines that say nothing new but numbers."""
_AGAIN_SECONDS = 0.5
"""Before a watch goes on at another replica: one that drains still answers once."""


def start(
    alias: Alias,
    version: Annotated[str, Argument("The new version, such as 2 or weir-fast@2; not with --arm.")] = "",
    *,
    said: Said,
    file: Annotated[str, Option("-f --file", complete="file", help="A rollout; options go over it.")] = "",
    how: Change,
) -> None:
    """Begin a rollout: a canary of VERSION in steps, or an experiment with --arm."""
    from weir.registry.v1 import registry_pb2 as pb

    from libs.resources.forms import from_plain
    from services.cli.commands.change import read_form
    from services.cli.commands.show import form, parsed

    with calls.service() as registry:
        base = _file(file, alias) if file else {"kind": "Rollout", "metadata": {"name": alias}}
        wanted = plan(base, said, full_name(version, _baseline(registry, alias)) if version else "")
        if how.reason:
            wanted["spec"]["reason"] = how.reason
        change = {**how.options, "reason": wanted["spec"].get("reason", "")}
        done = registry("Apply", resources=[read_form(wanted, f"rollouts/{alias}")], change=change).results[0]
        if done.outcome == pb.OUTCOME_UNCHANGED:
            # It was applied before: one that goes on cannot begin, one that has ended begins again.
            told = form(registry("SteerRollout", alias=alias, steering="STEERING_RESTART", change=change).rollout)
        else:
            told = parsed(done.change)[1]
    if how.as_json:
        print_json(told)
        return
    say(("would begin: " if how.dry_run else "begun: ") + views.show_plan(unpack(from_plain(told))))
    print(f"follow it with `weir rollout watch {alias}`" if not how.dry_run else "nothing was changed: a dry run")


def status(alias: Alias, output: Output = "table") -> None:
    """Show a rollout with its arms, gates, workers and last decisions."""
    known = _status(alias)
    if output == "json":
        print_json(views.plain_status(known))
    else:
        print(*views.status_lines(known, wide=output == "wide"), sep="\n")


def explain(alias: Alias, as_json: Json = False) -> None:
    """Say in words why a rollout stands where it does, and what it waits for."""
    known = _status(alias)
    lines = views.explanation(known, time.time())
    if as_json:
        print_json({"text": lines, "status": views.plain_status(known)})
    else:
        say("\n".join(lines))


def watch(
    alias: Alias,
    interval: Annotated[str, Option(help="Between two looks, such as 1s; at least 100ms.")] = "1s",
    as_json: Json = False,
) -> None:
    """Follow a rollout until it ends: a live view, or lines when standard output is no terminal. Exits 1 when it was
    rolled back or aborted."""
    seconds = parse_seconds(interval, "--interval")
    lines = _print_json_line if as_json else _LinePrinter()
    last = _follow(alias, seconds, lines if as_json or not sys.stdout.isatty() else _LiveView())
    if views.phase_name(last.rollout) != "promoted":
        raise failed(f"{views.phase_name(last.rollout)}: {last.rollout.state.reason}")


def promote(alias: Alias, arm: Annotated[str, Option(help="Which, of an experiment.")] = "", *, how: Change) -> None:
    """Let the alias point to an arm's version from now on, whatever the gates say."""
    _steer(alias, "PROMOTE", how, arm=arm)


def advance(alias: Alias, how: Change) -> None:
    """Go to the next phase or step now, whatever the gates say."""
    _steer(alias, "ADVANCE", how)


def pause(alias: Alias, how: Change) -> None:
    """Stay at this step; gates still roll back."""
    _steer(alias, "PAUSE", how)


def resume(alias: Alias, how: Change) -> None:
    """Go on after a pause or a hold."""
    _steer(alias, "RESUME", how)


def abort(alias: Alias, how: Change) -> None:
    """Take all traffic off a rollout's arms at once; the alias goes on with its baseline."""
    _steer(alias, "ABORT", how)


def kill(on: On = None, *, how: Change) -> None:
    """The kill switch: while it is on, no arm of any rollout gets traffic, real or mirrored."""
    _switch("kill", on, how)


def freeze(on: On = None, *, how: Change) -> None:
    """The freeze: while it is on, no rollout starts or goes on. Arms keep what they have; an override passes."""
    _switch("freeze", on, how)


def _steer(alias: str, steering: str, how: Change, *, arm: str = "") -> None:
    from services.cli.commands.show import form

    asked = {"alias": alias, "steering": f"STEERING_{steering}", "arm": arm}
    stored = calls.ask("registry", "SteerRollout", change=how.options, **asked).rollout
    if how.as_json:
        print_json(form(stored))
    else:
        say(f"{alias}: {would(how.dry_run)}{views.place(unpack(stored))}")
        dry(how.dry_run)


def _switch(field: str, on: bool | None, how: Change) -> None:
    from weir.registry.v1 import registry_pb2 as pb

    with calls.service() as registry:
        found, _ = calls.listing(registry, ["RolloutSwitch"])
        present = found[0] if found else pb.Resource(metadata=pb.Metadata(name="rollouts", revision=-1))
        if on is not None:
            setattr(present.switch, field, on)
            present.switch.reason = how.reason if present.switch.kill or present.switch.freeze else ""
            # It holds the revision that was read: nobody's change in between is lost.
            registry("Apply", resources=[present], change=how.options)
    now = {name: getattr(present.switch, name) for name in ("kill", "freeze", "reason")}
    print_json(now) if how.as_json else print_fields((would(how.dry_run) + name, value) for name, value in now.items())
    dry(how.dry_run)


def _baseline(registry: calls.Service, alias: str) -> str:
    """The version that the alias gives; the registry refuses what is no single one."""
    targets = registry("Get", kind="Alias", name=alias).resource.alias.targets
    return str(targets[0].model_version) if targets else alias


def _file(path: str, alias: str) -> dict[str, Any]:
    from services.cli import files

    found = [document for _, document in files.read([path])]
    if len(found) != 1 or not isinstance(found[0], dict) or found[0].get("kind") != "Rollout":
        raise UsageError(f"--file: {path} must hold one Rollout")
    return {**found[0], "metadata": {**(found[0].get("metadata") or {}), "name": alias}}


def _status(alias: str) -> Any:
    return calls.ask("rollout", "GetRollout", alias=alias).status


def _follow(alias: str, interval: float, show: Any) -> Any:
    """Shows every status until the rollout has ended; the last one. Replicas that go meanwhile are left for others."""
    from libs.errors import Reason, WeirError

    while True:
        told = False
        try:
            with calls.service("rollout") as rollouts:
                for answer in rollouts("WatchRollout", alias=alias, interval=to_duration(interval), timeout=None):
                    told = True
                    show(answer.status)
                    if views.is_over(answer.status.rollout):
                        return answer.status
            raise WeirError(Reason.DRAINING, "the controller ended the watch; try again")
        except WeirError as error:
            if not told or error.reason not in (Reason.DRAINING, Reason.DEPENDENCY_UNAVAILABLE):
                raise
            time.sleep(_AGAIN_SECONDS)


class _LiveView:
    """Prints arms and gates over what it printed before: the lines that differ."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def __call__(self, known: Any) -> None:
        lines = views.status_lines(known)
        kept = [old == new for old, new in zip(self._lines, lines, strict=False)]
        kept += [False] * (len(lines) - len(kept))
        told = ("\n" if same else f"\033[K{line}\n" for same, line in zip(kept, lines, strict=True))
        print("".join(["\033[F" * len(self._lines), *told, "\033[J"]), end="", flush=True)
        self._lines = lines


class _LinePrinter:
    """Prints what is new, in a line: at once where words differ, every `_COUNTS_SECONDS` where only numbers do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: tuple[str, ...] = ("",) * 4
        self._counted = clock()

    def __call__(self, known: Any) -> None:
        parts = views.watch_parts(known)
        due = self._clock() - self._counted >= _COUNTS_SECONDS
        # The first says where the rollout stands: a step is a number, too.
        new = [
            now != old and (due or not place or _NUMBER.sub("", now) != _NUMBER.sub("", old))
            for place, (now, old) in enumerate(zip(parts, self._told, strict=True))
        ]
        self._counted = self._clock() if due else self._counted
        self._told = tuple(now if is_new else old for now, old, is_new in zip(parts, self._told, new, strict=True))
        line = " | ".join(part for part, is_new in zip(parts, new, strict=True) if is_new and part)
        if line:
            say(f"{time.strftime('%H:%M:%S', time.gmtime())} {line}", flush=True)


def _print_json_line(known: Any) -> None:
    print_json(views.plain_status(known), indent=None)


COMMANDS = {
    "start": start,
    "status": status,
    "explain": explain,
    "watch": watch,
    "promote": promote,
    "advance": advance,
    "pause": pause,
    "resume": resume,
    "abort": abort,
    "kill": kill,
    "freeze": freeze,
}
