"""Edge-auth's composition root."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from libs.apikeys.pepper import read_pepper
from libs.auditlog.link import AuditLink, JournaledLink, NoAudit, open_journaled
from libs.auditlog.watch import SecurityWatch
from libs.clock import Clock, SystemClock
from libs.registry import RegistryView, Source, follow
from services.edge_auth.authenticator import Authenticator
from services.edge_auth.config import Settings
from services.edge_auth.jwks import KeySets, check_issuers
from services.edge_auth.placement import Placer
from services.edge_auth.policy.cache import VerdictCache
from services.edge_auth.security import Lookout
from services.edge_auth.server import SERVICE, AuthorizationServicer
from services.edge_auth.tokens import TokenVerifier

_REPORT_SECONDS = 5.0
_DRAIN_SECONDS = 1.0
"""For the last security events."""


class EdgeAuthService:
    """A `libs.service.Service`."""

    def __init__(
        self,
        *,
        view: RegistryView,
        keys: KeySets,
        authenticator: Authenticator,
        placer: Placer,
        audit: JournaledLink | AuditLink | NoAudit,
        watch: SecurityWatch,
        lookout: Lookout,
        servicer: AuthorizationServicer,
    ) -> None:
        self._view = view
        self._keys = keys
        self._authenticator = authenticator
        self._placer = placer
        self._audit = audit
        self._watch = watch
        self._lookout = lookout
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
                group.create_task(self._audit.run(), name="audit.link")
                group.create_task(self._watch.run(), name="audit.security")
                group.create_task(self._lookout.run(), name="audit.networks")
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
        """Checks take microseconds, the server's grace covers them; what was counted is written, if that is quick."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._watch.flush()

    def lacks(self) -> Sequence[str]:
        """See `libs.service.Waiting`."""
        return () if self._view.revision else ("registry",)

    def endpoint_extra(self) -> Mapping[str, Any]:
        """See `libs.service.Service`."""
        return {}


async def build(settings: Settings, *, clock: Clock | None = None, store: Source | None = None) -> EdgeAuthService:
    """The service. `store` replaces the registry in tests.

    :raises OSError: the pepper file cannot be read.
    :raises ValueError: the pepper is too short, or an issuer's settings cannot be trusted.
    """
    clock = clock or SystemClock()
    check_issuers(settings.issuers)
    pepper = await asyncio.to_thread(read_pepper, Path(settings.pepper_file))
    keys = KeySets(
        settings.issuers,
        clock=clock,
        min_interval=settings.jwks_min_interval_seconds,
        on_change=lambda: authenticator.forget(),
    )
    authenticator = Authenticator(
        pepper=pepper,
        tokens=TokenVerifier(settings.issuers, keys, leeway=settings.leeway_seconds, pepper=pepper),
        clock=clock,
        max_bytes=settings.max_credential_bytes,
        good=VerdictCache(settings.good_cache_size),
        good_seconds=settings.good_cache_seconds,
        bad=VerdictCache(settings.bad_cache_size),
        bad_seconds=settings.bad_cache_seconds,
    )
    placer = Placer()
    rng = random.SystemRandom()
    audit = open_journaled(settings.audit_target, settings, clock=clock, rng=rng)
    watch = SecurityWatch(
        audit,
        source=f"{settings.service}/{settings.instance}",
        clock=clock,
        rng=rng,
        interval=settings.security_seconds,
    )
    networks = Path(settings.state_dir) / "networks" if settings.state_dir else None
    lookout = await asyncio.to_thread(Lookout, watch, pepper=pepper, file=networks)
    return EdgeAuthService(
        view=follow("edge-auth", settings, source=store, clock=clock),
        keys=keys,
        authenticator=authenticator,
        placer=placer,
        audit=audit,
        watch=watch,
        lookout=lookout,
        servicer=AuthorizationServicer(
            authenticator=authenticator,
            placer=placer,
            lookout=lookout,
            clock=clock,
        ),
    )
