"""From a credential to a verdict: two caches in front of the registry's keys and the issuers' tokens."""

import hashlib
import secrets
from typing import NamedTuple

from libs import apikeys
from libs.authority.operators import at_edge
from libs.clock import Clock
from libs.registry import RegistrySnapshot
from services.edge_auth import metrics
from services.edge_auth.convert import key_record, tenant_record
from services.edge_auth.policy.cache import VerdictCache
from services.edge_auth.policy.credentials import judge_claims, judge_key
from services.edge_auth.policy.types import Principal, Refusal
from services.edge_auth.responses import allowed_start
from services.edge_auth.tokens import TokenVerifier


class Known(NamedTuple):
    """A good credential: who it is, and the start of the answer that lets it through."""

    principal: Principal
    start: bytes


class Authenticator:
    """Verdicts on credentials. Nothing in here waits: unknown credentials are checked in memory, too."""

    def __init__(
        self,
        *,
        pepper: bytes,
        tokens: TokenVerifier,
        clock: Clock,
        max_bytes: int,
        good: VerdictCache[Known],
        good_seconds: float,
        bad: VerdictCache[Refusal],
        bad_seconds: float,
    ) -> None:
        self._pepper = pepper
        self._tokens = tokens
        self._clock = clock
        self._max_bytes = max_bytes
        self._good = good
        self._good_seconds = good_seconds
        self._bad = bad
        self._bad_seconds = bad_seconds
        self._snapshot = RegistrySnapshot()
        # Credentials are remembered under a hash keyed with this, so that memory holds none in the clear.
        self._digest_key = secrets.token_bytes(32)
        # An unknown key id is compared with this, so that it costs what a wrong secret costs.
        self._nobody = secrets.token_bytes(32)

    def use(self, snapshot: RegistrySnapshot) -> None:
        """Decides by this snapshot from now on; forgets all verdicts when its keys or tenants differ."""
        old = self._snapshot
        self._snapshot = snapshot
        if snapshot.keys is not old.keys or snapshot.tenants is not old.tenants:
            self.forget()
        metrics.REVISION.set(snapshot.revision)

    @property
    def revision(self) -> int:
        """The registry's, by which verdicts are made."""
        return self._snapshot.revision

    def has_role(self, principal: Principal) -> bool:
        """The registry knows roles of it; which they are, and whether they suffice, is the registry's to say."""
        return at_edge(principal.key_id) in self._snapshot.roles

    def forget(self) -> None:
        """Forgets all verdicts: what they were based on has changed."""
        self._good.clear()
        self._bad.clear()

    def report(self) -> None:
        """Sets the gauges."""
        metrics.CACHED.labels("good").set(len(self._good))
        metrics.CACHED.labels("bad").set(len(self._bad))

    def identify(self, credential: str) -> Known | Refusal:
        """Who shows this credential. Whether they may do what they ask is `policy.credentials.allow`."""
        content = credential.encode("utf-8", "surrogatepass")
        if len(content) > self._max_bytes:
            return Refusal.BAD_CREDENTIAL
        digest = hashlib.blake2b(content, key=self._digest_key, digest_size=16).digest()
        moment = self._clock.monotonic()
        known = self._good.get(digest, moment)
        if known is not None:
            metrics.FROM_GOOD_CACHE.inc()
            return known
        refused = self._bad.get(digest, moment)
        if refused is not None:
            metrics.FROM_BAD_CACHE.inc()
            return refused
        metrics.VERIFIED.inc()
        verdict = self._verify(credential)
        if isinstance(verdict, Refusal):
            self._bad.put(digest, verdict, moment + self._bad_seconds)
            return verdict
        known = Known(verdict, allowed_start(verdict))
        self._good.put(digest, known, moment + self._good_seconds)
        return known

    def _verify(self, credential: str) -> Principal | Refusal:
        key = apikeys.parse(credential)
        if key is not None:
            return self._verify_key(key)
        if credential.count(".") == 2:
            return self._verify_token(credential)
        return Refusal.BAD_CREDENTIAL

    def _verify_key(self, key: apikeys.ParsedKey) -> Principal | Refusal:
        stored = self._snapshot.keys.get(key.id)
        genuine = apikeys.matches(key, self._nobody if stored is None else stored.hash, self._pepper)
        record = None if stored is None else key_record(stored)
        tenant = None if stored is None else self._snapshot.tenants.get(stored.tenant)
        return judge_key(record, genuine, None if tenant is None else tenant_record(tenant), self._clock.time())

    def _verify_token(self, token: str) -> Principal | Refusal:
        genuine = self._tokens.verify(token)
        if genuine is None:
            return Refusal.BAD_CREDENTIAL
        tenants = {
            tenant.id: tenant_record(tenant)
            for tenant in self._snapshot.tenants.values()
            if tenant.jwt_issuer == genuine.rules.issuer
        }
        return judge_claims(genuine.claims, genuine.rules, tenants, pseudonym=genuine.pseudonym, now=self._clock.time())
