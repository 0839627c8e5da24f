"""Keeps the policy book up with the registry. Compiling takes tens of milliseconds, so it happens in a thread."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from weir.registry.v1 import registry_pb2

from libs.registry import RegistrySnapshot
from libs.safety_filter import Pack, PackError, Rule, compile_pack, rules_from_json
from libs.telemetry import get_logger
from services.safety import metrics
from services.safety.policy.book import PolicyBook

log = get_logger(__name__)


def load_shipped(directory: Path) -> dict[str, Pack]:
    """Compile the pack files of a directory; the file's name is the policy's id, the version is 0.

    Raises:
        PackError: one of them is bad: a shipped pack must never be.
        OSError: a file cannot be read.
    """
    return {
        path.stem: compile_pack(path.stem, 0, rules_from_json(path.read_text(encoding="utf-8")))
        for path in sorted(directory.glob("*.json"))
    }


def pack_of(policy: registry_pb2.SafetyPolicy) -> Pack:
    """Compile a registered policy.

    Raises:
        PackError: it does not compile.
    """
    return compile_pack(
        policy.id,
        policy.version,
        [
            Rule(
                id=rule.id,
                category=rule.category,
                pattern=rule.pattern,
                action=rule.action,
                stage=rule.stage,
                replacement=rule.replacement,
            )
            for rule in policy.rules
        ],
    )


class PackKeeper:
    """Holds the book. `apply` takes snapshots as they come, `run` compiles what changed; a bad pack is refused and the
    last good one of that policy stays in force."""

    def __init__(self, *, default: str, shipped: Mapping[str, Pack]) -> None:
        self.book = PolicyBook(default=default, shipped=shipped)
        self._policies: Mapping[str, registry_pb2.SafetyPolicy] = {}
        self._seen: dict[str, registry_pb2.SafetyPolicy] = {}
        self._revision = 0
        self._dirty = asyncio.Event()
        self._settled = asyncio.Event()

    def apply(self, snapshot: RegistrySnapshot) -> None:
        """Take a snapshot: tenants bind at once, policies once they are compiled."""
        self._policies = snapshot.safety_policies
        self._revision = snapshot.revision
        tenants = {id_: tenant.safety_policy for id_, tenant in snapshot.tenants.items() if tenant.safety_policy}
        self.book = PolicyBook(self.book.default, self.book.shipped, self.book.registered, tenants)
        self._settled.clear()
        self._dirty.set()

    async def wait_settled(self) -> None:
        """Wait until the packs of the last snapshot are in force or refused."""
        await self._settled.wait()

    async def run(self) -> None:
        """Compile what changes, until cancelled."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._update()
            if not self._dirty.is_set():
                self._settled.set()

    async def _update(self) -> None:
        policies, revision = self._policies, self._revision
        packs = {name: pack for name, pack in self.book.registered.items() if name in policies}
        for name, policy in policies.items():
            if self._seen.get(name) is policy:
                continue
            self._seen[name] = policy
            try:
                packs[name] = await asyncio.to_thread(pack_of, policy)
            except PackError as error:
                metrics.PACKS_REFUSED.inc()
                log.error("safety_pack_refused", policy=name, version=policy.version, reason=str(error))
        self._seen = {name: policy for name, policy in self._seen.items() if name in policies}
        self.book = PolicyBook(self.book.default, self.book.shipped, packs, self.book.tenants)
        metrics.PACKS.set(len({*packs, *self.book.shipped}))
        metrics.PACKS_REVISION.set(revision)
