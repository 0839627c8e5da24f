"""What a kind of resource is: one row of the table in libs/resources/kinds.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from libs.resources.checks.faults import Fault

if TYPE_CHECKING:
    from libs.resources.snapshot import RegistrySnapshot

EVERYTHING = "/weir/v2"
"""What every resource's key starts with; the version changes with an incompatible layout. One watch of it sees whole
transactions, which two watches would not: etcd promises order within one only."""
ROOT = EVERYTHING + "/"
"""What the services that decide for the mesh may read."""
SECRETS = EVERYTHING + ".secret/"
"""Kinds with secret fields. Beside `ROOT`, not under it, so that a right to read that range leaves them out."""


class Role(Enum):
    """What a caller is trusted with."""

    VIEWER = "viewer"
    """Reads everything but secrets."""
    PUBLISHER = "publisher"
    """Registers model versions and keeps them: models, pins."""
    RELEASER = "releaser"
    """Decides what callers get: aliases, rollouts."""
    AUDITOR = "auditor"
    """Reads the audit log, and everything that a viewer reads."""
    OPERATOR = "operator"
    """Decides on whose terms: tenants, keys, model grants, limits, plans, prices, objectives, budgets, safety
    policies."""
    OWNER = "owner"
    """Everything: also who else may, whose signatures count, the safety floor, and the registry as a whole."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A field that names other resources."""

    path: str
    """Where, with dots; through repeated fields to each element, of a map to its keys and its values."""
    to: tuple[str, ...]
    """Plural names of the kinds that it may name."""
    any: bool = False
    """It may say "*" as well."""
    prefix: str = ""
    """Only what begins with this names a resource: by what follows."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the kind's table."""

    heading: str
    path: str
    """The field, with dots; times, money ("…_microusd"), enums and lists are shown as people write them."""
    unset: str = "-"
    """What stands there when it is empty or 0."""
    wide: bool = False
    """Only when asked for (`-o wide`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of resource."""

    message: type[Message]
    """What it is for those who decide by it; its name is the kind's name."""
    plural: str
    """Its prefix in the store, and its name on the command line."""
    short: tuple[str, ...] = ()
    """Further names on the command line."""
    key: tuple[str, ...]
    """Fields that make its name."""
    joint: str = "/"
    """What stands between them."""
    fixed: str = ""
    """The only name there is, for a kind of which there is one."""
    part: str
    """Its field in `Resource`, of the spec or, for what is only observed, of the status."""
    status: str = ""
    """Field of the message that travels as the resource's status."""
    observed: str = ""
    """Plural name of the kind whose record of the same name is shown as the status."""
    namespace: str = ""
    """Field that travels as the metadata's namespace."""
    check: Callable[[Any, RegistrySnapshot], Iterable[Fault]] | None = None
    """Every fault of a message in the registry as it would then be; None: it cannot be applied."""
    refs: tuple[Ref, ...] = ()
    over: Callable[[Any], bool] = lambda message: False
    """It is history: what it names need not be there any more."""
    change: frozenset[Role] = frozenset()
    """Who may apply and delete it; whoever has any role may read it. Owners may everything."""
    followers: tuple[str, ...] = ()
    """Services whose certificate may watch it."""
    readers: tuple[str, ...] = ()
    """Services whose certificate may get one by its name: of what changes too often to be told to everybody."""
    secret: tuple[str, ...] = ()
    """Fields that nobody reads but `trusted`, and owners who save a registry."""
    trusted: tuple[str, ...] = ()
    """Followers that get the secret fields."""
    bulk: tuple[str, ...] = ()
    """Fields that the history leaves out: nobody reads them there, nothing is restored from them."""
    computed: tuple[str, ...] = ()
    """Fields of the spec that the registry fills in; in an apply they are ignored."""
    leased: bool = False
    """It lives as long as the process that wrote it: neither saved nor restored."""
    restored: bool = False
    """Going back to an earlier revision takes it along."""
    columns: tuple[Column, ...] = ()
    """Between its name and its revision."""

    @property
    def name(self) -> str:
        """As the message is called."""
        return self.message.DESCRIPTOR.name

    @property
    def prefix(self) -> str:
        """What its keys in the store begin with."""
        return f"{SECRETS if self.secret else ROOT}{self.plural}/"

    @property
    def tenant(self) -> str:
        """Field that names the tenant whose it is; empty: its resources are of no tenant."""
        own = self.key[0] if self.plural == "tenants" else "tenant"
        return own if own in self.message.DESCRIPTOR.fields_by_name else ""

    @property
    def applied(self) -> bool:
        """It can be written in a file and applied."""
        return self.check is not None

    @property
    def parts(self) -> int:
        """How many parts the key of its collection has."""
        return max(1, len(self.key)) if self.joint == "/" else 1

    def name_of(self, message: Message) -> str:
        """The resource's name, by the message's own fields."""
        return self.fixed or self.joint.join(getattr(message, each) for each in self.key)

    def tenant_of(self, name: str, message: Message | None) -> str | None:
        """The tenant whose resource this is; empty: of none.

        :param message: None when it is not known; then the answer is None where the name does not tell.
        """
        if not self.tenant:
            return ""
        if self.key[0] == self.tenant:
            return name.partition("/")[0]
        return getattr(message, self.tenant) if message is not None else None

    def entry(self, name: str) -> Any:
        """The key of its collection: the name, or a tuple of its parts; None when the name has not as many."""
        parts = tuple(name.split("/", self.parts - 1)) if self.parts > 1 else (name,)
        if len(parts) != self.parts or not all(parts):
            return None
        return parts if self.parts > 1 else name
