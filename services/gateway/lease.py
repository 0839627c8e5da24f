"""What a request holds of its tenant's quota: taken before it runs, larger while it does, settled when it is over.

A caller who does not say how long its answer may be is reserved what answers have lately been, and not the whole
context. So a tenant near its limit is not refused for tokens that nobody will make. More is asked for before it is
used: no token is taken from a worker that is not reserved.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any, Self

from libs.answer_lengths import Lengths
from libs.deadlines import Deadline
from libs.errors import WeirError
from services.gateway import metrics
from services.gateway.policy.events import Usage
from services.gateway.ports import QuotaPort, Reservation
from services.gateway.request import Candidate, Request

AHEAD = 64
"""Tokens of each choice that are reserved ahead of its output: while they are made, the limiter answers."""
LEAST = 64
"""Tokens of one answer that are always reserved for: less would be asked for anew too soon."""
UNKNOWN = 512
"""Tokens of one answer while nothing is known of any."""


class Lease:
    """Of one request. What is still held when the block ends was not used."""

    __slots__ = ("_id", "_lengths", "_quota", "_request", "_reserved", "_reserving", "_taken", "grows", "reservation")

    def __init__(self, quota: QuotaPort, lengths: Lengths, request: Request) -> None:
        self._quota = quota
        self._lengths = lengths
        self._request = request
        self._id = request.id
        self._taken = 0  # leases so far
        self._reserved = 0  # tokens of the present one; 0 while there is none
        self._reserving: Future[Reservation] | None = None
        self.grows = False
        """What is reserved is what it is expected to use, and not what it may."""
        self.reservation: Reservation | None = None
        """What was said of the last one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._reserving is not None and not self._reserving.cancel():  # its fallback would open a lease for nobody
            forget(self._reserving)
        self.settle(Usage(), "")

    def start(self, candidate: Candidate) -> Future[Reservation]:
        """Ask for what the candidate may come to, or is likely to.

        :raises WeirError: see `QuotaPort.start_reserve` (through the future).
        """
        request, bound = self._request, candidate.bound
        again = bool(self._reserved)
        self.settle(Usage(), "")
        self._reserved = most = _cost(candidate)
        if request.spec.parameters.max_tokens is None and not request.plan.serve_over_quota and bound.max_tokens:
            likely = self._lengths.high(request.identity.tenant, candidate.route.model_version)
            each = AHEAD + (UNKNOWN if likely is None else max(LEAST, likely))
            self._reserved = int(min(most, candidate.prompt_tokens + bound.n * each))
        self.grows = self._reserved < most
        if again:
            self._taken += 1
            self._id = f"{request.id}/{self._taken}"
        self._reserving = self._quota.start_reserve(
            tenant=request.identity.tenant,
            model=request.spec.model,
            request_id=self._id,
            tokens=self._reserved,
            # Held to the tenant's context, which is about one input.
            prompt_tokens=max([len(one) for part in candidate.parts for one in part], default=len(candidate.prompt)),
            max_output_tokens=bound.max_tokens,
            choices=bound.n,
            model_version=candidate.route.model_version,
            grows=self.grows,
            over_quota_allowed=request.plan.serve_over_quota,
            request_counted=again or request.identity.request_counted,
            deadline=request.deadline,
            traceparent=request.traceparent,
        )
        return self._reserving

    async def taken(self) -> Reservation:
        """Wait for what was asked for.

        :raises WeirError: see `start`.
        """
        if self._reserving is None:
            raise RuntimeError("nothing was asked for")
        self.reservation = await self._reserving
        self._reserving = None
        return self.reservation

    async def hold(self, candidate: Candidate) -> None:
        """Ask anew if more will be served than is held: redacted words, and another version's tokens, may be more than
        the caller's. What grows does so when it is used.

        :raises WeirError: see `start`.
        """
        if not self.grows and _cost(candidate) > self._reserved:
            self.start(candidate)
            await self.taken()

    @property
    def room(self) -> int | None:
        """Tokens that the request may come to, its prompt's among them; None: as many as it likes."""
        return None if self.grows else self._reserved

    def growth(self, candidate: Candidate) -> Growth | None:
        """How the request may grow while it runs; None where all that it may come to is reserved."""
        if not self.grows:
            return None
        request = self._request
        return Growth(
            self._quota,
            tenant=request.identity.tenant,
            lease=self._id,
            prompt_tokens=len(candidate.prompt),
            reserved=self._reserved,
            most=_cost(candidate),
            choices=candidate.bound.n,
            deadline=request.deadline,
            traceparent=request.traceparent,
        )

    def settle(self, usage: Usage, model_version: str) -> None:
        """It is over, and this was used; nothing where nothing is held."""
        if not self._reserved:
            return
        self._reserved = 0
        self._quota.settle(
            tenant=self._request.identity.tenant,
            model=self._request.spec.model,
            request_id=self._id,
            tokens=usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens=usage.prompt_tokens,
            cached_prompt_tokens=usage.cached_prompt_tokens,
            model_version=model_version,
        )


