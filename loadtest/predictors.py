"""When a mesh's predictors have what is wanted of them: until then they load it, beside whatever is measured."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from weir.registry.v1 import registry_pb2 as pb

from libs.config import TlsFiles
from libs.registry import RegistrySnapshot, RegistryView
from libs.registry.remote import RegistrySource
from libs.rollouts import desired_versions

_KINDS = ("models", "aliases", "rollouts", "pins", "endpoints")
_SECONDS = 120.0
_ENDS = frozenset((pb.LOAD_STATE_READY, pb.LOAD_STATE_FAILED, pb.LOAD_STATE_UNLOADED))


def unsettled(snapshot: RegistrySnapshot, predictors: int, now: float) -> list[str]:
    """What so many predictors have neither loaded nor given up, "version (instance)". Pure; `now`: Unix seconds."""
    live = snapshot.endpoints_of("predictor")
    found = [f"{predictors - len(live)} predictors"] if len(live) < predictors else []
    for each in live:
        ended = {state.model_version for state in each.model_states if state.state in _ENDS}
        wanted = desired_versions(snapshot, each.pool, now)
        found += [f"{name} ({each.instance})" for name in sorted(wanted) if name not in ended]
    return found


async def settled(state: Path) -> None:
    """Wait until every predictor of the mesh has loaded what the registry wants of it, or given it up.

    :param state: the mesh's folder.
    :raises TimeoutError: it has not.
    """
    file = json.loads((state / "mesh.json").read_bytes())
    services, tls = file["services"], TlsFiles(**{name: file["tls"][name] for name in ("ca", "cert", "key")})
    count = sum(each["service"] == "predictor" for each in services.values())
    view = RegistryView(RegistrySource(services["registry"]["address"], _KINDS, tls=tls), kinds=_KINDS)
    following = asyncio.create_task(view.run())
    try:
        async with asyncio.timeout(_SECONDS):
            await view.wait_ready()
            await view.wait_until(lambda snapshot: not unsettled(snapshot, count, time.time()))
    except TimeoutError:
        lacking = unsettled(view.snapshot, count, time.time()) if view.revision else []
        raise TimeoutError(f"after {_SECONDS:g} s predictors lack {', '.join(lacking)}") from None
    finally:
        following.cancel()
        await asyncio.wait([following])
        await view.close()
