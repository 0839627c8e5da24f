"""Decides which submissions run: checks, the grant, the worker's own bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from weir.admission.v1.admission_pb2 import Grant
from weir.worker.v1 import worker_pb2

from libs.errors import Reason, WeirError
from libs.grants import GrantVerifier
from services.worker import metrics
from services.worker.convert import asked_of
from services.worker.hub import Hub, Mailbox
from services.worker.policy.checks import Asked, check_group

Refused = list[tuple[int, WeirError]]


class Intake:
    """Takes frames of submissions; shared by all sessions."""

    def __init__(
        self,
        *,
        hub: Hub,
        verifier: GrantVerifier,
        require_grants: bool,
        max_waiting: int,
        max_ungranted: int,
        admission_live: Callable[[], bool],
    ) -> None:
        """`admission_live`: whether any admission process knows this worker at present."""
        self._hub = hub
        self._verifier = verifier
        self._require_grants = require_grants
        self._max_waiting = max_waiting
        self._max_ungranted = max_ungranted
        self._admission_live = admission_live
        self.draining = ""
        """Why nothing is taken any more; empty while it is."""

    def submit(self, mailbox: Mailbox, items: Iterable[worker_pb2.Submit]) -> Refused:
        """Start what may run; returns the sequences that may not, with the reason of each."""
        refused: Refused = []
        for group in _by_grant(items):
            try:
                accepted = self._admit(mailbox, group)
            except WeirError as error:
                refused += [(asked.number, error) for _, asked in group]
                metrics.REFUSED.labels(error.reason.name.lower()).inc(len(group))
            else:
                self._hub.submit(
                    mailbox,
                    group,
                    tenant=accepted.tenant,
                    kv_share=accepted.kv_share,
                    epoch=accepted.epoch,
                    blocks=accepted.blocks,
                )
        return refused

    def _admit(self, mailbox: Mailbox, group: list[tuple[worker_pb2.Submit, Asked]]) -> Grant:
        """What the group runs under: its grant, used up last, so that a refusal costs none; or what stands for one."""
        if self.draining:
            raise WeirError(Reason.DRAINING, self.draining)
        info = self._hub.engine.info
        asked = [each for _, each in group]
        demand = check_group(asked, info)
        if len({each.number for each in asked} | mailbox.handles.keys()) != len(asked) + len(mailbox.handles):
            raise WeirError(Reason.INVALID_REQUEST, "the handle is in use", limit="handle")
        if self._hub.live + len(group) > info.max_running + self._max_waiting:
            raise WeirError(Reason.REJECTED_QUEUE_FULL, "too many sequences wait in this worker", limit="max_waiting")
        longest = demand.prompt_tokens + demand.choices * demand.max_output_tokens
        blocks = longest // info.block_size + demand.choices
        if not self._require_grants:
            return Grant(blocks=blocks)
        if not group[0][0].grant.mac:
            self._check_ungranted(len(group))
            # Nobody vouched for a tenant: share nothing with any.
            return Grant(tenant=f"ungranted/{asked[0].request_id}", blocks=blocks)
        return self._verifier.verify(
            group[0][0].grant,
            request_id=asked[0].request_id,
            model_version=asked[0].model,
            prompt_tokens=demand.prompt_tokens,
            max_output_tokens=demand.max_output_tokens,
            choices=demand.choices,
        )

    def embed(self, request: worker_pb2.EmbedRequest) -> None:
        """Let embeddings be computed; their grant is used up.

        :raises WeirError: why they may not.
        """
        if self.draining:
            raise WeirError(Reason.DRAINING, self.draining)
        if not self._require_grants:
            return
        if not request.grant.mac:
            self._check_ungranted(1)
            return
        self._verifier.verify(
            request.grant,
            request_id=request.request_id,
            model_version=request.model_version,
            prompt_tokens=sum(len(tokens.ids) for tokens in request.inputs),
            max_output_tokens=0,
            choices=1,
        )

    def _check_ungranted(self, count: int) -> None:
        """Work without a grant: a little of it, and only while no admission process could have granted it."""
        if self._admission_live():
            raise WeirError(Reason.GRANT_INVALID, "a grant is needed: admission is up", limit="grant")
        if self._hub.live + count > self._max_ungranted:
            raise WeirError(
                Reason.REJECTED_NO_CAPACITY, "admission is away and this worker is busy", limit="max_ungranted"
            )


def _by_grant(items: Iterable[worker_pb2.Submit]) -> Iterator[list[tuple[worker_pb2.Submit, Asked]]]:
    """Neighbours with one request id and one proof: the choices of one request."""
    pairs = ((item, asked_of(item)) for item in items)
    for _, group in groupby(pairs, key=lambda pair: (pair[1].request_id, pair[0].grant.mac)):
        yield list(group)
