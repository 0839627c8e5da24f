"""One worker: what is held on it, what it told, and what room that leaves now.

Every granted request holds its need (KV blocks and sequences) from grant to release. What is granted never exceeds what
the worker has; where answers turn out longer than was expected at the grant, reservations grow with what the worker
tells of them (`grow`), and the sum may: then there is no room until it fits again. What a tenant's growth takes beyond
its `kv_share` of a worker that holds tenants to that is no loss to others, who get that room when they want it: it
keeps the tenant from more, not them. That alone cannot see work that somebody else gave the worker or whose end was
never told (admission restarted, a gateway died). Reports tell of that: what a worker uses beyond what is held here is
*foreign* and is taken off as well (`Foreign`). What foreign work may still come to need is unknown; the engine copes
with it by letting sequences wait.

Reports age. Up to `report_fresh` seconds a report counts in full; from then on the room that is left shrinks linearly
to nothing at `report_stale`: a worker that falls silent gets less and less before it counts as lost. What it holds
already is not touched.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from services.admission.policy.limits import Limits
from services.admission.policy.model import QueueClass, Report, Request, WorkerSpec
from services.admission.policy.outliers import Outliers

_LOOK = 1.0  # seconds between two looks at how slow a slow worker is


class Foreign:
    """How much of one resource work uses that is not held here.

    A report's surplus (used beyond held) is a lower bound and counts until the next report: held work grows into its
    reservation and hides it, and a release that overtakes a report feigns it. What is *known* to be foreign (found
    when a worker joined, or disowned) counts on until its time is over, but never more than all that is used.
    """

    __slots__ = ("_known", "_surplus", "until")

    def __init__(self) -> None:
        self._known = 0
        self._surplus = 0
        self.until = 0.0
        """When what is known counts no more."""

    def amount(self, now: float) -> int:
        """The estimate."""
        return max(self._surplus, self._known if now < self.until else 0)

    def add_known(self, amount: int, now: float, ttl: float) -> None:
        """Foreign for certain, for `ttl` seconds at most."""
        self._known = (self._known if now < self.until else 0) + amount
        self.until = now + ttl

    def reported(self, used: int, held: int, earlier: int) -> None:
        """A report came; `earlier` is what the worker itself knows to be foreign."""
        self._surplus = max(0, used - held, earlier)
        self._known = min(self._known, used)


@dataclass(slots=True)
class Reservation:
    """What a granted request holds on its worker."""

    request: Request
    worker: str
    blocks: int
    granted_at: float
    cost: float
    until: float  # when it stops counting in full, if nobody releases it
    grown: int = 0  # of the blocks, those beyond what was expected at the grant
    expected_cached: int = 0  # prompt tokens that it was hoped to find in the worker's prefix cache
    probe: bool = False  # it tries a worker that comes back from an ejection
    ejections: int = 0  # of the worker before


@dataclass(slots=True)
class _Tenant:
    """What one holds on a worker."""

    count: int = 0  # requests
    granted: int = 0  # blocks, as expected at the grants
    grown: int = 0  # … and since
    beyond: int = 0  # of those grown, beyond its share of the worker


@dataclass(slots=True)
class Room:
    """What a worker can take now, and how it stands; see placement.py for what becomes of it."""

    until: float = -math.inf  # computed anew from then on; any change of the worker makes it -inf
    grows: float = math.inf  # when there may be more of it without any change
    blocks: int = 0  # 0 with `sequences` while it takes nothing
    sequences: int = 0
    utilisation: float = 1.0  # the largest share of its blocks, sequences and waiting prefill in use
    prefill: int = 0  # prompt tokens that wait there for prefill
    wait: float = 0.0  # seconds until those are computed
    per_token: float = 0.0  # seconds of prefill per prompt token
    score: float = 0.0  # seconds, without what depends on the request


class Worker:
    """What is known of one."""

    def __init__(
        self,
        spec: WorkerSpec,
        limits: Limits,
        outliers: Outliers,
        now: float,
        slowness: Callable[[str, float], float] = lambda worker, now: 0.0,
    ) -> None:
        """`slowness`: see the fleet."""
        self.spec = spec
        self._limits = limits
        self._outliers = outliers
        self._slowness = slowness
        self.live = True
        self.last_heard = now
        self.report: Report | None = None  # none yet in this session: no work until it tells its load
        self.held_blocks = 0
        self.held_sequences = 0
        self.beyond_shares = 0
        """Of the held blocks, those that others may have all the same."""
        self.credits = self.credit_blocks = 0
        """Of what is held, credits that nobody runs on."""
        self._tenants: dict[str, _Tenant] = {}
        self.holds: dict[str, Reservation] = {}
        """By request."""
        self.held_by_class: dict[QueueClass, tuple[int, int]] = {}
        """Blocks and sequences held by the requests of each class."""
        self._draining = False
        self._foreign_blocks = Foreign()
        self._foreign_sequences = Foreign()
        self._recent_prefill: deque[tuple[float, int]] = deque()  # (granted at, prompt tokens) not yet in a report
        self._recent_sum = 0
        self.marked_in: list[dict[str, Worker]] = []
        """Where it is noted, by its id, that its room may have changed."""
        self.last_room = Room()
        """What `room` found last; good before its `until`."""
        digest = hashlib.blake2b(spec.worker.encode(), digest_size=8).digest()
        self.mark = int.from_bytes(digest)
        """The worker's id as a number that is the same everywhere, for rendezvous hashing."""
        self.kind = (spec.block_size, spec.preemptive)
        """Workers of one kind need the same blocks for a request."""

    def heard(self, report: Report, now: float) -> None:
        """Takes in a report; a worker's first one in a session tells what it runs from before."""
        used = max(0, self.spec.total_blocks - report.free_blocks)
        sequences = report.running + report.waiting
        earlier_blocks, earlier_sequences = report.earlier or (0, 0)
        if self.report is None and report.earlier is None:
            ttl = self._limits.foreign_ttl
            self._foreign_blocks.add_known(max(0, used - self.held_blocks), now, ttl)
            self._foreign_sequences.add_known(max(0, sequences - self.held_sequences), now, ttl)
        self._foreign_blocks.reported(used, self.held_blocks, earlier_blocks)
        self._foreign_sequences.reported(sequences, self.held_sequences, earlier_sequences)
        self.report = report
        self.last_heard = now
        self.changed()

    def joined(self, spec: WorkerSpec, now: float) -> None:
        """A new session of the worker: what it said before counts no more, what is held stays held."""
        self.spec = spec
        self.kind = (spec.block_size, spec.preemptive)
        self.live = True
        self._draining = False
        self.last_heard = now
        self.report = None
        self.changed()

    def changed(self) -> None:
        """Something that its room depends on has changed."""
        self.last_room.until = -math.inf
        for marked in self.marked_in:
            marked[self.spec.worker] = self

    @property
    def draining(self) -> bool:
        """It was asked to finish; what it says of itself is in its report."""
        return self._draining

    @draining.setter
    def draining(self, value: bool) -> None:
        self._draining = value
        self.changed()

    @property
    def idle(self) -> bool:
        """Nothing is held on it."""
        return self.held_sequences == 0

    def open(self) -> bool:
        """May it get new work at all?"""
        return self.live and not self._draining and self.report is not None and not self.report.draining

    def room(self, now: float) -> Room:
        """What it can take now; valid until it changes."""
        room = self.last_room
        if now >= room.until:
            self._look(room, now)
        return room

    def trusted(self, now: float) -> float:
        """How much of the room that is left counts, by the age of the last report: 1 down to 0."""
        limits = self._limits
        age = now - self.last_heard
        if age <= limits.report_fresh:
            return 1.0
        return max(0.0, (limits.report_stale - age) / (limits.report_stale - limits.report_fresh))

    def unheld_blocks(self, now: float) -> int:
        """Blocks that no granted and no foreign work may come to need, whatever the report's age."""
        return self.spec.total_blocks - self.held_blocks + self.beyond_shares - self._foreign_blocks.amount(now)

    def unheld_sequences(self, now: float) -> int:
        """Sequences likewise."""
        return self.most_sequences - self.held_sequences - self._foreign_sequences.amount(now)

    def free_blocks(self, now: float) -> int:
        """Blocks for new work, as far as the last report can be trusted."""
        return _shrunk(self.unheld_blocks(now), self.trusted(now))

    def free_sequences(self, now: float) -> int:
        """Sequences that it may start now, likewise."""
        return _shrunk(self.unheld_sequences(now), self.trusted(now))

    @property
    def most_sequences(self) -> int:
        """That it may hold."""
        return self.spec.max_running + self._limits.run_ahead

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second, as it reports or as is assumed."""
        return (self.report.prefill_tokens_per_second if self.report else 0.0) or self._limits.placement.prefill_rate

    def queued_prefill(self) -> int:
        """Prompt tokens that wait there for prefill: as reported, and as granted since."""
        return (self.report.queued_prefill_tokens if self.report else 0) + self._recent_sum

    def could_ever_fit(self, request: Request) -> bool:
        """Would the request fit it if it were empty?"""
        spec = self.spec
        return (
            request.prompt_tokens + request.max_output_tokens <= spec.max_context
            and request.blocks(spec.block_size) <= spec.total_blocks
            and request.choices <= self.most_sequences
        )

    def fits(self, request: Request, now: float, *, blocks: int | None = None) -> bool:
        """May the request run there now? `blocks` is what it needs there, if that is known."""
        room = self.room(now)
        need = self.need(request) if blocks is None else blocks
        if request.choices > room.sequences or need > room.blocks or not self.could_ever_fit(request):
            return False
        limits = self._limits
        if room.wait > limits.max_prefill_wait:
            return False
        return not room.prefill or room.prefill + request.prompt_tokens <= limits.max_queued_prefill

    def need(self, request: Request, expected_output: int | None = None) -> int:
        """Blocks kept for the request: see `blocks_needed`."""
        return blocks_needed(request, self.kind, self._limits, expected_output)

    def hold(self, reservation: Reservation, now: float, *, prefill: int) -> None:
        """Takes a reservation in; `prefill` tokens of its prompt are to be computed."""
        request = reservation.request
        self.holds[request.request_id] = reservation
        self.held_blocks += reservation.blocks
        self.held_sequences += request.choices
        self._count(reservation, 1)
        self._weigh(request, reservation.blocks, 0, 1)
        self._recent_prefill.append((now, prefill))
        self._recent_sum += prefill
        self.changed()

    def release(self, reservation: Reservation) -> None:
        """Gives a reservation back."""
        del self.holds[reservation.request.request_id]
        self.held_blocks -= reservation.blocks
        self.held_sequences -= reservation.request.choices
        self._count(reservation, -1)
        self._weigh(reservation.request, reservation.grown - reservation.blocks, -reservation.grown, -1)
        self.changed()

    def grow(self, reservation: Reservation, blocks: int) -> None:
        """The request may need so many more than it holds."""
        self._count(reservation, -1)
        reservation.blocks += blocks
        reservation.grown += blocks
        self.held_blocks += blocks
        self._count(reservation, 1)
        self._weigh(reservation.request, 0, blocks, 0)
        self.changed()

    def disown(self, reservation: Reservation, now: float) -> None:
        """Gives a reservation back whose work may still run: it counts as foreign until reports show otherwise."""
        self.release(reservation)
        if reservation.request.credit:
            return  # most likely nothing runs on it; what does shows in reports
        ttl = self._limits.foreign_ttl
        self._foreign_blocks.add_known(reservation.blocks, now, ttl)
        self._foreign_sequences.add_known(reservation.request.choices, now, ttl)

    def _look(self, room: Room, now: float) -> None:
        limits, spec = self._limits, self.spec
        placement = limits.placement
        self._settle_prefill(now)
        room.prefill = self.queued_prefill()
        rate = self.prefill_rate
        room.per_token = 1.0 / rate
        room.wait = room.prefill / rate
        blocks, sequences, most = self.unheld_blocks(now), self.unheld_sequences(now), self.most_sequences
        until = self.last_heard + limits.report_fresh
        if now > until:  # from now on it is another with every moment
            trusted, until = self.trusted(now), now
            blocks, sequences = _shrunk(blocks, trusted), _shrunk(sequences, trusted)
        # This runs with every grant and every release: comparisons cost less than calls of min and max.
        in_use = 1.0 - blocks / spec.total_blocks if spec.total_blocks else 1.0
        other = 1.0 - sequences / most if most else 1.0
        in_use = other if other > in_use else in_use
        if room.prefill and limits.max_queued_prefill:
            other = room.prefill / limits.max_queued_prefill
            in_use = other if other > in_use else in_use
        room.utilisation = in_use
        slow = self._slowness(spec.worker, now)
        room.score = room.wait + slow + placement.crowding_cost * in_use
        probes, changes = self._outliers.room(spec.worker, now)
        if not self.open() or probes == 0:
            room.blocks = room.sequences = 0
        else:
            room.blocks = blocks if blocks > 0 else 0
            room.sequences = sequences if sequences > 0 else 0
        grows = changes
        for foreign in (self._foreign_blocks, self._foreign_sequences):
            if now < foreign.until < grows:
                grows = foreign.until
        until = grows if grows < until else until
        if self._recent_prefill:
            settled = self._recent_prefill[0][0] + limits.prefill_settle
            until = settled if settled < until else until
            if room.wait > limits.max_prefill_wait and settled < grows:
                grows = settled
        room.until = min(until, now + _LOOK) if slow else until  # it fades
        room.grows = grows

    def _count(self, reservation: Reservation, sign: int) -> None:
        if reservation.request.credit:
            self.credits += sign
            self.credit_blocks += sign * reservation.blocks
        queue_class = reservation.request.queue_class
        blocks, sequences = self.held_by_class.get(queue_class, (0, 0))
        choices = reservation.request.choices
        self.held_by_class[queue_class] = blocks + sign * reservation.blocks, sequences + sign * choices

    def _weigh(self, request: Request, granted: int, grown: int, count: int) -> None:
        """The tenant of the request holds so much more."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            tenant = self._tenants[request.tenant] = _Tenant()
        tenant.granted += granted
        tenant.grown += grown
        tenant.count += count
        self.beyond_shares -= tenant.beyond
        tenant.beyond = 0
        if request.kv_share and self.spec.holds_shares:
            over = tenant.granted + tenant.grown - int(request.kv_share * self.spec.total_blocks)
            tenant.beyond = max(0, min(tenant.grown, over))
        self.beyond_shares += tenant.beyond
        if not tenant.count:
            del self._tenants[request.tenant]

    def _settle_prefill(self, now: float) -> None:
        recent, before = self._recent_prefill, now - self._limits.prefill_settle
        while recent and recent[0][0] <= before:
            self._recent_sum -= recent.popleft()[1]


def blocks_needed(request: Request, kind: tuple[int, bool], limits: Limits, expected_output: int | None = None) -> int:
    """Blocks kept for the request on a worker of this kind (tokens per block, preemptive).

    One that does not preempt is never promised more than it holds: the prompt and the longest output. One that does
    may be wrong now and then, so it keeps what the output is expected to come to (a high quantile, per choice), or,
    when too little is known, `output_reserve` of the longest.
    """
    block_size, preemptive = kind
    if not preemptive:
        return request.blocks(block_size)
    if expected_output is None:
        return request.blocks(block_size, limits.output_reserve)
    output = min(max(1, expected_output), request.max_output_tokens)
    return request.choices * -(-(request.prompt_tokens + output) // block_size)


def _shrunk(amount: int, factor: float) -> int:
    return int(amount * factor) if amount > 0 else amount
