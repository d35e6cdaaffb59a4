"""The policy of a lake: its accounts, and the privileges of its principals and roles, as of one snapshot of its tables.

`catalog/access_rules.py` builds policies from rows on worker threads; `rest` reads them on the event loop, so they are immutable. `app`
parses the rights that settings give on routes. No I/O.
Shape: `warehouse`, `namespace:<levels>`, `table:<levels>.<name>`, `view:<levels>.<name>`, escaped as in scopes (`ns:…`);
the same in another catalog: `route:<name>` and `route:<name>/namespace:<levels>`.
`branch:<pattern>` names branches of the lake; `*` in it stands for any text.
Principals and roles of an OIDC issuer are `<issuer>:<name>`, also in grants and in a lake, which has no secret for them; other names have
no colon.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

from duckicelake.access.clients import Client
from duckicelake.access.grants import BROKEN_ESCAPE, CHANGE, BadGrant, Grant, Grants, Levels, Rights, fold_levels, format_name

WAREHOUSE, NAMESPACE, TABLE, VIEW = "warehouse", "namespace", "table", "view"
ROUTE = "route"
BRANCH = "branch"
BRANCH_PATTERN = re.compile(r"[A-Za-z0-9*][A-Za-z0-9._*-]*")
ROUTE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
KINDS = frozenset({WAREHOUSE, NAMESPACE, TABLE, VIEW})
PRIVILEGES: Mapping[str, Rights] = {
    "list": Rights.LIST,
    "read": Rights.READ,
    "write": Rights.WRITE,
    "create": Rights.CREATE,
    "drop": Rights.DROP,
    "manage": Rights.MANAGE,
}
EVERY_PRIVILEGE = "all"
NAME = re.compile(r"[!-+./-9;-{}~-]{1,128}")
ROLE_PREFIX = "role:"
ISSUER_NAME = re.compile(r"(?!role$)[a-z][a-z0-9_-]{0,31}")
SAFE_IN_ISSUER_NAME = "!\"#$&'()*+/:;<=>?@[\\]^`{|}"
LONGEST_ISSUER_NAME = 512
ON_OBJECTS = frozenset(PRIVILEGES) - {"create"}
ON_BRANCHES = frozenset({"create", "write", "drop"})


@dataclass(frozen=True, slots=True)
class Securable:
    """An object of privileges: the warehouse (no levels), a namespace, or a table or view by namespace and name.

    `route`: the route to the other catalog that has the object, and then the warehouse is that catalog; empty for a lake's object.
    """

    kind: str
    levels: Levels = ()
    route: str = ""

    def __str__(self) -> str:
        if self.kind == BRANCH:
            return f"{BRANCH}:{self.levels[0]}"
        named = "" if self.kind == WAREHOUSE else f"{self.kind}:{format_name(self.levels)}"
        if self.route:
            return f"{ROUTE}:{self.route}{'/' + named if named else ''}"
        return named or WAREHOUSE

    @property
    def stored_kind(self) -> str:
        """The kind of the object in `iceberg_grant`. It names what has no uuid here: branches, and objects of other catalogs, folded."""
        if self.kind == BRANCH:
            return str(self)
        return str(replace(self, levels=fold_levels(self.levels))) if self.route else self.kind

    @property
    def has_uuid(self) -> bool:
        """True for a namespace, table or view of the lake."""
        return not self.route and self.kind not in (WAREHOUSE, BRANCH)


@dataclass(frozen=True, slots=True)
class Grantee:
    """The receiver of a grant: a principal or a role."""

    name: str
    is_role: bool

    def __str__(self) -> str:
        return ROLE_PREFIX * self.is_role + self.name


@dataclass(frozen=True, slots=True)
class BranchGrant:
    """Rights on the branches whose names match a pattern. `Rights.WRITE`: to change there what one may read."""

    pattern: str
    rights: Rights

    def reaches(self, name: str) -> bool:
        """True if the pattern matches the name."""
        return re.fullmatch(".*".join(map(re.escape, self.pattern.split("*"))), name) is not None


BranchGrants = tuple[BranchGrant, ...]


def get_branch_rights(grants: BranchGrants, name: str) -> Rights:
    """Return the rights on a branch."""
    found = Rights.NONE
    for grant in grants:
        if grant.reaches(name):
            found |= grant.rights
    return found


@dataclass(frozen=True, slots=True)
class HeldRights:
    """The rights of a principal or role in a lake: grants on warehouse and namespaces; rights on tables and views by `build_object_key`."""

    grants: Grants = field(default_factory=Grants)
    objects: Mapping[tuple[str, Levels], Rights] = field(default_factory=dict[tuple[str, Levels], Rights])
    branches: BranchGrants = ()

    def on_branch(self, name: str) -> "HeldRights":
        """Return the rights on a branch. A principal with `write` on the branch may change there what it may read."""
        if Rights.WRITE not in get_branch_rights(self.branches, name):
            return self
        each = (Grant(grant.levels, grant.rights | CHANGE if Rights.READ in grant.rights else grant.rights) for grant in self.grants.each)
        changed = CHANGE & ~Rights.CREATE
        objects = {key: rights | changed if Rights.READ in rights else rights for key, rights in self.objects.items()}
        return HeldRights(Grants(tuple(each)), objects, self.branches)


NO_RIGHTS = HeldRights()


@dataclass(frozen=True, slots=True)
class LakePolicy:
    """A lake's accounts by client id, the rights of each principal (those of its roles included), and the rights of each role.

    `routes`: the rights that the lake gives in other catalogs, by the name of the route. `is_protected`: no account may change the lake.
    """

    accounts: Mapping[str, Client] = field(default_factory=dict[str, Client])
    held: Mapping[str, HeldRights] = field(default_factory=dict[str, HeldRights])
    roles: Mapping[str, HeldRights] = field(default_factory=dict[str, HeldRights])
    routes: Mapping[str, "LakePolicy"] = field(default_factory=dict[str, "LakePolicy"])
    is_protected: bool = False

    def get_rights(self, client_id: str, roles: Iterable[str] = ()) -> HeldRights:
        """Return the rights of a principal and of the roles in its token; roles that the lake does not have are ignored."""
        named = [self.roles[role] for role in roles if role in self.roles]
        return join_rights(self.held.get(client_id, NO_RIGHTS), *named) if named else self.held.get(client_id, NO_RIGHTS)


def join_rights(*each: HeldRights) -> HeldRights:
    """Return the union of rights."""
    objects: dict[tuple[str, Levels], Rights] = {}
    for held in each:
        for key, rights in held.objects.items():
            objects[key] = objects.get(key, Rights.NONE) | rights
    branches = tuple(grant for held in each for grant in held.branches)
    return HeldRights(Grants(tuple(grant for held in each for grant in held.grants.each)), objects, branches)


def parse_securable(text: str) -> Securable:
    """Return the securable that a text names. Raises: BadGrant."""
    if text.startswith(f"{ROUTE}:"):
        return parse_route_securable(text)
    kind, colon, name = text.partition(":")
    if kind == BRANCH:
        return parse_branches(name)
    if kind not in KINDS or bool(colon) == (kind == WAREHOUSE) or BROKEN_ESCAPE.search(name):
        raise BadGrant(f"{text[:100]!r} is nothing to have rights on; write `warehouse`, `namespace:a.b`, `table:a.b.t` or `view:a.b.v`.")
    if kind == WAREHOUSE:
        return Securable(WAREHOUSE)
    try:
        levels = tuple(unquote(level, errors="strict") for level in name.split("."))
    except UnicodeDecodeError as error:
        raise BadGrant(f"{text[:100]!r} is not UTF-8 when its escapes are decoded.") from error
    if not all(levels) or (kind != NAMESPACE and len(levels) == 1):
        raise BadGrant(f"{text[:100]!r} has an empty level, or no namespace; write a dot within a name as %2E.")
    return Securable(kind, levels)


def parse_branches(pattern: str) -> Securable:
    """Return the branches whose names match a pattern. Raises: BadGrant."""
    if BRANCH_PATTERN.fullmatch(pattern) is None:
        raise BadGrant(f"{pattern[:100]!r} is no pattern of branches: write a name, or a part of it with `*`, as in `branch:dev-*`.")
    return Securable(BRANCH, (pattern,))


def parse_route_securable(text: str) -> Securable:
    """Return the other catalog that a text names (`route:NAME`), or an object of it (`route:NAME/namespace:a.b`). Raises: BadGrant."""
    route, slash, rest = text.removeprefix(f"{ROUTE}:").partition("/")
    if ROUTE_NAME.fullmatch(route) is None or bool(slash) != bool(rest) or rest.partition(":")[0] in (WAREHOUSE, ROUTE, BRANCH):
        raise BadGrant(f"{text[:100]!r} is no object of another catalog; write `route:NAME` or `route:NAME/namespace:a.b`.")
    return replace(parse_securable(rest or WAREHOUSE), route=route)


def parse_privileges(texts: Iterable[str], kind: str) -> tuple[str, ...]:
    """Return privileges by their names; `all` means every privilege on this kind of object.

    Raises: BadGrant: the list is empty, or has a name that is not a privilege on this kind of object
    """
    allowed = ON_BRANCHES if kind == BRANCH else frozenset(PRIVILEGES) if kind in (WAREHOUSE, NAMESPACE) else ON_OBJECTS
    named = [text.strip() for text in texts]
    found = tuple(dict.fromkeys(word for text in named for word in (sorted(allowed) if text == EVERY_PRIVILEGE else [text])))
    odd = [text for text in found if text not in allowed]
    if odd or not found:
        raise BadGrant(f"{', '.join(odd)[:100]!r} is no privilege on a {kind}; there are {', '.join(sorted(allowed))}, and `all` of these.")
    return found


ROUTE_GRANT = re.compile(r"(?P<privileges>.+?) on (?P<object>\S+) to (?P<grantee>\S+)")


def parse_route_grants(texts: Iterable[str]) -> LakePolicy:
    """Return the rights that texts give on another catalog: `read, write on namespace:a.b to role:corp:analysts`.

    The object is `route` for the whole catalog, or a namespace, table or view of it. Raises: BadGrant.
    """
    held: dict[Grantee, HeldRights] = {}
    for text in texts:
        found = ROUTE_GRANT.fullmatch(text.strip())
        if found is None:
            raise BadGrant(f"{text[:100]!r} is no grant; write `read, list on namespace:a.b to NAME`, or `… on route to role:NAME`.")
        what = parse_securable(WAREHOUSE if found["object"] == ROUTE else found["object"])
        rights = Rights.NONE
        for privilege in parse_privileges(found["privileges"].split(","), what.kind):
            rights |= to_rights(privilege, what.kind)
        grantee = parse_grantee(found["grantee"])
        held[grantee] = join_rights(held.get(grantee, NO_RIGHTS), build_held(what, rights))
    return LakePolicy(
        held={each.name: rights for each, rights in held.items() if not each.is_role},
        roles={each.name: rights for each, rights in held.items() if each.is_role},
    )


def build_held(what: Securable, rights: Rights) -> HeldRights:
    """Return rights on one object. Raises: BadGrant: it is a branch, which settings give no rights on."""
    if what.kind == BRANCH:
        raise BadGrant(f"{what} is of the lake: routes have no branches.")
    if what.kind in (WAREHOUSE, NAMESPACE):
        return HeldRights(Grants((Grant(fold_levels(what.levels), rights),)))
    return HeldRights(objects={build_object_key(what.kind, what.levels): rights})


def parse_name(text: str, what: str) -> str:
    """Return the name of a principal or role in its normal spelling. Raises: BadGrant."""
    issuer, colon, name = text.partition(":")
    if colon and ISSUER_NAME.fullmatch(issuer) and not BROKEN_ESCAPE.search(name):
        try:
            return format_issuer_name(issuer, unquote(name, errors="strict"))
        except UnicodeDecodeError as error:
            raise BadGrant(f"The {what} {text[:100]!r} is not UTF-8 when its escapes are decoded.") from error
    if NAME.fullmatch(text) is None:
        raise BadGrant(
            f"The {what} {text[:100]!r} has a name that is not of 1 to 128 printable ASCII characters without blanks, `,:|`, "
            "and is not `<issuer>:<name>` either."
        )
    return text


def format_issuer_name(issuer: str, claimed: str) -> str:
    """Return the catalog's name, unique over all issuers, of a principal or role that an issuer's token names. Raises: BadGrant."""
    try:
        name = f"{issuer}:{quote(claimed, safe=SAFE_IN_ISSUER_NAME, errors='strict')}"
    except UnicodeEncodeError as error:
        raise BadGrant(f"The issuer {issuer!r} sends a name that is no Unicode text.") from error
    if not claimed or len(name) > LONGEST_ISSUER_NAME:
        raise BadGrant(f"The issuer {issuer!r} sends a name that is empty, or longer than {LONGEST_ISSUER_NAME} characters when escaped.")
    return name


def is_issuer_name(name: str) -> bool:
    """True if the name is that of an OIDC issuer's principal or role."""
    return ":" in name


def parse_grantee(text: str) -> Grantee:
    """Return the grantee that a text names: `name` or `role:name`. Raises: BadGrant."""
    is_role = text.startswith(ROLE_PREFIX)
    return Grantee(parse_name(text.removeprefix(ROLE_PREFIX), "role" if is_role else "principal"), is_role)


def to_rights(privilege: str, kind: str) -> Rights:
    """Return the rights of a privilege; `manage` on the warehouse includes the choice of locations."""
    rights = PRIVILEGES.get(privilege, Rights.NONE)
    return rights | Rights.ALL if kind == WAREHOUSE and rights is Rights.MANAGE else rights


def build_object_key(kind: str, levels: Levels) -> tuple[str, Levels]:
    """Return the key of a table or view in `HeldRights.objects`."""
    return kind, fold_levels(levels)
