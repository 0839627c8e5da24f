"""How a service comes to its view: from the registry, as its row in the table of kinds says, and no more."""

from __future__ import annotations

from pathlib import Path

from libs.clock import Clock
from libs.config import ServiceSettings
from libs.registry.etcd import EtcdStore
from libs.registry.memory import MemoryStore
from libs.registry.ports import Source
from libs.registry.remote import RegistrySource
from libs.registry.view import RegistryView
from libs.resources.kinds import KINDS


def followed_by(service: str) -> tuple[str, ...]:
    """Plural names of the kinds that a service follows."""
    return tuple(kind.plural for kind in KINDS if service in kind.followers)


def follow(
    service: str, settings: ServiceSettings, *, clock: Clock | None = None, source: Source | None = None
) -> RegistryView:
    """A service's view, with a cache in its state directory; `RegistryView.close` closes what it reads from.

    :param service: as the table of kinds calls it.
    :param source: replaces the registry in tests.
    """
    kinds = followed_by(service)
    cache = Path(settings.state_dir) / "registry.cache" if settings.state_dir else None
    return RegistryView(source or _source(settings, kinds), kinds=kinds, cache_file=cache, clock=clock)


def _source(settings: ServiceSettings, kinds: tuple[str, ...]) -> Source:
    if settings.registry:
        return RegistrySource(settings.registry, kinds, tls=settings.tls)
    return EtcdStore(settings.etcd, tls=settings.tls) if settings.etcd else MemoryStore()
