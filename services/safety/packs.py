"""Keeps the policy book up with the registry and compiles packs: those that somebody waits for first, then those that
requests of the present tenants and model versions can need. One takes tenths of a second, so it happens in a thread."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from weir.registry.v1 import registry_pb2

from libs.errors import Reason, WeirError
from libs.registry import RegistrySnapshot
from libs.resources.checks.safety import SHIPPED
from libs.safety_filter import Pack, PackError, Rule, rules_from_json
from libs.safety_policies import compose, floor_of, rules_of
from libs.telemetry import get_logger
from services.safety import metrics
from services.safety.policy.book import Pins, PolicyBook

log = get_logger(__name__)
_MOST_WANTED = 256
"""Packs that wait for being compiled, or for a policy to arrive; the oldest are forgotten."""


def load_shipped(directory: Path, *, check: bool) -> dict[str, list[Rule]]:
    """Read the pack files of a directory; the file's name is the policy's id.

    :param check: whether to compile them all, which takes half a second of a start; those that come with the service
        are compiled by its tests.

    Raises:
        PackError: one of them is bad.
        OSError: a file cannot be read.
    """
    shipped: dict[str, list[Rule]] = {}
    for path in sorted(directory.glob("*.json")):
        pin = f"{path.stem}@{SHIPPED}"
        shipped[pin] = [replace(rule, pack=pin) for rule in rules_from_json(path.read_text(encoding="utf-8"))]
        if check:
            compose((pin,), shipped)
    return shipped


class PackKeeper:
    """Holds the book. `apply` takes snapshots as they come, `run` compiles what is asked for."""

    def __init__(self, book: PolicyBook, *, patience: float) -> None:
        """`patience`: seconds that a question waits for a policy that this service has not heard of yet."""
        self.book = book
        self._patience = patience
        self._policies: Mapping[str, registry_pb2.SafetyPolicy] = {}
        self._rules: dict[str, Sequence[Rule]] = {}
        self._wanted: dict[Pins, None] = {}
        self._ahead: dict[Pins, None] = {}
        self._refused: dict[Pins, str] = {}
        self._work = asyncio.Event()
        self._turn = asyncio.Event()
        """Set, and replaced by another, whenever something was compiled, refused or learnt."""

    def apply(self, snapshot: RegistrySnapshot) -> None:
        """Take a snapshot."""
        now, before = snapshot.safety_policies, self._policies
        self._rules = {
            pin: self._rules[pin] if before.get(pin) is policy else rules_of(pin, policy) for pin, policy in now.items()
        }
        self._policies = now
        self._refused.clear()
        self.book.learn(self._rules, floor_of(snapshot))
        asked = asked_for(self.book.floor, snapshot)
        self._ahead = dict.fromkeys(islice((pins for pins in asked if self.book.ready(pins) is None), self.book.most))
        self._turned()
        self._work.set()
        metrics.POLICIES.set(len(now))
        metrics.REVISION.set(snapshot.revision)

    def ready(self, pins: Pins) -> Pack | None:
        """The pack of exactly these policies; None: it is not compiled, and will be if they are known."""
        pack = self.book.ready(pins)
        if pack is None:
            self._want(pins)
        return pack

    async def compiled(self, pins: Pins) -> Pack:
        """As `ready`, as soon as it is. For a policy that is unknown here it waits for the keeper's patience, for one
        that is being compiled as long as the caller does.

        :raises WeirError: DEPENDENCY_UNAVAILABLE when a policy did not become known in time; NOT_FOUND when they do not
            make a pack.
        """
        until = asyncio.get_running_loop().time() + self._patience
        while (pack := self.ready(pins)) is None:
            if pins in self._refused:
                raise WeirError(Reason.NOT_FOUND, f"the policies {_named(pins)} cannot be used", limit="policies")
            try:
                async with asyncio.timeout_at(until if self.book.rules(pins) is None else None):
                    await self._turn.wait()
            except TimeoutError:
                message = f"the policies {_named(pins)} are not known here yet"
                raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, message, limit="policies", retry_after=1.0) from None
        return pack

    async def run(self) -> None:
        """Compile what is wanted, until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while (found := self._next()) is not None:
                await self._compile(*found)

    def _next(self) -> tuple[Pins, Mapping[str, Sequence[Rule]]] | None:
        for queue in (self._wanted, self._ahead):
            for pins in queue:
                if (rules := self.book.rules(pins)) is not None:
                    self._wanted.pop(pins, None)
                    self._ahead.pop(pins, None)
                    return pins, rules
        return None

    async def _compile(self, pins: Pins, rules: Mapping[str, Sequence[Rule]]) -> None:
        try:
            pack = await asyncio.to_thread(compose, pins, rules)
        except PackError as error:
            metrics.PACKS_REFUSED.inc()
            log.error("safety_policies_refused", policies=list(pins), reason=str(error))
            self._refused[pins] = str(error)
        else:
            if self.book.rules(pins) == rules:  # else they changed meanwhile; whoever needs it asks again
                self.book.keep(pins, pack)
        metrics.PACKS.set(len(self.book))
        self._turned()

    def _turned(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    def _want(self, pins: Pins) -> None:
        if pins in self._refused:
            return
        self._wanted[pins] = None
        if len(self._wanted) > _MOST_WANTED:
            del self._wanted[next(iter(self._wanted))]
        self._work.set()


def asked_for(floor: Sequence[str], snapshot: RegistrySnapshot) -> Iterator[Pins]:
    """What requests can be under: the floor, with what each tenant adds, with what each model version adds to that."""
    tenants = {(): None} | dict.fromkeys(tuple(tenant.safety_policies) for tenant in snapshot.tenants.values())
    versions = {(): None} | dict.fromkeys(tuple(one.safety_policies) for one in snapshot.model_versions.values())
    for version in versions:
        for tenant in tenants:
            yield tuple(dict.fromkeys((*floor, *tenant, *version)))


def _named(pins: Pins) -> str:
    return ", ".join(pins)
