"""What a running request may use of its quota, and how that grows.

A caller who does not say how long its answer may be is reserved what answers have lately been, and not the whole
context. So a tenant near its limit is not refused for tokens that nobody will make. More is asked for before it is
used: no token is taken from a worker that is not reserved.
"""

from __future__ import annotations

from asyncio import Future

from libs.deadlines import Deadline
from libs.errors import WeirError
from services.gateway import metrics
from services.gateway.ports import QuotaPort

AHEAD = 64
"""Tokens of each choice that are reserved ahead of its output: while they are made, the limiter answers."""


class Allowance:
    """Of one request; counts output tokens over all choices."""

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
