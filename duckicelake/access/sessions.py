"""Who is asking: what a token's bearer may do, remembered while the token lives."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from duckicelake.access.grants import ALL_GRANTS, NO_GRANTS, Grants, Levels, Rights, fold_levels, parse_grants
from duckicelake.access.policy import Policy, find_key

MOST_REMEMBERED = 4096
WHOLE_SCOPES = frozenset({"", "*", "catalog", "sign", "PRINCIPAL_ROLE:ALL"})
"""What clients ask for when nobody told them a scope: all that the principal has. `*` is settled by the grants themselves."""

NO_OBJECTS: Mapping[tuple[str, Levels], Rights] = {}


@dataclass(frozen=True, slots=True)
class Session:
    """A principal while one of its tokens lives, or (`Bearer.within`) in one lake as of what was granted there at a moment.

    `objects`: rights on single tables and views. `lake_name`: the only lake where it is good for anything; empty: settings' rights
    alone, in all of them. `expires_at_s`: until then nobody looks at the token again. `decided` remembers the rights behind raw paths,
    to save decoding them.
    """

    client_id: str
    grants: Grants
    expires_at_s: float
    objects: Mapping[tuple[str, Levels], Rights] = field(default_factory=lambda: NO_OBJECTS)
    lake_name: str = ""
    decided: dict[bytes, Rights] = field(default_factory=dict[bytes, Rights], compare=False, repr=False)

    @property
    def may_choose(self) -> bool:
        """Whether it may choose where files lie, and take in files that are there: only with all rights."""
        return Rights.ALL in self.grants.on(())

    def rights_on(self, levels: Levels) -> Rights:
        """Return the rights in a namespace."""
        return self.grants.on(levels)

    def rights_at(self, kind: str, levels: Levels, name: str) -> Rights:
        """Return the rights on a table or view (`kind`): those in its namespace, and its own."""
        rights = self.grants.on(levels)
        return rights | self.objects.get(find_key(kind, (*levels, name)), Rights.NONE) if self.objects else rights

    def shows(self, levels: Levels) -> bool:
        """Tell whether the namespace may be known: by a right in it, or on something in it or nested in it."""
        if self.grants.shows(levels):
            return True
        folded = fold_levels(levels)
        return any(key[1][: len(folded)] == folded and len(key[1]) > len(folded) for key in self.objects)

    def lists(self, levels: Levels) -> bool:
        """Tell whether there is something right in the namespace that may be known."""
        folded = fold_levels(levels)
        return self.grants.on(levels) is not Rights.NONE or any(key[1][:-1] == folded for key in self.objects)

    def remember(self, raw_path: bytes, rights: Rights) -> Rights:
        """Keep the rights behind a path; they are the same as long as the session."""
        if len(self.decided) >= MOST_REMEMBERED:
            self.decided.clear()
        self.decided[raw_path] = rights
        return rights


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whose a token is. `session`: what settings let it do. `origin`: the lake that keeps its account, and its secret's number.

    `scope`: what the token is good for, None: for all. `roles`: those that its issuer names, good for something where a lake has them.
    `ends_at_s`: when a token of another issuer ends; the session's end only says when it is looked at again.
    """

    session: Session
    scope: Grants | None = None
    origin: str = ""
    roles: tuple[str, ...] = ()
    ends_at_s: float = float("inf")
    bound: dict[str, tuple[Policy, Session]] = field(default_factory=dict[str, tuple[Policy, Session]], compare=False, repr=False)

    @property
    def lake_name(self) -> str:
        """The lake that keeps the account, empty for those of settings."""
        return self.origin.rpartition("/")[0]

    def is_known(self, policy: Policy) -> bool:
        """Tell whether the lake that keeps the account (its policy) still knows it by that secret."""
        account = policy.accounts.get(self.session.client_id)
        return account is not None and account.origin == self.origin

    def within(self, lake_name: str, policy: Policy) -> Session:
        """Return the session in a lake: with what is granted there to the principal, if it is that lake's own or settings' own."""
        known = self.bound.get(lake_name)
        if known is not None and known[0] is policy:
            return known[1]
        session = self._join(lake_name, policy) if self.lake_name in ("", lake_name) else self.session
        self.bound[lake_name] = policy, session
        return session

    def _join(self, lake_name: str, policy: Policy) -> Session:
        held, mine = policy.find_held(self.session.client_id, self.roles), self.session
        if self.scope is None:
            return Session(mine.client_id, join_grants(mine.grants, held.grants), mine.expires_at_s, held.objects, lake_name)
        more = held.grants.within(self.scope)
        objects = {key: left for key, rights in held.objects.items() if (left := rights & self.scope.on(key[1][:-1])) is not Rights.NONE}
        return Session(mine.client_id, join_grants(mine.grants, more), mine.expires_at_s, objects, lake_name)


EVERYBODY = Session("", ALL_GRANTS, float("inf"))
"""Who asks where nobody has to say who they are."""


def read_scope_grants(scope: str) -> Grants | None:
    """Return what a scope leaves, None: everything.

    Raises: BadGrant: a word of the scope is neither a grant nor a name for all of them
    """
    words = [word for word in scope.split(" ") if word not in WHOLE_SCOPES]
    return parse_grants(words) if words else None


def narrow(grants: Grants, scope: str) -> Grants:
    """Return what is left of grants under a scope, which may say less than they do and never more. Raises: BadGrant."""
    wanted = read_scope_grants(scope)
    return grants if wanted is None else grants.within(wanted)


def join_grants(*each: Grants) -> Grants:
    """Return all that any of them allow."""
    return Grants(tuple(grant for grants in each for grant in grants.each)) if each else NO_GRANTS
