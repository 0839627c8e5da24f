"""`weir models grant|revoke|explain`: who may use which models (`weir get model-grants`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from services.cli import calls
from services.cli.app import Argument, Change, Json, Option, UsageError, printable, warn
from services.cli.output import dry, failed, print_json

Subject = Annotated[str, Argument("Who: tenant:ID, plan:ID or all.")]
Namespaces = Annotated[
    Sequence[str], Option("--namespace", metavar="NS", help="What is released there: its aliases; repeatable.")
]
Models = Annotated[
    Sequence[str],
    Option("--model", metavar="NAME", help="An alias, or one version, NAME@VERSION, released or not; repeatable."),
]
Pinned = Annotated[
    Sequence[str],
    Option("--pinned", metavar="NS", help="Every version of a namespace by its name, unreleased ones too; repeatable."),
]
_SAID = {"namespaces": "--namespace", "models": "--model", "pinned_namespaces": "--pinned"}
_READ = {
    "namespaces": "what is released in the namespaces",
    "models": "the models",
    "pinned_namespaces": "every version, by its name, of the namespaces",
}


def grant(
    subject: Subject, namespace: Namespaces = (), model: Models = (), pinned: Pinned = (), *, how: Change
) -> None:
    """Let tenants use models, beside what they may use already. What nothing grants does not exist for them.

    A tenant has what is granted to it, to its plan and to all, together. "all" is every tenant, also those that come
    later, and a namespace is whatever anybody releases in it: who shall see some names only is granted those, and
    neither its plan nor all is granted more.
    """
    given = _given(namespace, model, pinned)

    def add(present: Any) -> None:
        for field, names in given.items():
            there = getattr(present, field)
            there.extend(name for name in dict.fromkeys(names) if name not in there)

    _change(subject, add, how)
    if subject == "all":
        warn("all is every tenant, also those that come later, with whatever is released in its namespaces later")


def revoke(
    subject: Subject,
    namespace: Namespaces = (),
    model: Models = (),
    pinned: Pinned = (),
    everything: Annotated[bool, Option(help="All that is granted to this subject.")] = False,
    *,
    how: Change,
) -> None:
    """Take back what was granted to a subject. Other grants may still give it: see `weir models explain`."""
    given = {} if everything else _given(namespace, model, pinned)

    def take(present: Any) -> None:
        if everything:
            present.Clear()
        for field, names in given.items():
            there = getattr(present, field)
            for name in names:
                if name not in there:
                    raise failed(
                        f"{subject} is not granted {_SAID[field]} {name}; `weir get model-grants` lists grants"
                    )
                there.remove(name)

    _change(subject, take, how)


def explain(
    tenant: Annotated[str, Argument("The tenant's id.")],
    model: Annotated[str, Argument("A model as callers name it: an alias, or NAME@VERSION.")],
    as_json: Json = False,
) -> None:
    """Say whether a tenant may use a model, and why. Exit code 1: it may not, and what would allow it is said."""
    from libs.authority.models import subjects_of
    from libs.routing import RoutingTable

    kinds = ("tenants", "models", "aliases", "rollouts", "switches", "model-grants")
    table = RoutingTable.of(calls.snapshot(*kinds))
    found, gets = table.access.explain(tenant, model), table.find_model(tenant, model)
    remedy = _remedy(tenant, model, found.missing) if found.missing else ""
    version = gets.model_version if gets is not None else ""
    known = table.snapshot.tenants.get(tenant)
    applying = {each: _given_by(table.snapshot.model_grants.get(each)) for each in subjects_of(known)} if known else {}
    by_alias = table.access.giving(tenant, model)
    if as_json:
        told = {"allowed": found.allowed, "by": found.by, "missing_namespaces": found.missing, "grants": applying}
        print_json({**told, "model_version": version, "by_alias": by_alias, "remedy": remedy})
    elif found.allowed:
        print(f"{tenant} may use {model}, granted to {' and '.join(found.by)}")
        print(f"  it gets {version}" if version else "  but the version that it would get is not registered")
    elif not found.tenant:
        raise failed(f"no tenant is called {tenant!r}; `weir get tenants` lists them")
    elif not found.model:
        raise failed(f"no alias or version is called {model!r}; `weir get aliases,models` lists them")
    else:
        by_name = " by its name" if by_alias else ""
        print(f"{tenant} may not use {printable(model)}{by_name}: for this tenant it does not exist")
        if by_alias:
            print(f"  it gets this version by the alias {', '.join(by_alias)}; a name needs a grant of its own")
        print(
            f"  no grant gives {'all versions' if '@' in model else 'what is released'} of {', '.join(found.missing)}"
        )
        if not table.snapshot.model_grants:
            print("  there are no model grants at all: nobody may use anything")
    if applying and not as_json:
        print(f"  grants that apply to {tenant}:")
        _print_grants(applying, "    ")
        print(f"  to allow it: {remedy}\n" if remedy else "", end="")
    if not found.allowed:
        raise SystemExit(1)


def _given_by(grant: Any) -> dict[str, list[str]]:
    """What a grant gives; of none, nothing."""
    return {field: list(getattr(grant, field, ())) for field in _SAID}


def _print_grants(grants: Mapping[str, Mapping[str, Sequence[str]]], before: str) -> None:
    for subject, given in grants.items():
        what = [f"{_READ[field]} {', '.join(names)}" for field, names in given.items() if names]
        print(f"{before}{subject} is granted {'; '.join(what) or 'nothing'}")


def _others(registry: calls.Service, subject: str, there: Mapping[str, Any]) -> dict[str, dict[str, list[str]]]:
    """What else is granted to those whom the subject means."""
    from libs.authority.models import ALL, subjects_of

    if subject == ALL:
        others = sorted(there.keys() - {ALL})
    elif subject.startswith("tenant:"):
        _, *others = subjects_of(registry("Get", kind="Tenant", name=subject.partition(":")[2]).resource.tenant)
    else:
        others = [ALL]
    return {each: _given_by(there[each].model_grant) for each in others if each in there}


def _remedy(tenant: str, model: str, missing: Sequence[str]) -> str:
    """The narrowest command that would allow it: a version alone, of an alias what its namespaces release."""
    options = [f"--model {model}"] if "@" in model else [f"--namespace {each}" for each in missing]
    return f"weir models grant tenant:{tenant} {' '.join(options)}"


def _given(namespaces: Sequence[str], models: Sequence[str], pinned: Sequence[str]) -> dict[str, Sequence[str]]:
    given = dict(zip(_SAID, (namespaces, models, pinned), strict=True))
    if not any(given.values()):
        raise UsageError(f"say what is meant: {', '.join(_SAID.values())}")
    return given


def _change(subject: str, change: Callable[[Any], None], how: Change) -> None:
    """Reads a grant, changes it and writes it with the revision that was read; one that gives nothing goes."""
    from weir.registry.v1 import registry_pb2 as pb

    with calls.service() as registry:
        there = {each.metadata.name: each for each in calls.listing(registry, ["ModelGrant"])[0]}
        absent = pb.Resource(metadata=pb.Metadata(name=subject, revision=-1), model_grant=pb.ModelGrant())
        # It holds the revision that was read: nobody's change in between is lost.
        present = there.get(subject, absent)
        change(present.model_grant)
        left = _given_by(present.model_grant)
        if any(left.values()):
            registry("Apply", resources=[present], change=how.options)
        elif subject in there:
            which = pb.ResourceName(kind="ModelGrant", name=subject, revision=present.metadata.revision)
            registry("Delete", resources=[which], change=how.options)
        else:
            raise failed(f"nothing is granted to {subject}; `weir get model-grants` lists grants")
        also = _others(registry, subject, there)
    if how.as_json:
        print_json({"subject": subject, **left, "also": also, "dry_run": how.dry_run})
        return
    would = "would be" if how.dry_run else "is"
    if not any(left.values()):
        print(f"nothing {would} granted to {subject} any more")
    for field, names in left.items():
        if names:
            print(f"{subject} {would} granted {_READ[field]} {', '.join(names)}")
    _print_grants(also, "  beside that, ")
    dry(how.dry_run)
