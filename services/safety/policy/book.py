"""Which policies hold for a request, and the packs that were made of them. Compiles nothing: see `packs.py`."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from libs.safety_filter import Pack, Rule

Pins = tuple[str, ...]
""" "id@version" of each policy, the floor's first."""


class PolicyBook:
    """Rules by pin, and packs by the pins that they are made of: the most recently used `most`."""

    def __init__(self, *, shipped: Mapping[str, Sequence[Rule]], floor: str, most: int) -> None:
        """`shipped` come with the service, by pin; the one that is called `floor` is the floor as long as the registry
        names none."""
        self._shipped = shipped
        self._own_floor: Pins = (floor,)
        self.most = most
        self._registered: Mapping[str, Sequence[Rule]] = {}
        self._packs: OrderedDict[Pins, Pack] = OrderedDict()
        self.floor: Pins = self._own_floor
        """What every request is under."""

    def __len__(self) -> int:
        return len(self._packs)

    def learn(self, registered: Mapping[str, Sequence[Rule]], floor: Sequence[str]) -> None:
        """Take what the registry says now. A policy never changes, but one may be deleted and made anew: packs of
        rules that are not these any more are forgotten."""
        changed = {pin for pin, rules in self._registered.items() if registered.get(pin) is not rules}
        self._registered = registered
        self.floor = tuple(dict.fromkeys(floor)) or self._own_floor
        for pins in [pins for pins in self._packs if not changed.isdisjoint(pins)]:
            del self._packs[pins]

    def in_force(self, pins: Sequence[str]) -> Pins:
        """What holds for a request that these are asked for: them and the floor, which a gateway that lags behind may
        not have named."""
        return tuple(dict.fromkeys((*self.floor, *pins)))

    def rules(self, pins: Pins) -> dict[str, Sequence[Rule]] | None:
        """The rules of each; None while one of them is unknown here."""
        found = {pin: self._registered.get(pin, self._shipped.get(pin)) for pin in pins}
        known = {pin: rules for pin, rules in found.items() if rules is not None}
        return known if len(known) == len(found) else None

    def ready(self, pins: Pins) -> Pack | None:
        """The pack of exactly these; None: nobody has compiled it yet, or it was forgotten."""
        pack = self._packs.get(pins)
        if pack is not None:
            self._packs.move_to_end(pins)
        return pack

    def keep(self, pins: Pins, pack: Pack) -> None:
        """A pack was compiled."""
        self._packs[pins] = pack
        while len(self._packs) > self.most:
            self._packs.popitem(last=False)
