"""Users and roles of etcd, brought to what the table of stores says (libs.authority.stores)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from aetcd import rpc

from libs.authority.identity import Identity
from libs.authority.stores import ROOT_USER, Access, Authority, Range, Step, Verb, authority_of, steps
from libs.config import TlsFiles
from libs.errors import WeirError
from libs.registry.endpoints import Endpoints, Stubs

_ATTEMPTS = 3
"""Somebody else may do the same at the same time; what is there is then read again."""
_AT_ONCE = 16
"""Steps under way: etcd writes them to disk together."""


async def establish(
    endpoints: Sequence[str],
    tls: TlsFiles,
    identities: Iterable[Identity],
    *,
    keep: bool = False,
    dry_run: bool = False,
) -> list[str]:
    """Gives exactly these processes their rights, turns authentication on, and returns what was done (or, of a dry
    run, would be), a line each; nothing when all is so already. Whoever has its rights keeps them meanwhile.

    :param tls: the certificate of `ROOT_USER`, which authentication needs from its second run on.
    :param keep: others keep their users and rights.
    :raises ValueError: a process has no rights in the table.
    :raises WeirError: DEPENDENCY_UNAVAILABLE when etcd does not answer, or refuses the certificate.
    """
    want = authority_of(identities)
    connection = Endpoints(endpoints, tls)
    try:
        for attempt in range(_ATTEMPTS):
            have, enabled = await _read(connection)
            phases = steps(have, want, keep=keep)
            told = [str(step) for phase in phases for step in phase] + ([] if enabled else ["enable authentication"])
            if not told or dry_run:
                return told
            try:
                for phase in phases:
                    await _all(_carry_out(connection, step) for step in phase)
                if not enabled:
                    await _call(connection, lambda stubs: stubs.auth.AuthEnable(rpc.AuthEnableRequest()))
            except WeirError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return told
    finally:
        await connection.close()
    raise AssertionError("unreachable")


async def _read(connection: Endpoints) -> tuple[Authority, bool]:
    """What there is, and whether authentication is on."""
    status = await _call(connection, lambda stubs: stubs.auth.AuthStatus(rpc.AuthStatusRequest()))
    names = await _call(connection, lambda stubs: stubs.auth.RoleList(rpc.AuthRoleListRequest()))
    users = await _call(connection, lambda stubs: stubs.auth.UserList(rpc.AuthUserListRequest()))

    async def granted_by(role: str) -> Any:
        return await _call(connection, lambda stubs: stubs.auth.RoleGet(rpc.AuthRoleGetRequest(role=role)))

    async def given_to(user: str) -> Any:
        return await _call(connection, lambda stubs: stubs.auth.UserGet(rpc.AuthUserGetRequest(name=user)))

    granted, given = await _all(map(granted_by, names.roles)), await _all(map(given_to, users.users))
    return (
        Authority(
            roles={
                role: {}
                if role == ROOT_USER  # etcd's own, over everything
                else {Range(each.key.decode(), each.range_end.decode()): Access(each.permType) for each in answer.perm}
                for role, answer in zip(names.roles, granted, strict=True)
            },
            users={user: frozenset(answer.roles) for user, answer in zip(users.users, given, strict=True)},
        ),
        bool(status.enabled),
    )


async def _carry_out(connection: Endpoints, step: Step) -> None:
    start, end = (step.range.start.encode(), step.range.end.encode()) if step.range else (b"", b"")
    match step.verb:
        case Verb.ADD_ROLE:
            await _call(connection, lambda stubs: stubs.auth.RoleAdd(rpc.AuthRoleAddRequest(name=step.role)))
        case Verb.GRANT:
            grant = rpc.AuthRoleGrantPermissionRequest(
                name=step.role,
                perm={"permType": step.access.value if step.access else 0, "key": start, "range_end": end},
            )
            await _call(connection, lambda stubs: stubs.auth.RoleGrantPermission(grant))
        case Verb.ADD_USER:
            # Without a password nothing but a certificate opens the door.
            add = rpc.AuthUserAddRequest(name=step.user, options={"no_password": True})
            await _call(connection, lambda stubs: stubs.auth.UserAdd(add))
        case Verb.GIVE_ROLE:
            give = rpc.AuthUserGrantRoleRequest(user=step.user, role=step.role)
            await _call(connection, lambda stubs: stubs.auth.UserGrantRole(give))
        case Verb.TAKE_ROLE:
            take = rpc.AuthUserRevokeRoleRequest(name=step.user, role=step.role)
            await _call(connection, lambda stubs: stubs.auth.UserRevokeRole(take))
        case Verb.DELETE_USER:
            await _call(connection, lambda stubs: stubs.auth.UserDelete(rpc.AuthUserDeleteRequest(name=step.user)))
        case Verb.REVOKE:
            revoke = rpc.AuthRoleRevokePermissionRequest(role=step.role, key=start, range_end=end)
            await _call(connection, lambda stubs: stubs.auth.RoleRevokePermission(revoke))
        case Verb.DELETE_ROLE:
            await _call(connection, lambda stubs: stubs.auth.RoleDelete(rpc.AuthRoleDeleteRequest(role=step.role)))


async def _all(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """The answers, in order; a few calls at a time."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Awaitable[Any]) -> Any:
        async with gate:
            return await call

    return await asyncio.gather(*(one(call) for call in calls))


async def _call(connection: Endpoints, make: Callable[[Stubs], Awaitable[Any]]) -> Any:
    return await connection.call(make, repeatable=False)
