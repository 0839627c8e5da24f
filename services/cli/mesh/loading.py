"""Waits until workers and predictors have the models that a fresh mesh is to answer with."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from weir.registry.v1 import registry_pb2 as pb

from libs.config import TlsFiles
from libs.registry import RegistrySnapshot, RegistryView
from libs.registry.remote import RegistrySource

TIMEOUT = 60.0
"""Seconds from the last process's readiness: a worker is ready when it started, maybe before anything was wanted of
it."""
_KINDS = ("models", "aliases", "endpoints")


class LoadError(Exception):
    """A model cannot be had; the message says which, and what the workers say."""


def missing(aliases: Collection[str], snapshot: RegistrySnapshot) -> list[str]:
    """Versions of these aliases that no worker, and no predictor, has ready yet. Pure.

    :raises LoadError: every worker of a version's pool failed to load it.
    """
    workers = [*snapshot.endpoints_of("worker"), *snapshot.endpoints_of("predictor")]
    given = [alias for name, alias in snapshot.aliases.items() if name in aliases]
    wanted = [target.model_version for alias in given for target in alias.targets]
    lacking = [name for name in wanted if not any(name in worker.model_versions for worker in workers)]
    for name in lacking:
        version = snapshot.model_versions.get(name)
        own = [worker for worker in workers if version is not None and worker.pool == version.pool]
        failures = {worker.instance: fault for worker in own if (fault := _fault(worker, name))}
        if own and len(failures) == len(own):
            instance, fault = next(iter(failures.items()))
            raise LoadError(f"{name} cannot be loaded: {fault} ({instance})")
    return lacking


async def wait_loaded(aliases: Collection[str], *, address: str, tls: TlsFiles) -> None:
    """Returns when every alias has a worker. Raises LoadError."""
    view = RegistryView(RegistrySource(address, _KINDS, tls=tls), kinds=_KINDS)
    following = asyncio.create_task(view.run())
    try:
        async with asyncio.timeout(TIMEOUT):
            await view.wait_ready()
            await view.wait_until(lambda snapshot: not missing(aliases, snapshot))
    except TimeoutError:
        lacking = missing(aliases, view.snapshot) if view.revision else []
        raise LoadError(f"nobody has {', '.join(lacking) or 'the models'} after {TIMEOUT:.0f} s") from None
    finally:
        following.cancel()
        await asyncio.wait([following])
        await view.close()


def _fault(worker: pb.Endpoint, name: str) -> str:
    for state in worker.model_states:
        if state.model_version == name and state.state == pb.LOAD_STATE_FAILED:
            return state.detail or "it does not say why"
    return ""
