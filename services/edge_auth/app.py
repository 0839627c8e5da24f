"""Edge-auth's composition root."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from libs.apikeys.pepper import read_pepper
from libs.clock import Clock, SystemClock
from libs.registry import RegistryView, Source, follow
from services.edge_auth.authenticator import Authenticator
from services.edge_auth.config import Settings
from services.edge_auth.jwks import KeySets, check_source
from services.edge_auth.placement import Placer
from services.edge_auth.policy.cache import VerdictCache
from services.edge_auth.server import SERVICE, AuthorizationServicer
from services.edge_auth.tokens import TokenVerifier

_REPORT_SECONDS = 5.0


class EdgeAuthService:
    """A `libs.service.Service`."""

    def __init__(
        self,
        *,
        view: RegistryView,
        keys: KeySets,
        authenticator: Authenticator,
        placer: Placer,
        servicer: AuthorizationServicer,
    ) -> None:
        self._view = view
        self._keys = keys
        self._authenticator = authenticator
        self._placer = placer
        self._servicer = servicer

    def register(self, server: grpc.aio.Server) -> list[str]:
        """See `libs.service.Service`."""
        self._servicer.register(server)
        return [SERVICE]

    async def run(self, ready: Callable[[], None]) -> None:
        """Ready once there are keys and tenants, from the registry or from its cached snapshot.

        Issuers' keys are not waited for: an issuer that is away must not keep everybody else's keys from working.
        """
        stops = [self._view.on_change(use) for use in (self._authenticator.use, self._placer.use)]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._view.run(), name="registry.view")
                group.create_task(self._keys.run(), name="jwks")
                await self._view.wait_ready()
                ready()
                while True:
                    await asyncio.sleep(_REPORT_SECONDS)
                    self._authenticator.report()
        finally:
            for stop in stops:
                stop()
            await self._view.close()

    async def drain(self) -> None:
        """Nothing to do: checks take microseconds, the server's grace covers them."""

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}


async def build(settings: Settings, *, clock: Clock | None = None, store: Source | None = None) -> EdgeAuthService:
    """The service. `store` replaces the registry in tests.

    :raises OSError: the pepper file cannot be read.
    :raises ValueError: the pepper is too short, or an issuer's settings cannot be trusted.
    """
    clock = clock or SystemClock()
    for issuer in settings.issuers:
        check_source(issuer)
    pepper = await asyncio.to_thread(read_pepper, Path(settings.pepper_file))
    keys = KeySets(
        settings.issuers,
        clock=clock,
        min_interval=settings.jwks_min_interval_seconds,
        on_change=lambda: authenticator.forget(),
    )
    authenticator = Authenticator(
        pepper=pepper,
        tokens=TokenVerifier(settings.issuers, keys, leeway=settings.leeway_seconds),
        clock=clock,
        max_bytes=settings.max_credential_bytes,
        good=VerdictCache(settings.good_cache_size),
        good_seconds=settings.good_cache_seconds,
        bad=VerdictCache(settings.bad_cache_size),
        bad_seconds=settings.bad_cache_seconds,
    )
    placer = Placer()
    return EdgeAuthService(
        view=follow("edge-auth", settings, source=store, clock=clock),
        keys=keys,
        authenticator=authenticator,
        placer=placer,
        servicer=AuthorizationServicer(
            authenticator=authenticator,
            placer=placer,
            clock=clock,
            peers=settings.peers,
            tls=settings.tls is not None,
        ),
    )
