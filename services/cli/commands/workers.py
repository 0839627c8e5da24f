"""`weir workers`.

Who is there comes from the registry, how loaded it is from admission: every worker tells it with each change, and what
it was told is what it decides by. One authorised call answers for all workers and says how old each report is, where
reading every worker's metrics would be a call each, without authorisation and without that age.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from libs.resources.forms import plain
from services.cli import calls
from services.cli.app import Output, warn
from services.cli.config import NoMeshError
from services.cli.output import print_found, print_table

_COLUMNS = (
    *("WORKER", "ZONE", "POOL", "ENGINE", "MODELS", "STATE", "RUN", "WAIT", "SWAP", "KV FREE", "KV USED"),
    *("FRAG", "HITS", "PREEMPT", "STEP", "PREFILL/S", "AGE", "NUMERICS"),
)
_WIDE = ("ZONE", "SWAP", "KV FREE", "FRAG", "PREEMPT", "STEP", "PREFILL/S", "NUMERICS")
_LEAST = ("AGE", "HITS", "WAIT", "ENGINE", "KV USED", "POOL")


def workers(output: Output = "table") -> None:
    """List the live workers: what they serve and how loaded they are."""
    found = calls.snapshot("endpoints").endpoints_of("worker")
    rows = merged(*([plain(each, unset=True) for each in some] for some in (found, _states())))
    shown, empty = map(cells, rows), "no workers are registered"
    print_found(output, {"workers": rows}, _COLUMNS, shown, empty=empty, extra=_WIDE, least=_LEAST)
    if output == "json":
        return
    for line in apart(rows):
        print(line)
    if coming := not_ready(rows):
        print()
        print_table(("WORKER", "VERSION", "STATE", "WHY"), coming, empty="", wide=output == "wide", least=("STATE",))


def merged(endpoints: Sequence[Mapping[str, Any]], states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Workers by name: the registry's fields, and `load` as admission knows it, None where it does not.

    A worker that drains has left the registry and is still at work: it is listed with what it told admission.
    """
    known = {state["hello"]["worker"]: state for state in states}
    rows = [{**endpoint, "load": _load(known.pop(endpoint["instance"], None))} for endpoint in endpoints]
    for name, state in known.items():
        hello = state["hello"]
        told = {field: hello[field] for field in ("address", "zone", "pool", "engine", "simulated", "model_versions")}
        rows.append({"service": "worker", "instance": name, **told, "load": _load(state)})
    return sorted(rows, key=lambda row: str(row["instance"]))


def cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    """A worker's line in the table."""
    engine = row["engine"] + (" (simulated)" if row["simulated"] else "")
    load = row["load"]
    # What it told admission last goes before what it registered with: that is what requests are placed by.
    versions = (load or {}).get("model_versions") or row["model_versions"]
    who = (row["instance"], row["zone"], row["pool"], engine, versions)
    numerics = sorted(set(row.get("numerics", {}).values()))
    nothing = [None] * (len(_COLUMNS) - len(who) - 2)
    if load is None:
        return (*who, "unreported", *nothing, numerics)
    state = "draining" if load["draining"] else "ready"
    if load["report_age"] is None:
        return (*who, "joining", *nothing, numerics)
    return (
        *who,
        state,
        load["running"],
        load["waiting"],
        load["swapped"],
        f"{load['free_blocks']} / {load['total_blocks']}",
        f"{load['kv_usage']:.0%}",
        f"{load['fragmentation']:.0%}",
        None if load["prefix_hit_rate"] is None else f"{load['prefix_hit_rate']:.1%}",
        load["preemptions_total"],
        f"{load['decode_step'] * 1000:.1f} ms" if load["decode_step"] else None,
        f"{load['prefill_tokens_per_second']:.0f}" if load["prefill_tokens_per_second"] else None,
        f"{load['report_age']:.1f} s",
        numerics,
    )


def apart(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each version that workers of one pool compute in different bits, or one of them in bits that depend on
    the batch: what becomes of streams that move between them."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        for version in row["model_versions"] if "numerics" in row else ():
            ways = found.setdefault((row["pool"], version), {})
            ways.setdefault(row["numerics"].get(version, "unknown"), []).append(row["instance"])
    return [
        f"{version}: numbers differ between "
        + " and ".join(f"{', '.join(workers)} ({name})" for name, workers in sorted(ways.items()))
        + "; a stream that moves between them is flagged numerics_changed"
        for (_, version), ways in sorted(found.items())
        if len(ways) > 1 or ("unknown" in ways and len(ways["unknown"]) > 1)
    ]


def not_ready(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Versions that workers are to have and do not serve (yet): worker, version, how far it is, why it failed."""
    return [
        (row["instance"], each["model_version"], each["state"].removeprefix("LOAD_STATE_").lower(), each["detail"])
        for row in rows
        for each in row.get("model_states", ())
        if each["state"] != "LOAD_STATE_READY"
    ]


def _load(state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """One flat object: the last report, the sizes it is to be read against, what admission holds."""
    if state is None:
        return None
    hello, report = state["hello"], state["report"] or {}
    load = {name: hello[name] for name in ("block_size", "total_blocks", "max_running", "max_context")}
    load |= {name: state[name] for name in ("report_age", "held_sequences", "held_blocks")}
    load |= {**report, "draining": state["draining"]}
    if report:
        queried = report["prefix_queried_total"]
        load["kv_usage"] = 1 - report["free_blocks"] / hello["total_blocks"]
        load["prefix_hit_rate"] = report["prefix_hit_total"] / queried if queried else None
    return load


def _states() -> Sequence[Any]:
    """What admission knows of each worker; nothing, and a word on standard error, when it cannot be asked."""
    from libs.errors import WeirError

    try:
        return list(calls.ask("admission", "ListWorkers").workers)
    except (WeirError, NoMeshError) as error:
        warn(f"the load of the workers is not known: {error}")
        return ()
