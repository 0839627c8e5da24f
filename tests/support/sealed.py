"""Keys and sealed logs in a folder, without the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from libs.sealing.keks import Context, FileKeks, KekAwayError, KekDamagedError
from libs.sealing.keyring import Keyring, SealingKey
from libs.sealing.scope import Wanted
from libs.sealing.vault import Vault

NOVEMBER = 1_795_420_800.0
"""2026-11-23T08:00:00Z"""
DAY = 86_400.0


class Clock:
    """Both clocks of a keyring, moved by hand."""

    def __init__(self, now: float = NOVEMBER) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def opened(folder: Path, clock: Callable[[], float] | None = None) -> tuple[Vault, Keyring]:
    """The keys of a folder; the caller closes the vault."""
    clock = clock or Clock()
    vault = Vault(folder / "sealing")
    try:
        keks = FileKeks(folder / "kek", create=vault.empty)
        return vault, Keyring(vault, keks, now=clock, monotonic=clock)
    except BaseException:
        vault.close()
        raise


def wanted(tenant: str = "acme", subject: str = "", data_class: str = "request", told: str = "2026-11") -> Wanted:
    return Wanted(tenant, subject, data_class, told)


def key_for(ring: Keyring, want: Wanted) -> SealingKey:
    """The one key, which must be had."""
    [key] = ring.keys_for([want])
    assert isinstance(key, SealingKey), key
    return key


class FailingKeks:
    """A key-encryption key's keeper that is away, or refuses, when told to."""

    def __init__(self, real: FileKeks) -> None:
        self._real = real
        self.away = False
        self.refused: set[str] = set()
        self.calls = 0

    @property
    def primary(self) -> str:
        return self._real.primary

    def _check(self, context: Mapping[str, str]) -> None:
        self.calls += 1
        if self.away:
            raise KekAwayError("away")
        if context.get("tenant") in self.refused:
            raise KekDamagedError("damaged")

    def wrap(self, key: bytes, context: Context) -> bytes:
        self._check(context)
        return self._real.wrap(key, context)

    def unwrap(self, kek: str, wrapped: bytes, context: Context) -> bytes:
        self._check(context)
        return self._real.unwrap(kek, wrapped, context)

    def rotate(self) -> str:
        return self._real.rotate()

    def retire(self) -> int:
        return self._real.retire()
