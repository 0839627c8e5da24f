"""Data keys in use: seals with the one of an owner and month, opens with the one that a record names.

**Nonces.** AES-GCM breaks when a key sees a nonce twice. A data key never seals by itself: from it and 16 random bytes
drawn when this process began comes the key that does (HKDF-SHA256), and the nonce is a counter of this process. So
nonces are unique over restarts, over failed writes, and over a log and a vault that were restored, without a counter on
a disk; and the limit of random nonces (2^32 records of a key, NIST SP 800-38D 8.3) is none here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from libs.sealing.keks import KEY_BYTES, KekAwayError, KekDamagedError, KekError, Keks
from libs.sealing.scope import Owner, Wanted, key_id, month_of, sealing_month
from libs.sealing.vault import Vault, VaultError, WrappedKey
from libs.telemetry import get_logger

log = get_logger(__name__)
_SESSION_BYTES = 16
_COUNTER_BYTES = 8
_MOST_HELD = 20_000
"""Keys in memory: about 1 kB each. Past this all are let go and unwrapped anew."""
_PEPPER = "pepper"


class SealingError(Exception):
    """A key cannot be had; the message says why."""


class KeyGoneError(SealingError):
    """The vault has no such key any more."""


@dataclass(frozen=True, slots=True)
class SealingKey:
    """What seals an owner's records in this process."""

    id: str
    month: str
    aead: AESGCM


