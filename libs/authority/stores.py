"""Who may read and write what in etcd. `ROWS` is the table; etcd's users and roles, the door's decisions
(services/door) and docs/security.md are made from it. Whoever has no row, tenants' workloads and operators among them,
may nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from libs.authority.identity import Identity, Operator, etcd_user
from libs.registry import keys
from libs.resources.kinds import BY_PLURAL, KINDS

ROOT_USER = "root"
"""etcd's own name for the user that may everything, and the common name of the certificate that sets up the others."""
CLIENT_NAME = "etcd-client.weir.internal"
"""The DNS name without which etcd accepts no client's certificate (`--client-cert-allowed-hostname`). etcd of
before the mends of 2026 lets whoever is connected pass by every role (GHSA-rfx7-8w68-q57q: nested transactions), so
what matters most is who is connected at all."""
_INSTANCE = "{instance}"


class Access(Enum):
    """What may be done with a range of keys; the values are etcd's `Permission.Type`."""

    READ = 0
    WRITE = 1
    """Put and delete; it does not include reading."""
    BOTH = 2

    @property
    def word(self) -> str:
        """For people."""
        return {Access.READ: "read", Access.WRITE: "write", Access.BOTH: "read, write"}[self]


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Keys from `start` up to, but without, `end`; without an end, the one key."""

    start: str
    end: str = ""

    @classmethod
    def under(cls, prefix: str) -> Range:
        """All keys with a prefix, which are ASCII: the last byte can grow."""
        return cls(prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))

    def covers(self, other: Range) -> bool:
        """Whether every key of the other is one of this."""
        last = self.end or self.start + "\0"
        return self.start <= other.start and (other.end or other.start + "\0") <= last

    @property
    def of_instance(self) -> bool:
        """It is another one for every instance."""
        return _INSTANCE in self.start

    @property
    def widened(self) -> Range:
        """The range of all instances together."""
        return Range.under(self.start.partition(_INSTANCE)[0]) if self.of_instance else self

    def of(self, instance: str) -> Range:
        """The range of one instance."""
        return Range(self.start.replace(_INSTANCE, instance), self.end)

    def __str__(self) -> str:
        """As people write it."""
        return self.start if not self.end else f"{self.start}*"


@dataclass(frozen=True, slots=True)
class Row:
    """What a service may."""

    reads: tuple[Range, ...] = ()
    writes: tuple[Range, ...] = ()
    direct: bool = False
    """It speaks with etcd itself; all others speak with the door, which alone is trusted to let them do no more."""

    @property
    def access(self) -> dict[Range, Access]:
        """By range, in order."""
        found = {}
        for each in sorted({*self.reads, *self.writes}):
            found[each] = (
                Access.BOTH
                if each in self.reads and each in self.writes
                else Access.READ
                if each in self.reads
                else Access.WRITE
            )
        return found


def _kind(plural: str) -> Range:
    return Range.under(BY_PLURAL[plural].prefix)


def _service(service: str, reads: Iterable[Range] = (), writes: Iterable[Range] = (), *, direct: bool = False) -> Row:
    """A service's row: every process keeps its own endpoint, whatever else it does."""
    own = Range(keys.key("endpoints", f"{service}/{_INSTANCE}"))
    return Row((*reads, own), (*writes, own), direct)


_FENCE, _OUTBOX, _HISTORY = Range(keys.FENCE), Range.under(keys.AUDIT_OUTBOX), Range.under(keys.HISTORY)
_EPOCH = Range(keys.EPOCH)
_CHECKPOINT = Range(keys.AUDIT_CHECKPOINTS + _INSTANCE)
_LEADER = keys.LEADERS + "rollout"

DOOR = "door"
"""The service that speaks with etcd for those that do not (services/door)."""

_DIRECT: dict[str, Row] = {
    "registry": _service(
        "registry",
        reads=(Range.under(keys.EVERYTHING), _OUTBOX, _HISTORY),
        # What is leased its owner writes; the rest is also what an import brings.
        writes=(*(Range.under(kind.prefix) for kind in KINDS if not kind.leased), _FENCE, _EPOCH, _OUTBOX, _HISTORY),
        direct=True,
    ),
    "controlplane": _service("controlplane", reads=(Range.under(keys.ROOT),), direct=True),
    "rollout": _service(
        "rollout",
        reads=(Range.under(keys.ROOT), _HISTORY, Range.under(_LEADER)),
        writes=(*map(_kind, ("rollouts", "aliases", "error-budgets")), _FENCE, _OUTBOX, _HISTORY, Range(_LEADER)),
        direct=True,
    ),
}
_BEHIND: dict[str, Row] = {
    # What they decide by they follow at the registry (`Kind.followers`), so hardly anything is read here.
    "ratelimit": _service("ratelimit", reads=(_kind("spend"),), writes=(_kind("spend"),)),
    "admission": _service("admission", reads=(_kind("levels"),), writes=(_kind("levels"),)),
    "audit": _service("audit", reads=(_CHECKPOINT,), writes=(_CHECKPOINT,)),
    **{
        each: _service(each)
        for each in ("collector", "edge-auth", "gateway", "predictor", "records", "router", "safety", "worker")
    },
}
ROWS: Mapping[str, Row] = {
    **_DIRECT,
    # Whatever anybody behind it may; which of them may what is its to decide.
    DOOR: _service(
        DOOR,
        reads=sorted({each.widened for row in _BEHIND.values() for each in row.reads}),
        writes=sorted({each.widened for row in _BEHIND.values() for each in row.writes}),
        direct=True,
    ),
    **_BEHIND,
}
"""By service."""


