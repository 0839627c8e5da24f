"""The client: channel, credentials, retries."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from weir.client._predict import Call, Declarations, Prediction, predict
from weir.client._stream import LOST, GenerationStream
from weir.client._tensors import Declared, Tensor
from weir.client._types import Completion, Embeddings, Input, Parameters, to_spec
from weir.inference.v1 import inference_pb2, inference_pb2_grpc

from libs.config import TlsFiles
from libs.errors import Reason, WeirError, from_rpc_error
from libs.rpc import make_channel

T = TypeVar("T")
_DEFAULTS = Parameters()
_PREDICTOR = "xds:///predictor.weir.internal"
_EDGE = [("grpc.max_receive_message_length", 16 * 2**20)]
"""As inside the mesh: the largest answer of a prediction, where gRPC's own bound is 4 MiB."""
_SPELT = re.compile(r"[!-~]([ -~]{0,254}[!-~])?")
"""What a header can say: at most 256 printable ASCII characters, without spaces around them."""
# Nothing has run when these come before the first token; another try may find room or another process.
_RETRYABLE = frozenset(
    {
        Reason.DEPENDENCY_UNAVAILABLE,
        Reason.DRAINING,
        Reason.NOT_OWNER,
        Reason.REJECTED_QUEUE_FULL,
        Reason.REJECTED_DEADLINE,
        Reason.REJECTED_NO_CAPACITY,
        Reason.REJECTED_OVERLOAD,
        Reason.EVICTED_SHED,
        Reason.EVICTED_TTL,
        Reason.GRANT_EXPIRED,
        Reason.WORKER_LOST,
        Reason.NO_WORKERS,
    }
)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of an internal workload: the mesh's CA, the workload's certificate and its key."""

    ca: str
    cert: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Tries before the first token. The pause is drawn from 0 to `base · 2^attempt`, at most `cap` seconds (full
    jitter), and at least what the server asked for; a try that could not finish inside the timeout is not made."""

    attempts: int = 3
    reconnects: int = 10
    """Tries in a row to go on with a stream that broke: enough for an edge that is started anew."""
    base: float = 0.05
    cap: float = 2.0


