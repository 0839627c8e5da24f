"""From which networks each key was used: what makes a new one be noticed, once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

_PER_KEY = 64
"""Networks remembered of one key; a key that roams over more is new again in the one that it left longest ago."""


class KnownNetworks:
    """Bounded; those that were used longest ago are forgotten first."""

    def __init__(self, lines: Iterable[str] = (), *, max_keys: int = 50_000) -> None:
        """`lines` is what `lines` gave before; any that are not of its form are passed over."""
        self._max_keys = max_keys
        self._keys: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        for line in lines:
            key_id, _, networks = line.strip().partition(" ")
            for network in networks.split():
                self.seen(key_id, network)
        self.changed = False
        """Something was learned since this was last set to False."""

    def seen(self, key_id: str, network: str) -> str:
        """Remember a use; says "first_use" or "new_network", and "" for what was seen before."""
        networks = self._keys.get(key_id)
        if networks is not None and network in networks:
            networks.move_to_end(network)
            self._keys.move_to_end(key_id)
            return ""
        self.changed = True
        if networks is None:
            self._keys[key_id] = OrderedDict({network: None})
            if len(self._keys) > self._max_keys:
                self._keys.popitem(last=False)
            return "first_use"
        networks[network] = None
        if len(networks) > _PER_KEY:
            networks.popitem(last=False)
        return "new_network"

    def lines(self) -> list[str]:
        """All that is remembered, one line per key: the key's id and hashes of networks."""
        return [" ".join((key_id, *networks)) for key_id, networks in self._keys.items()]
