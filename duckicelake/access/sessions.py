"""Sessions: the rights of a token's principal, and the cache of verified tokens. In memory only.

The authentication layer of `rest` builds the session of each request on the event loop; handlers read rights there and on worker threads.
`TokenCache`, `Bearer.bound`, `Bearer.bound_routes` and `Session.decided` are changed on the event loop only.
"""

import hashlib
import operator
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from duckicelake.access.grants import ALL_GRANTS, CHANGE, NO_GRANTS, Grants, Levels, Rights, fold_levels, parse_grants
from duckicelake.access.policy import BranchGrants, HeldRights, LakePolicy, build_object_key, join_rights

MOST_CACHED_PATHS = 4096
WHOLE_SCOPES = frozenset({"", "*", "catalog", "sign", "PRINCIPAL_ROLE:ALL"})
"""Scopes that clients send by default; each means all rights of the principal. `*` is also a grant."""

PROTECTED = (
    "The lake is protected: it is changed by merging a branch alone. Work on a branch (the warehouse `lake@branch`), "
    "or end the protection with `duckicelake branch unprotect main`."
)
NO_OBJECTS: Mapping[tuple[str, Levels], Rights] = {}


@dataclass(frozen=True, slots=True)
class Session:
    """The rights of a principal by one of its tokens; `Bearer.within` returns those in one lake, by the lake's grants.

    `objects`: rights on single tables and views. `lake_name`: the only lake that the rights hold in; empty: rights of the settings, which
    hold in every lake. `branches`: rights on branches as wholes. `read_only`: why nothing may be changed here, empty if it may.
    `expires_at_s`: when the token must be verified again. `decided` caches the rights by raw request path, which saves
    decoding the path.
    """

    client_id: str
    grants: Grants
    expires_at_s: float
    objects: Mapping[tuple[str, Levels], Rights] = field(default_factory=lambda: NO_OBJECTS)
    lake_name: str = ""
    branches: BranchGrants = ()
    read_only: str = ""
    decided: dict[bytes, Rights] = field(default_factory=dict[bytes, Rights], compare=False, repr=False)

    @property
    def may_choose_locations(self) -> bool:
        """True if the principal may choose locations and register existing files; this needs every right on the warehouse."""
        return Rights.ALL in self.grants.on(())

    def rights_on(self, levels: Levels) -> Rights:
        """Return the rights in a namespace."""
        return self._limit(self.grants.on(levels))

    def rights_at(self, kind: str, levels: Levels, name: str) -> Rights:
        """Return the rights on a table or view (`kind`): those in its namespace, and its own."""
        rights = self.grants.on(levels)
        return self._limit(rights | self.objects.get(build_object_key(kind, (*levels, name)), Rights.NONE) if self.objects else rights)

    def _limit(self, rights: Rights) -> Rights:
        return rights & ~CHANGE if self.read_only else rights

    def shows(self, levels: Levels) -> bool:
        """True if the principal may know that the namespace exists: it has a right on it, on an object in it or on a nested namespace."""
        if self.grants.shows(levels):
            return True
        folded = fold_levels(levels)
        return any(key[1][: len(folded)] == folded and len(key[1]) > len(folded) for key in self.objects)

    def lists(self, levels: Levels) -> bool:
        """True if the principal has a right on the namespace or on a table or view directly in it."""
        folded = fold_levels(levels)
        return self.grants.on(levels) is not Rights.NONE or any(key[1][:-1] == folded for key in self.objects)

    def limited_to(self, scope: Grants) -> "Session":
        """Return the session with its rights inside the namespaces of a scope only."""
        objects = {key: left for key, rights in self.objects.items() if (left := rights & scope.on(key[1][:-1])) is not Rights.NONE}
        return replace(self, grants=self.grants.within(scope), objects=objects, branches=(), decided={})

    def remember(self, raw_path: bytes, rights: Rights) -> Rights:
        """Cache the rights for a raw path; they do not change while the session lives."""
        if len(self.decided) >= MOST_CACHED_PATHS:
            self.decided.clear()
        self.decided[raw_path] = rights
        return rights