class Keyring:
    """The keys of one vault. Any thread."""

    def __init__(
        self, vault: Vault, keks: Keks, *, now: Callable[[], float], monotonic: Callable[[], float], pause: float = 5.0
    ) -> None:
        """:param now: Unix seconds, and `monotonic` seconds.

        :param pause: seconds for which nobody is asked again after the key-encryption key was away.
        :raises KekError, VaultError: the vault cannot be used with these keys.
        """
        self._vault = vault
        self._keks = keks
        self._now = now
        self._monotonic = monotonic
        self._pause = pause
        self._lock = threading.RLock()
        self._session = secrets.token_bytes(_SESSION_BYTES)
        self._counter = itertools.count(1)
        self._sealing: dict[Owner, SealingKey] = {}
        self._data: dict[str, bytes] = {}
        self._opening: dict[tuple[str, bytes], AESGCM] = {}
        self._doomed: set[str] = set()
        self._away_until = 0.0
        self._newest = vault.newest_month
        self._pepper = self._own_secret()

    def digest(self, tenant: str, subject: str) -> str:
        """What a tenant's end user is called in the vault and in tombstones: nobody without the vault's own secret can
        try names. 32 hex digits; empty for none."""
        if not subject:
            return ""
        named = f"{tenant}\0{subject}".encode("utf-8", "surrogatepass")
        return hmac.new(self._pepper, named, hashlib.sha256).hexdigest()[:32]

    def keys_for(self, wanted: Iterable[Wanted]) -> list[SealingKey | SealingError]:
        """The key of each, made where there is none yet; what is new is on disk when this returns. One that cannot be
        had leaves the others alone."""
        with self._lock:
            own = month_of(self._now())
            owners = []
            for each in wanted:
                self._newest = sealing_month(self._newest, own, each.told)
                subject = self.digest(each.tenant, each.subject) if each.subject else ""
                owners.append(Owner(each.tenant, subject, each.data_class, self._newest))
            missing = [owner for owner in dict.fromkeys(owners) if owner not in self._sealing]
            failed = self._make_ready(missing) if missing else {}
            return [self._sealing[owner] if owner in self._sealing else failed[owner] for owner in owners]

    def nonce(self) -> tuple[bytes, bytes]:
        """A nonce that no record has: (for the cipher, as a record tells it)."""
        count = next(self._counter).to_bytes(_COUNTER_BYTES, "big")
        return b"\0\0\0\0" + count, base64.b64encode(self._session + count)

    def open(self, key: str, nonce: bytes, sealed: bytes, aad: bytes) -> bytes:
        """A payload; `nonce` as the record tells it, `sealed` as it stands in the record.

        :raises KeyGoneError: the key is not there.
        :raises SealingError: the key cannot be had now, or this was not sealed with it, here.
        """
        try:
            told = base64.b64decode(nonce, validate=True)
            session, count = told[:_SESSION_BYTES], told[_SESSION_BYTES:]
            if len(count) != _COUNTER_BYTES:
                raise SealingError("the nonce is malformed")
            return self._opener(key, session).decrypt(b"\0\0\0\0" + count, base64.b64decode(sealed, validate=True), aad)
        except (binascii.Error, ValueError) as error:
            raise SealingError("the payload is malformed") from error
        except InvalidTag as error:
            raise SealingError("the payload was not sealed for this place and header") from error

    def forget(self, keys: Iterable[str]) -> None:
        """These are not used any more from now on, whether the vault has destroyed them yet or not."""
        with self._lock:
            self._doomed.update(keys)
            self._data.clear()
            self._opening.clear()
            self._sealing.clear()

    def rewrap(self) -> int:
        """Wraps every key anew that another key-encryption key than the primary one wraps, proves each, and then has
        the others destroyed. What is damaged stays so. May be interrupted and repeated; returns how many were wrapped
        anew.

        :raises KekError, VaultError: not all were; no key-encryption key is gone.
        """
        with self._lock:
            made = []
            for key in self._vault.wrapped_otherwise(self._keks.primary):
                context = _context(key.id, key.owner)
                try:
                    clear = self._keks.unwrap(key.kek, key.wrapped, context)
                except KekDamagedError as error:
                    log.error("sealing_key_damaged", key=key.id, month=key.owner.month, reason=str(error))
                    continue
                made.append(key._replace(kek=self._keks.primary, wrapped=self._wrapped(clear, context)))
            self._vault.rewrap(made)
            self._own_secret()
            self._keks.retire()
            return len(made)

    def rotate(self) -> tuple[str, int]:
        """A new key-encryption key where we make them, and every key under the primary one: (its id, how many). What
        was wrapped before, in backups too, can be unwrapped by nobody afterwards.

        :raises KekError, VaultError: as `rewrap`; repeat it.
        """
        with self._lock:
            return self._keks.rotate(), self.rewrap()

    def _own_secret(self) -> bytes:
        """The vault's secret, wrapped by the primary key; made in a vault that has none. It also shows, before anything
        is sealed, that the key-encryption key is the right one."""
        context = {"for": _PEPPER}
        found = self._vault.secret(_PEPPER)
        secret = secrets.token_bytes(KEY_BYTES) if found is None else self._keks.unwrap(*found, context)
        if found is None or found[0] != self._keks.primary:
            self._vault.keep_secret(_PEPPER, self._keks.primary, self._wrapped(secret, context))
        return secret

    def _wrapped(self, key: bytes, context: dict[str, str]) -> bytes:
        """A key under the primary one, of which it is known that it opens again."""
        wrapped = self._keks.wrap(key, context)
        if self._keks.unwrap(self._keks.primary, wrapped, context) != key:
            raise KekAwayError("what was wrapped does not unwrap")
        return wrapped

    def _make_ready(self, owners: Sequence[Owner]) -> dict[Owner, SealingError]:
        """Fills `_sealing`; returns what cannot be had."""
        if len(self._sealing) + len(owners) > _MOST_HELD or len(self._data) > _MOST_HELD:
            self._data.clear()
            self._opening.clear()
            self._sealing.clear()
        failed: dict[Owner, SealingError] = {}
        ready: dict[Owner, str] = {}
        fresh: dict[Owner, WrappedKey] = {}
        try:
            serial = self._vault.serial
            for owner in owners:
                try:
                    ready[owner] = self._of(owner, serial, fresh)
                except (KekError, SealingError) as error:
                    failed[owner] = SealingError(str(error))
            if fresh:
                self._vault.add(list(fresh.values()))
        except VaultError as error:
            for key in fresh.values():
                self._data.pop(key.id, None)
            return {owner: SealingError(str(error)) for owner in owners}
        for owner, name in ready.items():
            self._sealing[owner] = SealingKey(name, owner.month, self._opener(name, self._session))
        return failed

    def _of(self, owner: Owner, serial: int, fresh: dict[Owner, WrappedKey]) -> str:
        """The id of an owner's key, whose data are then known; a new one is put into `fresh`, its parent before it."""
        found = fresh.get(owner) or self._vault.find(owner)
        if found is not None and found.id not in self._doomed:
            try:
                self._unwrap(found)
                return found.id
            except KekDamagedError as error:
                # What it sealed is lost, or comes back with its key-encryption key; what comes now must not wait.
                log.error("sealing_key_damaged", key=found.id, month=owner.month, reason=str(error))
        parent = self._of(owner._replace(subject=""), serial, fresh) if owner.subject else ""
        key, made = secrets.token_bytes(KEY_BYTES), key_id(serial + len(fresh) + 1, secrets.token_bytes(3))
        context = _context(made, owner)
        if parent:
            kek, wrapped = parent, _wrap_under(self._data[parent], key, made)
        else:
            kek, wrapped = self._keks.primary, self._ask(lambda: self._keks.wrap(key, context))
        fresh[owner] = WrappedKey(made, owner, kek, wrapped)
        self._data[made] = key
        return made

    def _unwrap(self, key: WrappedKey) -> bytes:
        held = self._data.get(key.id)
        if held is None:
            if key.owner.subject:
                held = _unwrap_under(self._by_id(key.kek), key.wrapped, key.id)
            else:
                held = self._ask(lambda: self._keks.unwrap(key.kek, key.wrapped, _context(key.id, key.owner)))
            self._data[key.id] = held
        return held

    def _by_id(self, key: str) -> bytes:
        if key in self._doomed:
            raise KeyGoneError("its key was erased")
        held = self._data.get(key)
        if held is None:
            found = self._vault.get(key)
            if found is None:
                raise KeyGoneError("its key is not in the vault")
            held = self._unwrap(found)
        return held

    def _opener(self, key: str, session: bytes) -> AESGCM:
        with self._lock:
            made = self._opening.get((key, session))
            if made is None:
                try:
                    data = self._by_id(key)
                except (KekError, VaultError) as error:
                    raise SealingError(str(error)) from error
                derived = HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=b"weir sealing\0" + key.encode())
                made = AESGCM(derived.derive(data))
                if len(self._opening) > _MOST_HELD:
                    self._opening.clear()
                self._opening[key, session] = made
            return made

    def _ask(self, call: Callable[[], bytes]) -> bytes:
        """A call of the key-encryption key's keeper; after a failure none for a while, since each may take seconds."""
        if self._monotonic() < self._away_until:
            raise KekAwayError("the key-encryption key was away a moment ago")
        try:
            return call()
        except KekAwayError:
            self._away_until = self._monotonic() + self._pause
            raise


def _context(key: str, owner: Owner) -> dict[str, str]:
    return {"key": key, "tenant": owner.tenant, "class": owner.data_class, "month": owner.month}


def _wrap_under(parent: bytes, key: bytes, name: str) -> bytes:
    nonce = secrets.token_bytes(12)
    return nonce + AESGCM(_wrapping(parent)).encrypt(nonce, key, name.encode())


def _unwrap_under(parent: bytes, wrapped: bytes, name: str) -> bytes:
    try:
        return AESGCM(_wrapping(parent)).decrypt(wrapped[:12], wrapped[12:], name.encode())
    except InvalidTag as error:
        raise KekDamagedError("a wrapped key of a subject was changed") from error


def _wrapping(parent: bytes) -> bytes:
    """A tenant's key wraps those of its subjects under another derived key than any that seals."""
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=b"weir wrapping\0").derive(parent)
