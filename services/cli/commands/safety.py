"""`weir safety`: which safety policies there are, whose they are, and what they make of a text."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from services.cli import calls
from services.cli.app import Argument, Option, Output
from services.cli.output import failed, print_fields, print_found, print_json, print_table

_KINDS = ("safety", "safety-floor", "tenants", "models", "aliases")
_HITS = ("RULE", "POLICY", "BECAUSE OF", "ACTION", "CATEGORY", "FROM", "TO", "TEXT")
_RULES = ("RULE", "ACTION", "STAGE", "CATEGORY", "REPLACEMENT", "PATTERN")
_LEAST = ("TO", "FROM", "CATEGORY", "TEXT", "BECAUSE OF")


def list_(output: Output = "table") -> None:
    """List all policies and who asks for each: the floor, tenants, model versions."""
    snapshot = calls.snapshot(*_KINDS)
    rows = [
        {"policy": pin, "rules": len(policy.rules), **_asked_by(snapshot, pin)}
        for pin, policy in sorted(snapshot.safety_policies.items())
    ]
    columns = ("POLICY", "RULES", "FLOOR", "TENANTS", "MODELS")
    made = [(one["policy"], one["rules"], one["floor"] or None, one["tenants"], one["models"]) for one in rows]
    empty = "no safety policies: the safety service's own one is the floor"
    print_found(output, rows, columns, made, empty=empty, least=("RULES", "FLOOR"))


def show(name: Annotated[str, Argument("ID@VERSION.")], output: Output = "table") -> None:
    """Show a policy's rules, and who asks for it."""
    snapshot = calls.snapshot(*_KINDS)
    policy = snapshot.safety_policies.get(name)
    if policy is None:
        raise failed(f"no safety policy is called {name!r}; `weir safety list` lists them")
    asked = _asked_by(snapshot, name)
    rules = [(one.id, *(getattr(one, field.lower()) for field in _RULES[1:])) for one in policy.rules]
    if output == "json":
        names = [field.lower() for field in _RULES]
        print_json({"policy": name, **asked, "rules": [dict(zip(names, one, strict=True)) for one in rules]})
        return
    print_fields(asked.items())
    print()
    made = [one[:-1] for one in rules]
    print_table(_RULES[:-1], made, empty="no rules", wide=output == "wide", least=("REPLACEMENT", "STAGE"))
    print()
    print_fields((one[0], one[-1]) for one in rules)


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
    asking = [f"{pin} ({origins})" for pin, origins in because.items()]
    reads = [("reads as", trial.view)] if trial.view != given else []
    print_fields([("action", trial.action or "pass"), ("goes on as", trial.text), ("policies", asking), *reads])
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

    def having(collection: Any) -> list[str]:
        return [name for name, each in sorted(collection.items()) if pin in each.safety_policies]

    tenants, models = having(snapshot.tenants), having(snapshot.model_versions)
    return {"floor": pin in floor_of(snapshot), "tenants": tenants, "models": models}


COMMANDS = {"list": list_, "show": show, "try": try_}