@dataclass(frozen=True, slots=True)
class Bearer:
    """The principal that a verified token authenticates.

    `session`: its rights by settings. `scope`: the grants that the token is limited to, None for all. `origin`: the lake that holds the
    account and the number of the secret, empty for clients of the settings. `roles`: the roles in an OIDC token; a lake gives rights to
    those it has. `ends_at_s`: when an OIDC token expires; the session ends earlier, so that the token is verified again.
    """

    session: Session
    scope: Grants | None = None
    origin: str = ""
    roles: tuple[str, ...] = ()
    ends_at_s: float = float("inf")
    bound: dict[str, tuple[LakePolicy, Session]] = field(default_factory=dict[str, tuple[LakePolicy, Session]], compare=False, repr=False)
    bound_routes: dict[str, tuple[tuple[LakePolicy, ...], Session]] = field(
        default_factory=dict[str, tuple[tuple[LakePolicy, ...], Session]], compare=False, repr=False
    )

    @property
    def lake_name(self) -> str:
        """Name of the lake that holds the account, empty for clients of the settings."""
        return self.origin.rpartition("/")[0]

    def is_known(self, policy: LakePolicy) -> bool:
        """True if the account still exists, with the same secret, in the policy of its lake."""
        account = policy.accounts.get(self.session.client_id)
        return account is not None and account.origin == self.origin

    def within(self, lake_name: str, policy: LakePolicy, repository: str = "") -> Session:
        """Return the session in a lake: with the lake's grants, unless the account belongs to another lake.

        `repository`: the lake's name if `lake_name` is a branch of it, whose accounts are the lake's.
        """
        known = self.bound.get(lake_name)
        if known is not None and known[0] is policy:
            return known[1]
        session = self._join(lake_name, policy, repository) if self.lake_name in ("", repository or lake_name) else self.session
        if policy.is_protected:
            session = replace(session, read_only=PROTECTED, decided={})
        self.bound[lake_name] = policy, session
        return session

    def _join(self, lake_name: str, policy: LakePolicy, repository: str) -> Session:
        held = policy.get_rights(self.session.client_id, self.roles)
        return self._add(held.on_branch(lake_name.removeprefix(f"{repository}@")) if repository else held, lake_name)

    def _add(self, held: HeldRights, lake_name: str) -> Session:
        mine = self.session
        if self.scope is None:
            return Session(mine.client_id, join_grants(mine.grants, held.grants), mine.expires_at_s, held.objects, lake_name, held.branches)
        more = held.grants.within(self.scope)
        objects = {key: left for key, rights in held.objects.items() if (left := rights & self.scope.on(key[1][:-1])) is not Rights.NONE}
        return Session(mine.client_id, join_grants(mine.grants, more), mine.expires_at_s, objects, lake_name)

    def within_route(self, route_name: str, policies: tuple[LakePolicy, ...], lake_name: str) -> Session:
        """Return the session in another catalog that is served over a route: with the rights that the policies give there.

        `lake_name`: the lake whose accounts may have such rights. Of the grants in settings only `*` is valid over routes: the others name
        namespaces of lakes. A token's scope limits the rights here too.
        """
        known = self.bound_routes.get(route_name)
        if known is not None and len(known[0]) == len(policies) and all(map(operator.is_, known[0], policies)):
            return known[1]
        mine, is_known = self.session, self.lake_name in ("", lake_name)
        held = join_rights(*(policy.get_rights(mine.client_id, self.roles) for policy in policies)) if is_known else HeldRights()
        own = mine.grants if Rights.ALL in mine.grants.on(()) else NO_GRANTS
        session = Bearer(Session(mine.client_id, own, mine.expires_at_s), self.scope)._add(held, route_name)
        self.bound_routes[route_name] = policies, session
        return session


ANONYMOUS = Session("", ALL_GRANTS, float("inf"))
"""The session of every request to a server that does not require authentication."""


def read_scope_grants(scope: str) -> Grants | None:
    """Return the grants that a scope names, None for all rights of the principal.

    Raises: BadGrant: a word of the scope is neither a grant nor one of `WHOLE_SCOPES`
    """
    words = [word for word in scope.split(" ") if word not in WHOLE_SCOPES]
    return parse_grants(words) if words else None


def narrow(grants: Grants, scope: str) -> Grants:
    """Return the grants that a scope leaves; a scope never adds rights. Raises: BadGrant."""
    wanted = read_scope_grants(scope)
    return grants if wanted is None else grants.within(wanted)


def join_grants(*each: Grants) -> Grants:
    """Return the union of grants."""
    return Grants(tuple(grant for grants in each for grant in grants.each)) if each else NO_GRANTS


MOST_CACHED_TOKENS = 10_000


class TokenCache:
    """Bearers of verified tokens, by a keyed hash of the token, so that no token stays in memory. Emptied when it is full."""

    def __init__(self, most: int = MOST_CACHED_TOKENS) -> None:
        # A keyed BLAKE2b takes a third of the time of an HMAC, and every request pays it.
        self._keyed = hashlib.blake2b(key=secrets.token_bytes(32), digest_size=32)
        self._most = most
        self._bearers: dict[bytes, Bearer] = {}

    def find(self, token: bytes, now_s: float) -> Bearer | None:
        """Return the bearer of a token; None if it is not cached or its session has ended."""
        bearer = self._bearers.get(self._hash(token))
        return bearer if bearer is not None and now_s < bearer.session.expires_at_s else None

    def put(self, token: bytes, bearer: Bearer) -> Bearer:
        """Cache the bearer of a verified token, and return it."""
        if len(self._bearers) >= self._most:
            self._bearers.clear()
        self._bearers[self._hash(token)] = bearer
        return bearer

    def _hash(self, token: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(token)
        return keyed.digest()
