"""Credits as one gateway holds them: the mesh's own purse, and what admission is told of it and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from libs.credits import Ask, Credit, Purse
from services.admission.policy.credits import may_run_on_credit
from services.admission.policy.model import Event, Granted, Request
from services.admission.policy.pool import Pool
from simulation.clock import Clock

_USABLE = 0.75  # as the gateway


@dataclass(frozen=True, slots=True)
class _Use:
    pool: Pool
    credit: str
    request: Request
    ask: Ask
    wanted: int


class Credits:
    """Of all pools that the gateway asks."""

    def __init__(
        self,
        clock: Clock,
        *,
        told: float,
        apply: Callable[[Sequence[Event]], None],
        charged: Callable[[str, float], None],
    ) -> None:
        """`told`: seconds until admission hears of a use. `apply` takes what follows from credits that go back;
        `charged` hears of a request that runs on one what its tenant is charged, when it is."""
        self._clock = clock
        self._told = told
        self._apply = apply
        self._charged = charged
        self._purses: defaultdict[Pool, Purse[Granted]] = defaultdict(Purse)
        self._untold: dict[str, _Use] = {}
        self._given = 0
        self.used = 0
        """Requests that ran on one."""

    def run(self, pool: Pool, request: Request) -> Granted | None:
        """The grant of a credit that suits the request; None: admission is to be asked."""
        if not may_run_on_credit(request):
            return None
        purse, now = self._purses[pool], self._clock.now
        ask = _ask(request, now)
        granted = purse.take(ask, now)
        self._give_back(pool, purse.run_out())
        if granted is None:
            return None
        self.used += 1
        purse.placed(ask, granted.worker)
        self._untold[request.request_id] = _Use(pool, granted.request.request_id, request, ask, purse.wanted(ask, now))
        self._clock.after(self._told, self.tell, request.request_id)
        return Granted(request, granted.worker, first_token=granted.first_token)

    def granted(self, pool: Pool, granted: Granted) -> None:
        """Admission was asked, and granted at once."""
        if may_run_on_credit(granted.request):
            purse, now = self._purses[pool], self._clock.now
            ask = _ask(granted.request, now)
            purse.placed(ask, granted.worker)
            self._refill(pool, granted.request, ask, purse.wanted(ask, now))

    def tell(self, request_id: str) -> None:
        """Admission hears that the request runs on a credit, if it has not yet."""
        use = self._untold.pop(request_id, None)
        if use is not None:
            cost = use.pool.estimates.expected_cost(use.request)
            if use.pool.use(use.credit, use.request, self._clock.now) is not None:
                self._charged(request_id, cost)
            self._refill(use.pool, use.request, use.ask, use.wanted)
            self.heard(use.pool)

    def heard(self, pool: Pool) -> None:
        """The gateway hears from admission: while anybody waits there, what it holds goes back."""
        if len(pool.backlog):
            self._give_back(pool, self._purses[pool].empty())

    def _give_back(self, pool: Pool, credits: Iterable[Granted]) -> None:
        for credit in credits:
            self._apply(pool.release(credit.request.request_id, self._clock.now)[1])

    def _refill(self, pool: Pool, request: Request, ask: Ask, wanted: int) -> None:
        limits, now = pool.limits, self._clock.now
        ids = [f"credit-{self._given + number}" for number in range(wanted)]
        self._given += wanted
        credits = [
            Credit(
                given,
                given.worker,
                given.request.prompt_tokens,
                given.request.max_output_tokens,
                now + _USABLE * limits.credits.seconds,
                int(limits.placement.tie_band * pool.fleet.workers[given.worker].prefill_rate),
                given.first_token,
            )
            for given in pool.give(request, ids, now)
        ]
        self._purses[pool].put(ask, wanted, credits)


def _ask(request: Request, now: float) -> Ask:
    return Ask(
        (request.model_version, request.queue_class, request.zones),
        request.prompt_tokens,
        request.max_output_tokens,
        request.prefix_hashes,
        request.prefix_block,
        request.ttft_by - now,
    )