class Growth:
    """Of the lease of a request that runs; counts output tokens over all choices."""

    __slots__ = ("_ahead", "_asking", "_denied", "_mark", "_most", "_quota", "_request", "_reserved", "_step", "_used")

    def __init__(
        self,
        quota: QuotaPort,
        *,
        tenant: str,
        lease: str,
        prompt_tokens: int,
        reserved: int,
        most: int,
        choices: int,
        deadline: Deadline,
        traceparent: str,
    ) -> None:
        """:param lease: the id under which `reserved` tokens are held, the prompt's among them.
        :param most: tokens that it can come to.
        """
        self._quota = quota
        self._request = (tenant, lease, prompt_tokens, deadline, traceparent)
        self._most = most - prompt_tokens
        self._reserved = reserved - prompt_tokens
        self._ahead = AHEAD * choices
        self._step = max(self._ahead, self._reserved)
        self._used = 0
        self._asking: Future[None] | None = None
        self._denied: WeirError | None = None
        self._mark = self._next_mark()
        if self._reserved < min(self._ahead, self._most):  # what is served has a longer prompt than was reserved for
            self._ask()

    def take(self, count: int) -> None:
        """So many more tokens are to be given.

        :raises WeirError: QUOTA_TOKENS, QUOTA_SPEND: they are not reserved, and nothing is left for them.
        """
        self._used += count
        if self._used > self._mark:
            self._grow()

    def end(self) -> None:
        """Nothing more is asked for."""
        self._mark = self._most
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()

    def _next_mark(self) -> int:
        """Output from which on more is asked for."""
        return self._most if self._reserved >= self._most else self._reserved - self._ahead

    def _grow(self) -> None:
        if self._asking is None and self._denied is None:
            self._ask()
        if self._used > self._reserved:  # nobody has answered in time, or nothing was left some time ago
            self._here()

    def _ask(self) -> None:
        tenant, lease, prompt, deadline, traceparent = self._request
        target = min(self._most, max(self._used, self._reserved) + self._step)
        self._mark = self._reserved
        self._asking = self._quota.start_grow(
            tenant=tenant, request_id=lease, tokens=prompt + target, deadline=deadline, traceparent=traceparent
        )
        self._asking.add_done_callback(lambda done: self._answered(done, target))

    def _answered(self, done: Future[None], target: int) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if done is not self._asking:
            return  # decided here meanwhile
        self._asking = None
        if error is None:
            self._grown(target)
        elif not isinstance(error, WeirError):
            self._denied = None  # asked again, or decided here, when it is needed
        elif self._step > self._ahead:  # less may be left, and enough
            self._step = max(self._ahead, self._step // 4)
            self._ask()
        else:
            metrics.GROWN.labels("denied").inc()
            self._denied = error

    def _here(self) -> None:
        tenant, lease, prompt, deadline, _ = self._request
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
        if self._denied is not None:
            raise self._denied
        target = min(self._most, self._used + self._ahead)
        try:
            self._quota.grow_here(tenant=tenant, request_id=lease, tokens=prompt + target, deadline=deadline)
        except WeirError:
            metrics.GROWN.labels("denied").inc()
            raise
        self._grown(target)

    def _grown(self, target: int) -> None:
        metrics.GROWN.labels("granted").inc()
        self._reserved = max(self._reserved, target)
        self._step *= 2
        self._mark = self._next_mark()


def forget(future: Future[Any]) -> None:
    """Nobody will await this future: keep its late failure from being reported as unhandled."""
    future.add_done_callback(lambda done: None if done.cancelled() else done.exception())


def _cost(candidate: Candidate) -> int:
    """Tokens that it takes at most."""
    return candidate.prompt_tokens + candidate.bound.max_tokens * candidate.bound.n
