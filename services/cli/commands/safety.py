"""`weir safety`: which safety policies there are, whose they are, and what they make of a text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

from services.cli.app import Argument, Option, Output
from services.cli.output import failed, print_fields, print_json, print_table

_KINDS = ("safety", "safety-floor", "tenants", "models", "aliases")
_HITS = ("RULE", "POLICY", "BECAUSE OF", "ACTION", "CATEGORY", "FROM", "TO", "TEXT")
_RULES = ("RULE", "ACTION", "STAGE", "CATEGORY", "REPLACEMENT", "PATTERN")
_LEAST = ("TO", "FROM", "CATEGORY", "TEXT", "BECAUSE OF")


def list_(output: Output = "table") -> None:
    """List all policies and who asks for each: the floor, tenants, model versions."""
    from services.cli import calls

    snapshot = calls.snapshot(*_KINDS)
    rows = [
        {"policy": pin, "rules": len(policy.rules), **_asked_by(snapshot, pin)}
        for pin, policy in sorted(snapshot.safety_policies.items())
    ]
    if output == "json":
        print_json(rows)
        return
    print_table(
        ("POLICY", "RULES", "FLOOR", "TENANTS", "MODELS"),
        [
            (one["policy"], one["rules"], "yes" if one["floor"] else "", _named(one["tenants"]), _named(one["models"]))
            for one in rows
        ],
        empty="no safety policies: the safety service's own one is the floor",
        wide=output == "wide",
        least=("RULES", "FLOOR"),
    )


def show(
    name: Annotated[str, Argument("ID@VERSION.")],
    output: Output = "table",
) -> None:
    """Show a policy's rules, and who asks for it."""
    from services.cli import calls

    snapshot = calls.snapshot(*_KINDS)
    policy = snapshot.safety_policies.get(name)
    if policy is None:
        raise failed(f"no safety policy is called {name!r}; `weir safety list` lists them")
    asked = _asked_by(snapshot, name)
    rules = [
        {field: getattr(one, field.lower() if field != "RULE" else "id") for field in _RULES} for one in policy.rules
    ]
    if output == "json":
        print_json(
            {"policy": name, **asked, "rules": [{key.lower(): value for key, value in one.items()} for one in rules]}
        )
        return
    print_fields(
        [
            ("floor", "yes" if asked["floor"] else "no"),
            ("tenants", _named(asked["tenants"])),
            ("models", _named(asked["models"])),
        ]
    )
    print()
    *columns, pattern = _RULES
    made = [tuple(one.values())[:-1] for one in rules]
    print_table(columns, made, empty="no rules", wide=output == "wide", least=("REPLACEMENT", "STAGE"))
    print()
    print_fields((one["RULE"], one[pattern]) for one in rules)


def try_(
    text: Annotated[str, Argument("What somebody writes, or a model answers; - reads standard input.")],
    tenant: Annotated[str, Option(help="Whose request it is.")],
    model: Annotated[str, Option(help="What it is to; an alias counts as its heaviest target.")] = "",
    stage: Annotated[str, Option(choices="input output", help="Which way it goes.")] = "input",
    output: Output = "table",
) -> None:
    """Say what a tenant's safety policies make of a text: which rules match, and whose they are.

    It is decided here, by the registry's policies; the text goes nowhere."""
    from libs.safety_policies import floor_of, pinned, rules_of
    from libs.safety_policies.trial import tried
    from services.cli import calls

    snapshot = calls.snapshot(*_KINDS)
    if tenant not in snapshot.tenants:
        raise failed(f"no tenant is called {tenant!r}; `weir get tenants` lists them")
    version = _version(snapshot, model) if model else None
    floor = floor_of(snapshot)
    under = {each.pin: each for each in pinned(floor, snapshot.tenants[tenant], version)}
    if not under:
        raise failed("the registry names no policy for it: it is under the safety service's own one")
    policies = {pin: rules_of(pin, snapshot.safety_policies[pin]) for pin in under}
    given = sys.stdin.read() if text == "-" else text
    trial = tried(tuple(under), policies, given, stage)
    because = {pin: ", ".join(origin.value for origin in each.origins) for pin, each in under.items()}
    hits = [
        (hit.rule.id, hit.rule.pack, because[hit.rule.pack], hit.rule.action, hit.rule.category, hit.begin, hit.end)
        for hit in trial.hits
    ]
    if output == "json":
        names = ("rule", "policy", "because_of", "action", "category", "begin", "end")
        print_json(
            {
                "action": trial.action or "pass",
                "text": trial.text,
                "reads_as": trial.view,
                "policies": because,
                "hits": [dict(zip(names, hit, strict=True)) for hit in hits],
            }
        )
        return
    fields: list[tuple[str, object]] = [
        ("action", trial.action or "pass"),
        ("goes on as", trial.text),
        ("policies", ", ".join(f"{pin} ({origins})" for pin, origins in because.items())),
    ]
    if trial.view != given:
        fields.append(("reads as", trial.view))
    print_fields(fields)
    print()
    made = [(*hit, given[hit[-2] : hit[-1]]) for hit in hits]
    print_table(_HITS, made, empty="no rule matches", wide=output == "wide", least=_LEAST)


def _version(snapshot: Any, model: str) -> Any:
    alias = snapshot.aliases.get(model)
    name = max(alias.targets, key=lambda target: target.weight).model_version if alias is not None else model
    version = snapshot.model_versions.get(name)
    if version is None:
        raise failed(f"no model is called {model!r}; `weir get aliases,models` lists them")
    return version


def _asked_by(snapshot: Any, pin: str) -> dict[str, Any]:
    from libs.safety_policies import floor_of

    def having(collection: Any) -> Iterator[str]:
        return (name for name, each in sorted(collection.items()) if pin in each.safety_policies)

    return {
        "floor": pin in floor_of(snapshot),
        "tenants": list(having(snapshot.tenants)),
        "models": list(having(snapshot.model_versions)),
    }


def _named(names: list[str]) -> str:
    return ", ".join(names)


COMMANDS = {"list": list_, "show": show, "try": try_}
