"""The difference between what a watch knew and what is there now."""

from __future__ import annotations

from collections.abc import Mapping

from libs.registry.ports import Listing, WatchBatch, WatchEvent


def listing_diff(listing: Listing, known: Mapping[str, int], *, at: int = 0) -> WatchBatch | None:
    """The events that lead from the known keys (key → mod_revision) to the listing; None when nothing differs.

    :param at: the revision at which they were known. A listing of an earlier one is of a store that was restored to
        another history, where equal revisions need not mean equal values.
    """
    if listing.revision < at:
        known = dict.fromkeys(known, -1)
    present = {kv.key for kv in listing.kvs}
    gone = [WatchEvent(key, None, listing.revision) for key in sorted(known) if key not in present]
    new = [
        WatchEvent(kv.key, kv.value, kv.mod_revision, kv.lease)
        for kv in listing.kvs
        if known.get(kv.key) != kv.mod_revision
    ]
    return WatchBatch(listing.revision, tuple(gone + new), merged=True) if gone or new else None


def remember(state: dict[str, int], batch: WatchBatch) -> None:
    """Brings the known keys up to a batch."""
    for event in batch.events:
        if event.value is None:
            state.pop(event.key, None)
        else:
            state[event.key] = event.mod_revision
