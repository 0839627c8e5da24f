"""Seals records, opens them, and forgets: what the audit service does with keys. Blocking, in the files' thread, but
for `opened`, which any thread may ask."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from libs.auditlog import AuditFiles
from libs.auditlog.chain import Entry
from libs.auditlog.frame import Draft, FrameError, Sealed, associated, clear_body, header_of, opened_body, take_apart
from libs.auditlog.group import Incoming, Stored
from libs.auditlog.keys import Signer, Verifier
from libs.auditlog.tail import ever_sealed, tombstones_after
from libs.auditlog.tombstones import MAX_KEYS, Tombstone, Tombstones, body_of, read, signed
from libs.sealing.keks import KekError
from libs.sealing.keyring import KeyGoneError, Keyring, SealingError
from libs.sealing.opening import open_keks
from libs.sealing.scope import Scope
from libs.sealing.vault import Vault, VaultError
from libs.telemetry import get_logger
from services.audit import metrics

log = get_logger(__name__)
_CLOSED = "the keys are not open"


class Opened(NamedTuple):
    """A record as far as it can be read."""

    body: dict[str, Any] | None
    """Plain values; what is erased, or cannot be opened now, is missing in it. None: it cannot be read at all."""
    erased_by: int = 0
    """The tombstone by which the payload was erased."""
    fault: str = ""
    """Why the payload is missing without having been erased."""


class Erased(NamedTuple):
    """What an erasure did."""

    tombstones: tuple[int, ...]
    keys: int


class PendingError(SealingError):
    """A tombstone is in the log and its keys are not destroyed yet: nobody is given them, and it is tried again."""


@dataclass(slots=True, kw_only=True)
class Sealing:
    """Of one log."""

    vault_dir: Path
    kek: str
    """The address of the key-encryption key."""
    files: AuditFiles
    log_dir: Path
    sign: Signer
    verify: Verifier
    source: str
    now: Callable[[], float]
    """Unix seconds."""
    monotonic: Callable[[], float]
    rfc3339: Callable[[], str]
    rng: random.Random
    told: str = ""
    """The newest month that a record was of."""
    _vault: Vault | None = None
    _keyring: Keyring | None = None
    _tombstones: Tombstones = field(default_factory=Tombstones)
    _pending: list[Tombstone] = field(default_factory=list)

    def open(self) -> None:
        """Opens the vault of a log that is open, and finishes what tombstones say.

        :raises KekError, VaultError, PendingError: the keys cannot be used; nothing is sealed, and nothing written
            unsealed.
        """
        self._tombstones, self._pending = Tombstones(), []
        vault = Vault(self.vault_dir, create=not ever_sealed(self.log_dir))
        try:
            fresh = vault.empty
            keyring = Keyring(vault, open_keks(self.kek, create=fresh), now=self.now, monotonic=self.monotonic)
            if fresh:
                vault.note("clear_upto", self.files.count)
            self._vault, self._keyring = vault, keyring
            for number, record in vault.tombstones():
                self._learn(number, record)
            self._reapply(vault)
            self._rewrap(keyring)
        except BaseException:
            self._vault = self._keyring = None
            vault.close()
            raise

    def close(self) -> None:
        """Gives the vault back."""
        if self._vault is not None:
            self._vault.close()
        self._vault = self._keyring = None

    def seal(self, drafts: Sequence[Draft]) -> list[bytes | Sealed | SealingError]:
        """What is to be appended for each draft; a tenant whose key cannot be had leaves the others alone."""
        keyring = self._keyring
        with suppress(PendingError):
            self.finish()
        wanted = [draft.wanted for draft in drafts if draft.wanted is not None]
        if keyring is None:
            return [draft.header if draft.wanted is None else SealingError(_CLOSED) for draft in drafts]
        keys = iter(keyring.keys_for(wanted))
        self.told = max((self.told, *(each.told for each in wanted)))
        made: list[bytes | Sealed | SealingError] = []
        for draft in drafts:
            key = None if draft.wanted is None else next(keys)
            if key is None:
                made.append(draft.header)
            else:
                made.append(key if isinstance(key, SealingError) else Sealed(draft, key, keyring))
        return made

    def opened(self, entry: Entry) -> Opened:
        """A record of the log with its payload, or why there is none."""
        parts, payload, erased, fault = take_apart(entry.record), b"{}", 0, ""
        try:
            if parts is not None:
                header = header_of(entry.record)
                try:
                    if self._keyring is None:
                        raise SealingError(_CLOSED)
                    aad = associated(entry.prev, entry.sequence, parts.header)
                    payload = self._keyring.open(header.name.id, header.nonce.encode(), parts.sealed, aad)
                except KeyGoneError as error:
                    grave = self._tombstones.covering(header.name)
                    erased, fault = (grave.number, "") if grave else (0, str(error))
                except SealingError as error:
                    fault = str(error)
                return Opened(opened_body(entry.record, payload), erased, fault)
            return Opened(clear_body(entry.record))
        except FrameError as error:
            return Opened(None, fault=str(error))

    @property
    def clear_upto(self) -> int:
        """Records up to this one were never sealed; 0 when none of them is left."""
        upto = self._open_vault().clear_upto
        return upto if upto > self.files.base.count else 0

    def digest(self, tenant: str, subject: str) -> str:
        """See `Keyring.digest`."""
        return self._keyring.digest(tenant, subject) if self._keyring else ""

    def covered(self, scope: Scope) -> int:
        """How many keys a scope has."""
        return len(self._open_vault().covered(replace(scope, upto=self._open_vault().serial)))

    def erase(self, scope: Scope, *, actor: str, reason: str, reference: str = "") -> Erased:
        """Puts a tombstone into the log and destroys what it covers. Records that come meanwhile get new keys: all of
        this is done between two commits.

        :raises WriteFailedError: nothing was erased.
        :raises VaultError: the keys cannot be read; nothing was erased.
        :raises PendingError: the tombstone stands; repeat it, or start again.
        """
        self.finish()
        vault = self._open_vault()
        found = sorted(key.id for key in vault.covered(replace(scope, upto=vault.serial)))
        # A subject's tombstone names its keys, and has room for so many.
        parts = [found[at : at + MAX_KEYS] for at in range(0, len(found), MAX_KEYS)] if scope.subject else [found]
        numbers = []
        for keys in filter(None, parts):
            named = frozenset(keys) if scope.subject else frozenset()
            part = replace(scope, upto=vault.serial, keys=named)
            body = body_of(
                part,
                record_id=f"tombstone-{self.rng.getrandbits(128):032x}",
                source=self.source,
                time=self.rfc3339(),
                actor=actor,
                reason=reason,
                reference=reference,
                destroyed=len(keys),
            )
            record = signed(body, self.sign)
            [stored] = self.files.commit([Incoming(body["id"], record)])
            if stored is None:
                raise RuntimeError("a tombstone is of no journal")
            numbers.append(stored.sequence)
            self._bury_later(Tombstone(stored.sequence, record, part), keys)
        self.finish()
        metrics.ERASED.inc(len(found))
        return Erased(tuple(numbers), len(found))

    def finish(self) -> None:
        """Destroys what tombstones cover and a full disk, or a crash, has left.

        :raises PendingError: it is still there.
        """
        while self._pending:
            grave = self._pending[0]
            try:
                self._open_vault().bury(grave.number, grave.record, grave.scope)
            except VaultError as error:
                raise PendingError(
                    f"tombstone {grave.number} stands, its keys are not destroyed yet: {error}"
                ) from error
            del self._pending[0]

    def rotate(self) -> tuple[str, int]:
        """See `Keyring.rotate`."""
        if self._keyring is None:
            raise SealingError(_CLOSED)
        return self._keyring.rotate()

    def keys(self) -> frozenset[str] | None:
        """Ids of the keys that there are; None while nobody can say."""
        return self._vault.names() if self._vault is not None else None

    def buried(self) -> list[tuple[int, bytes]]:
        """Tombstones as the vault has them."""
        return self._vault.tombstones() if self._vault is not None else []

    def note_applied(self) -> None:
        """The next start need not look for tombstones before this.

        :raises PendingError, VaultError: it must.
        """
        self.finish()
        self._open_vault().note("applied", self.files.count)

    @staticmethod
    def _rewrap(keyring: Keyring) -> None:
        """Finishes a rotation. One key that is damaged is no reason to take no records: the key-encryption key that
        wrapped it stays, and with it all of that time."""
        try:
            if keys := keyring.rewrap():
                log.warning("audit_keys_wrapped_anew", keys=keys)
        except KekError as error:
            log.error("audit_keys_not_wrapped_anew", reason=str(error))

    def _open_vault(self) -> Vault:
        if self._vault is None:
            raise VaultError(_CLOSED)
        return self._vault

    def _reapply(self, vault: Vault) -> None:
        """Tombstones of the log that the vault does not know: of a crash, or of a vault that was put back."""
        known = {record for _, record in vault.tombstones()}
        after = vault.applied if vault.applied <= self.files.count else 0
        for number, record in tombstones_after(self.log_dir, after=after, upto=self.files.count):
            grave = self._learn(number, record)
            if grave is not None and record not in known:
                keys = [key.id for key in vault.covered(grave.scope)]
                self._pending.append(grave)
                log.warning("audit_erasure_finished", tombstone=number, keys=len(keys))
        self.finish()
        vault.note("applied", self.files.count)

    def _learn(self, number: int, record: bytes) -> Tombstone | None:
        """:raises VaultError: a tombstone does not hold: whoever wrote it could have keys destroyed, or kept."""
        try:
            grave = read(number, record, self.verify)
        except ValueError as error:
            raise VaultError(str(error)) from error
        if grave is not None:
            self._tombstones.add(grave)
        return grave

    def _bury_later(self, grave: Tombstone, keys: Sequence[str]) -> None:
        self._tombstones.add(grave)
        self._pending.append(grave)
        if self._keyring is not None:
            self._keyring.forget(keys)


def write(files: AuditFiles, sealing: Sealing, incoming: Sequence[Incoming]) -> list[Stored | SealingError | None]:
    """Seals and commits a group: where each record lies, None for one of an epoch that is over, or why it could not be
    sealed. What stands behind such a one in its journal waits with it: a journal is stored in its order.

    :raises WriteFailedError: none of them is on the disk.
    """
    sealed = iter(sealing.seal([each.record for each in incoming if isinstance(each.record, Draft)]))
    waits: dict[tuple[str, str], SealingError] = {}
    made: list[Incoming | SealingError] = []
    for each in incoming:
        record = next(sealed) if isinstance(each.record, Draft) else each.record
        source = (each.origin.source, each.origin.journal) if each.origin is not None else ("", each.id)
        if isinstance(record, SealingError) or source in waits:
            made.append(waits.setdefault(source, record if isinstance(record, SealingError) else SealingError()))
        else:
            made.append(each._replace(record=record))
    stored = iter(files.commit([each for each in made if isinstance(each, Incoming)]))
    return [each if isinstance(each, SealingError) else next(stored) for each in made]


__all__ = ["Erased", "KekError", "Opened", "PendingError", "Sealing", "VaultError", "write"]
