"""Who is asking: what a token's bearer may do, remembered while the token lives."""

from dataclasses import dataclass, field

from duckicelake.access.grants import ALL_GRANTS, Grants, Levels, Rights, parse_grants

MOST_REMEMBERED = 4096
WHOLE_SCOPES = frozenset({"", "*", "catalog", "sign", "PRINCIPAL_ROLE:ALL"})
"""What clients ask for when nobody told them a scope: all that the principal has. `*` is settled by the grants themselves."""


@dataclass(frozen=True, slots=True)
class Session:
    """A principal while one of its tokens lives. `decided` remembers the rights behind raw paths, to save decoding them."""

    client_id: str
    grants: Grants
    expires_at_s: float
    decided: dict[bytes, Rights] = field(default_factory=dict[bytes, Rights], compare=False, repr=False)

    @property
    def may_choose(self) -> bool:
        """Whether it may choose where files lie, and take in files that are there: only with all rights."""
        return Rights.ALL in self.grants.on(())

    def rights_on(self, levels: Levels) -> Rights:
        """Return the rights in a namespace."""
        return self.grants.on(levels)

    def remember(self, raw_path: bytes, rights: Rights) -> Rights:
        """Keep the rights behind a path; they are the same as long as the session."""
        if len(self.decided) >= MOST_REMEMBERED:
            self.decided.clear()
        self.decided[raw_path] = rights
        return rights


EVERYBODY = Session("", ALL_GRANTS, float("inf"))
"""Who asks where nobody has to say who they are."""


def narrow(grants: Grants, scope: str) -> Grants:
    """Return what is left of grants under a scope, which may say less than they do and never more.

    Raises: BadGrant: a word of the scope is neither a grant nor a name for all of them
    """
    words = [word for word in scope.split(" ") if word not in WHOLE_SCOPES]
    return grants.within(parse_grants(words)) if words else grants
