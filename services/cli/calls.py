"""gRPC calls to the mesh's services with the operator's certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from services.cli.config import Mesh, locate

T = TypeVar("T")
TIMEOUT = 10.0
"""Seconds of an administrative call: a change rides out an election of etcd (4 s)."""
CONNECT_SECONDS = 2.0
"""For a connection to one of several processes; one that hangs accepts connections and says nothing."""


def with_channel(service: str, use: Callable[[Any], Awaitable[T]], *, mesh: Mesh | None = None) -> T:
    """What `use` makes of a channel to the service: to the first of its processes with which a connection comes about.
    Once there is one, nothing is sent to another: a call whose answer is lost may have done its work. The channel's
    calls are plain ones, with trailing metadata.

    :raises WeirError: what the service answers; DEPENDENCY_UNAVAILABLE, naming it, when it cannot be reached.
    :raises NoMeshError: there is no mesh, or it has no such service.
    """
    where = mesh or locate()
    addresses = where.addresses(service)

    async def run() -> T:
        import grpc

        from libs.errors import Reason, WeirError, from_rpc_error
        from libs.rpc import make_channel

        async def ask(address: str, *, last: bool) -> tuple[T] | None:
            async with make_channel(address, tls=where.tls, server_name=f"{service}.weir.internal") as channel:
                # The last one is asked in any case: its failure is the one to tell.
                return (await use(channel),) if last or await _connects(channel) else None

        try:
            for address in addresses[:-1]:
                if (answer := await ask(address, last=False)) is not None:
                    return answer[0]
            return (await ask(addresses[-1], last=True))[0]  # type: ignore[index]
        except OSError as error:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, f"the certificates cannot be read: {error}") from error
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and not error.trailing_metadata():
                # Nobody answered; a service that refuses sends its reason along.
                message = f"{service} does not answer at {' or '.join(addresses)}; see `weir status`"
                raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, message) from error
            raise from_rpc_error(error) from error

    return asyncio.run(run())


async def _connects(channel: Any) -> bool:
    """A connection comes about, without a failure on the way, before `CONNECT_SECONDS` have passed."""
    import grpc

    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                    return False
                await channel.wait_for_state_change(state)
    except TimeoutError:
        return False
    return True


def registry(method: str, request: Any) -> Any:
    """A call of `weir.registry.v1.RegistryService`.

    :raises WeirError, NoMeshError: as in `with_channel`.
    """
    from weir.registry.v1 import registry_pb2_grpc

    return with_channel(
        "registry",
        lambda channel: getattr(registry_pb2_grpc.RegistryServiceStub(channel), method)(request, timeout=TIMEOUT),
    )


def admission(method: str, request: Any) -> Any:
    """A unary call of `weir.admission.v1.AdmissionService`.

    :raises WeirError, NoMeshError: as in `with_channel`.
    """
    from weir.admission.v1 import admission_pb2_grpc

    return with_channel(
        "admission",
        lambda channel: getattr(admission_pb2_grpc.AdmissionServiceStub(channel), method)(request, timeout=TIMEOUT),
    )