def connects(identity: Identity | Operator) -> bool:
    """Whether etcd lets it connect: its certificate carries `CLIENT_NAME`. etcd itself is probed with its own."""
    service = identity.service if isinstance(identity, Identity) else ""
    return service in ("etcd", ROOT_USER) or (service in ROWS and ROWS[service].direct)


def access_of(identity: Identity) -> dict[Range, Access]:
    """What a process may; nothing for whoever is no instance of a service that has a row."""
    row = ROWS.get(identity.service)
    if row is None or not identity.instance:
        return {}
    return {each.of(identity.instance): access for each, access in row.access.items()}


def may(identity: Identity, access: Access, wanted: Range) -> bool:
    """Whether a process may read (or write) every key of a range."""
    return any(
        held in (access, Access.BOTH) and granted.covers(wanted) for granted, held in access_of(identity).items()
    )


@dataclass(frozen=True, slots=True)
class Authority:
    """etcd's roles and users."""

    roles: Mapping[str, Mapping[Range, Access]]
    """What each grants."""
    users: Mapping[str, frozenset[str]]
    """Which roles each has."""


class Verb(Enum):
    """What a step does."""

    ADD_ROLE = "add role"
    GRANT = "grant"
    ADD_USER = "add user"
    GIVE_ROLE = "give role"
    TAKE_ROLE = "take role"
    DELETE_USER = "delete user"
    REVOKE = "revoke"
    DELETE_ROLE = "delete role"


@dataclass(frozen=True, slots=True)
class Step:
    """One change of etcd's roles or users."""

    verb: Verb
    user: str = ""
    role: str = ""
    range: Range | None = None
    access: Access | None = None

    def __str__(self) -> str:
        """One line for people."""
        access = self.access.word if self.access else ""
        what = (self.role, access, str(self.range or "")) if self.range else (self.user, self.role)
        return " ".join(each for each in (self.verb.value, *what) if each)


def authority_of(identities: Iterable[Identity]) -> Authority:
    """The roles and users that the table gives these processes, as far as they connect: a role per service, with what
    all its instances may, and one per instance, with its own keys.

    :raises ValueError: a process has the name of another one, or of `ROOT_USER`.
    """
    roles: dict[str, Mapping[Range, Access]] = {ROOT_USER: {}}
    users: dict[str, frozenset[str]] = {ROOT_USER: frozenset({ROOT_USER})}
    for identity in identities:
        if not connects(identity):
            continue
        access = access_of(identity)
        user = etcd_user(identity)
        if user in users:
            raise ValueError(f"two processes are called {user!r}")
        row = ROWS.get(identity.service, Row())
        own = {each.of(identity.instance) for each in row.access if each.of_instance}
        parts = {
            f"instance.{user}": {each: kind for each, kind in access.items() if each in own},
            f"service.{identity.service}": {each: kind for each, kind in access.items() if each not in own},
        }
        given = {role: part for role, part in parts.items() if part}
        roles.update(given)
        users[user] = frozenset(given)
    return Authority(roles, users)


def steps(have: Authority, want: Authority, *, keep: bool = False) -> list[list[Step]]:
    """What leads from one to the other: phases, whose steps may be taken in any order. Nobody who keeps a right lacks
    it in between.

    :param keep: take nothing away: for adding processes to those that are there.
    """
    none: dict[Range, Access] = {}
    phases = [
        [Step(Verb.ADD_ROLE, role=role) for role in want.roles if role not in have.roles]
        + [Step(Verb.ADD_USER, user=user) for user in want.users if user not in have.users],
        [
            Step(Verb.GRANT, role=role, range=each, access=access)
            for role, granted in want.roles.items()
            for each, access in granted.items()
            if have.roles.get(role, none).get(each) is not access
        ],
        [
            Step(Verb.GIVE_ROLE, user=user, role=role)
            for user, given in want.users.items()
            for role in sorted(given - have.users.get(user, frozenset()))
        ],
    ]
    if not keep:
        phases += [
            [Step(Verb.DELETE_USER, user=user) for user in have.users if user not in want.users]
            + [
                Step(Verb.TAKE_ROLE, user=user, role=role)
                for user, given in have.users.items()
                if user in want.users
                for role in sorted(given - want.users[user])
            ],
            [Step(Verb.DELETE_ROLE, role=role) for role in have.roles if role not in want.roles]
            + [
                Step(Verb.REVOKE, role=role, range=each)
                for role, granted in have.roles.items()
                if role in want.roles
                for each in granted
                if each not in want.roles[role]
            ],
        ]
    return [phase for phase in phases if phase]