class Client:
    """Calls a mesh. One per process; safe for concurrent use on one event loop."""

    def __init__(
        self,
        target: str,
        *,
        tls: Tls | None = None,
        ca: str | None = None,
        api_key: str | None = None,
        predictor: str = "",
        retries: RetryPolicy | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`tls` speaks mTLS as a workload (any target, `xds:///…` included); `ca` with `api_key` speaks TLS to the
        public edge; neither speaks plaintext (a local edge). `predictor` is where predictions are asked, which inside
        the mesh are another process's: by default `xds:///predictor.weir.internal` beside an `xds:///` target, else the
        target itself."""
        self._metadata = [("authorization", f"Bearer {api_key}")] if api_key else []
        self._retries = retries or RetryPolicy()
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        if ca is not None:
            credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes())
            self._channel = grpc.aio.secure_channel(target, credentials, options=_EDGE)
        else:
            files = TlsFiles(tls.ca, tls.cert, tls.key) if tls else None
            name = None if target.startswith("xds:") else "gateway.weir.internal"
            self._channel = make_channel(target, tls=files, server_name=name)
        self._stub = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._predictor = self._channel
        if ca is None and (at := predictor or (_PREDICTOR if target.startswith("xds:") else "")):
            name = None if at.startswith("xds:") else "predictor.weir.internal"
            self._predictor = make_channel(at, tls=files, server_name=name)
        self._predictions = GRPCInferenceServiceStub(self._predictor)
        self._declarations = Declarations()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channels; running calls are cancelled."""
        await self._channel.close()
        if self._predictor is not self._channel:
            await self._predictor.close()

    def generate(
        self,
        model: str,
        given: Input,
        *,
        timeout: float,
        parameters: Parameters = _DEFAULTS,
        client_request_id: str = "",
        user: str = "",
        sticky_key: str = "",
        batch: bool = False,
        idempotency_key: str = "",
    ) -> GenerationStream:
        """Stream a generation: `async with client.generate(…) as stream: async for piece in stream`.

        `timeout` is in seconds and covers everything, retries included. A stream whose gateway died goes on at another
        one. With `batch` nobody waits for it: it stands behind everything else and may be interrupted, and goes on
        where it was.

        With an `idempotency_key` (at most 255 printable ASCII characters) the same request may be sent again: it joins
        what runs, or gets the answer that was given within the last day, and is billed once.

        While a model is being changed, some callers get the new version first and keep it: by `user` (whoever the
        request is for) or by `sticky_key` (the conversation), as the change says.
        """
        spec = to_spec(
            model, given, parameters, client_request_id=client_request_id, sticky_key=sticky_key, batch=batch
        )
        spec.idempotency_key = idempotency_key
        ends = time.monotonic() + timeout
        metadata = self._for(user, idempotency_key)

        async def start(cursor: bytes) -> Any:
            spec.cursor = cursor
            call = self._stub.Generate(timeout=max(0.001, ends - time.monotonic()), metadata=metadata)
            # A call that has ended already tells why when it is read.
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(inference_pb2.GenerateRequest(start=spec))
            return call

        pause = partial(self._pause, ends=ends)
        return GenerationStream(start, pause, joins=bool(idempotency_key))

    async def complete(
        self,
        model: str,
        given: Input,
        *,
        timeout: float,
        parameters: Parameters = _DEFAULTS,
        client_request_id: str = "",
        user: str = "",
        sticky_key: str = "",
        batch: bool = False,
        idempotency_key: str = "",
    ) -> Completion:
        """Run a generation and return it whole; `user`, `sticky_key`, `batch` and `idempotency_key` as in `generate`.

        :raises WeirError: refused, or failed before any text.
        """
        spec = to_spec(
            model, given, parameters, client_request_id=client_request_id, sticky_key=sticky_key, batch=batch
        )
        spec.idempotency_key = idempotency_key
        request = inference_pb2.CompleteRequest(spec=spec)
        response = await self._unary(self._stub.Complete, request, timeout, user, idempotency_key)
        choices = list(response.choices)
        return Completion(choices[0].text if choices else "", choices, response.accepted, response.end)

    async def embed(
        self, model: str, inputs: Sequence[str], *, timeout: float, user: str = "", idempotency_key: str = ""
    ) -> Embeddings:
        """Embed texts; `user` and `idempotency_key` as in `generate`.

        :raises WeirError: refused.
        """
        request = inference_pb2.EmbedRequest(model=model, inputs=inputs, idempotency_key=idempotency_key)
        response = await self._unary(self._stub.Embed, request, timeout, user, idempotency_key)
        return Embeddings(
            [list(e.values) for e in response.embeddings],
            response.model_version,
            response.usage.prompt_tokens,
            response.simulated,
            response.replayed,
        )

    async def predict(
        self,
        model: str,
        inputs: Mapping[str, Tensor],
        *,
        timeout: float,
        outputs: Sequence[str] = (),
        user: str = "",
        sticky_key: str = "",
        batch: bool = False,
        degradable: bool = True,
        client_request_id: str = "",
        idempotency_key: str = "",
    ) -> Prediction:
        """Ask a model for a prediction: inputs by name, an answer with outputs by name (all, or those named).

        Inputs are checked against what the model declares, which is asked once and kept: an array's type must be the
        declared one; lists are converted where nothing is lost. Where the model takes one matrix whose columns have
        names, columns by their names will do, in any order. A prediction is tried again, within `timeout` seconds,
        where coming back helps. With `batch` nobody waits for it; with `degradable` False it is refused rather than
        answered by something smaller, older or standing in. The rest is as in `generate`.

        :raises WeirError: INVALID_REQUEST naming the tensor in `limit`, or what else the model or the mesh refused.
        """
        more = [("x-weir-session", sticky_key)] if _SPELT.fullmatch(sticky_key) else []
        return await predict(
            self._declarations,
            self._predicting(timeout, user, idempotency_key, more),
            model,
            inputs,
            outputs=outputs,
            batch=batch,
            degradable=degradable,
            client_request_id=client_request_id,
        )

    async def inputs(self, model: str, *, timeout: float) -> Sequence[Declared]:
        """What a model takes.

        :raises WeirError: there is no such model, or refused.
        """
        return await self._declarations.inputs(self._predicting(timeout), model)

    def _predicting(
        self, timeout: float, user: str = "", idempotency_key: str = "", more: Sequence[tuple[str, str]] = ()
    ) -> Call:
        """Makes calls of predictors, all within `timeout`."""
        ends = time.monotonic() + timeout

        async def call(method: str, request: Any, model: str) -> Any:
            routed = [("x-weir-model", model), *more]
            left = ends - time.monotonic()
            stub = getattr(self._predictions, method)
            return await self._unary(stub, request, left, user, idempotency_key, more=routed)

        return call

    async def count_tokens(self, model: str, given: Input, *, timeout: float) -> int:
        """Tokens that this input would cost, template included.

        :raises WeirError: refused.
        """
        spec = to_spec(model, given, Parameters())
        request = inference_pb2.CountTokensRequest(spec=spec)
        response = await self._unary(self._stub.CountTokens, request, timeout)
        return response.prompt_tokens

    def _for(self, user: str, idempotency_key: str = "") -> list[tuple[str, str]]:
        """The call's metadata; a user whom a header cannot spell goes by a digest. The key is told here too, so that
        the edge sends the same one to the same gateway."""
        keyed = [("idempotency-key", idempotency_key)] if _SPELT.fullmatch(idempotency_key) else []
        if not user:
            return [*self._metadata, *keyed]
        if not _SPELT.fullmatch(user):
            user = hashlib.blake2b(user.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
        return [*self._metadata, ("x-weir-user", user), *keyed]

    async def _unary(
        self,
        method: Callable[..., Awaitable[T]],
        request: Any,
        timeout: float,
        user: str = "",
        idempotency_key: str = "",
        more: Sequence[tuple[str, str]] = (),
    ) -> T:
        metadata = [*self._for(user, idempotency_key), *more]
        ends = time.monotonic() + timeout
        attempt = 0
        while True:
            try:
                return await method(request, timeout=max(0.001, ends - time.monotonic()), metadata=metadata)
            except grpc.aio.AioRpcError as failure:
                error = from_rpc_error(failure)
                attempt += 1
                if not await self._pause(attempt, error, ends=ends):
                    raise error from failure

    async def _pause(self, attempt: int, error: WeirError, begun: bool = False, *, ends: float) -> bool:
        """Wait before another try, of a stream that had `begun` too; False when there should be none."""
        reasons, most = (_RETRYABLE | LOST, self._retries.reconnects) if begun else (_RETRYABLE, self._retries.attempts)
        if error.reason not in reasons or attempt >= most:
            return False
        pause = self._rng.uniform(0, min(self._retries.cap, self._retries.base * 2**attempt))
        pause = max(pause, error.retry_after or 0.0)
        if time.monotonic() + pause >= ends:
            return False
        await asyncio.sleep(pause)
        return True
