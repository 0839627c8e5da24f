"""What a request holds of its tenant's quota: taken before it runs, larger while it does, settled when it is over.

Who does not say how long its answer may be is reserved what answers have lately been, and not all that it may come to.
So a tenant near its limit is not refused for tokens that nobody will make. More is asked for before it is used: nothing
is taken from a worker that is not reserved.
"""

from __future__ import annotations

from asyncio import Future
from typing import Any, Self

from prometheus_client import Counter
from weir.quota.v1 import quota_pb2

from libs.deadlines import Deadline
from libs.errors import WeirError
from libs.limiter.client import QuotaClient, Refused, Reservation

AHEAD = 64
"""Tokens of each choice that are reserved ahead of its output: while they are made, the limiter answers."""


class Lease:
    """Of one request. What is still held when the block ends was not used."""

    __slots__ = (
        *("_ahead", "_asking", "_counted", "_deadline", "_denied", "_fates", "_id", "_mark", "_model", "_most"),
        *("_quota", "_request_id", "_reserved", "_reserving", "_step", "_taken", "_tenant", "_traceparent", "_used"),
        *("grows", "reservation"),
    )

    def __init__(
        self,
        quota: QuotaClient,
        *,
        tenant: str,
        model: str,
        request_id: str,
        request_counted: bool,
        deadline: Deadline,
        traceparent: str,
        fates: Counter,
    ) -> None:
        """`request_id` is of this attempt, before its first "/" of the request. `request_counted`: it has been taken
        from requests per minute. `fates` counts what came of asking for more, by one label."""
        self._quota = quota
        self._tenant = tenant
        self._model = model
        self._request_id = self._id = request_id
        self._counted = request_counted
        self._deadline = deadline
        self._traceparent = traceparent
        self._fates = fates
        self._taken = 0  # leases so far
        self._reserved = 0  # tokens of the present one, the prompt's among them; 0 while there is none
        self._reserving: Future[Reservation] | None = None
        self._asking: Future[None] | None = None
        self._denied: WeirError | None = None
        self.grows = False
        """What is reserved is what it is expected to use, and not what it may."""
        self.reservation: Reservation | None = None
        """What was said of the last one."""

    @property
    def id(self) -> str:
        """Of what is held now."""
        return self._id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._reserving is not None and not self._reserving.cancel():  # its fallback would open a lease for nobody
            forget(self._reserving)
        self.stop_growing()
        self.settle()

    def start(self, reserve: quota_pb2.Reserve, *, most: int) -> None:
        """Ask for its `tokens`, of the `most` that the request may come to, in place of what is held; see `taken`. Who
        asks is filled in here."""
        again = bool(self._reserved)
        self.settle()
        self._reserved = reserve.tokens
        self.grows = reserve.grows = reserve.tokens < most
        if again:
            self._taken += 1
            self._id = f"{self._request_id}/{self._taken}"
        reserve.tenant, reserve.model, reserve.request_id = self._tenant, self._model, self._id
        reserve.request_counted = again or self._counted
        self._reserving = self._quota.start_reserve(reserve, deadline=self._deadline, traceparent=self._traceparent)

    async def taken(self) -> Reservation:
        """Wait for what was asked for.

        :raises WeirError: see `QuotaClient.start_reserve`.
        """
        if self._reserving is None:
            raise RuntimeError("nothing was asked for")
        self.reservation = await self._reserving
        self._reserving = None
        return self.reservation

    def holds(self, tokens: int) -> bool:
        """So many may be used: what grows does so when they are."""
        return self.grows or tokens <= self._reserved

    @property
    def room(self) -> int | None:
        """Tokens that the request may come to, its prompt's among them; None: as many as it likes."""
        return None if self.grows else self._reserved

    def settle(
        self, prompt_tokens: int = 0, completion_tokens: int = 0, cached_prompt_tokens: int = 0, model_version: str = ""
    ) -> None:
        """It is over, and this was used; nothing where nothing is held."""
        held = self._reserved and not self._was_refused()
        self._reserved = 0
        if not held:
            return
        self._quota.settle(
            quota_pb2.Settle(
                tenant=self._tenant,
                model=self._model,
                request_id=self._id,
                tokens=prompt_tokens + completion_tokens,
                prompt_tokens=prompt_tokens,
                cached_prompt_tokens=cached_prompt_tokens,
                model_version=model_version,
            )
        )

    def _was_refused(self) -> bool:
        """What was asked for last was refused by the owner. Who is in doubt settles: a lease may be open there."""
        asked = self._reserving
        return asked is not None and asked.done() and not asked.cancelled() and isinstance(asked.exception(), Refused)

    # While it runs. Tokens are counted with the prompt's, over all choices.

    def begin_growing(self, prompt_tokens: int, most: int, choices: int) -> None:
        """It runs; the `most` that it may come to is not all reserved."""
        self._used, self._most = prompt_tokens, most
        self._ahead = AHEAD * choices
        self._step = max(self._ahead, self._reserved - prompt_tokens)
        self._mark = self._next_mark()
        # A longer prompt than was reserved for?
        if self._reserved - prompt_tokens < min(self._ahead, self._most - prompt_tokens):
            self._ask()

    def take(self, count: int) -> None:
        """So many more tokens are to be given.

        :raises WeirError: QUOTA_TOKENS, QUOTA_SPEND: they are not reserved, and nothing is left for them.
        """
        self._used += count
        if self._used <= self._mark:
            return
        if self._asking is None and self._denied is None:
            self._ask()
        if self._used > self._reserved:  # nobody has answered in time, or nothing was left some time ago
            self._grow_here()

    def stop_growing(self) -> None:
        """Nothing more is asked for."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()

    def _next_mark(self) -> int:
        """Tokens from which on more is asked for."""
        return self._most if self._reserved >= self._most else self._reserved - self._ahead

    def _ask(self) -> None:
        target = min(self._most, max(self._used, self._reserved) + self._step)
        self._mark = self._reserved
        self._asking = self._quota.start_grow(
            tenant=self._tenant,
            request_id=self._id,
            tokens=target,
            deadline=self._deadline,
            traceparent=self._traceparent,
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
            self._fates.labels("denied").inc()
            self._denied = error

    def _grow_here(self) -> None:
        self.stop_growing()
        if self._denied is not None:
            raise self._denied
        target = min(self._most, self._used + self._ahead)
        try:
            self._quota.grow_here(tenant=self._tenant, request_id=self._id, tokens=target, deadline=self._deadline)
        except WeirError:
            self._fates.labels("denied").inc()
            raise
        self._grown(target)

    def _grown(self, target: int) -> None:
        self._fates.labels("granted").inc()
        self._reserved = max(self._reserved, target)
        self._step *= 2
        self._mark = self._next_mark()


def forget(future: Future[Any]) -> None:
    """Nobody will await this future: keep its late failure from being reported as unhandled."""
    future.add_done_callback(lambda done: None if done.cancelled() else done.exception())
