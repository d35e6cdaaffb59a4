"""Who is known in one lake and what they hold there, as of one moment; and how privileges and what they are on are written.

Shape: `warehouse`, `namespace:<levels>`, `table:<levels>.<name>`, `view:<levels>.<name>`, escaped as in scopes (`ns:…`).
Who is named by an issuer of tokens is `<issuer>:<name>`: no name of settings or of a lake's own has a colon.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from duckicelake.access.clients import Client
from duckicelake.access.grants import BROKEN_ESCAPE, BadGrant, Grants, Levels, Rights, fold_levels, format_name

WAREHOUSE, NAMESPACE, TABLE, VIEW = "warehouse", "namespace", "table", "view"
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
ISSUER = re.compile(r"(?!role$)[a-z][a-z0-9_-]{0,31}")
SAFE_OUTSIDE = "!\"#$&'()*+/:;<=>?@[\\]^`{|}"
LONGEST_OUTSIDE = 512
ON_OBJECTS = frozenset(PRIVILEGES) - {"create"}


@dataclass(frozen=True, slots=True)
class Securable:
    """Something that privileges are given on: the warehouse (no levels), a namespace, or a table or view by all its levels."""

    kind: str
    levels: Levels = ()

    def __str__(self) -> str:
        return self.kind if self.kind == WAREHOUSE else f"{self.kind}:{format_name(self.levels)}"


@dataclass(frozen=True, slots=True)
class Grantee:
    """Who is given something: a principal, or a role and so its members."""

    name: str
    is_role: bool

    def __str__(self) -> str:
        return ROLE_PREFIX * self.is_role + self.name


@dataclass(frozen=True, slots=True)
class Held:
    """What somebody holds in a lake: on the warehouse and namespaces, and on single tables and views by kind and folded name."""

    grants: Grants = field(default_factory=Grants)
    objects: Mapping[tuple[str, Levels], Rights] = field(default_factory=dict[tuple[str, Levels], Rights])


NOTHING = Held()


@dataclass(frozen=True, slots=True)
class Policy:
    """The accounts that a lake keeps, by their ids, what each principal holds, itself and by its roles, and what each role does."""

    accounts: Mapping[str, Client] = field(default_factory=dict[str, Client])
    held: Mapping[str, Held] = field(default_factory=dict[str, Held])
    roles: Mapping[str, Held] = field(default_factory=dict[str, Held])

    def find_held(self, client_id: str, roles: Iterable[str] = ()) -> Held:
        """Return what a principal holds, by roles too that its token names; those that the lake has not give nothing."""
        named = [self.roles[role] for role in roles if role in self.roles]
        return join_held(self.held.get(client_id, NOTHING), *named) if named else self.held.get(client_id, NOTHING)


def join_held(*each: Held) -> Held:
    """Return all that any of them hold."""
    objects: dict[tuple[str, Levels], Rights] = {}
    for held in each:
        for key, rights in held.objects.items():
            objects[key] = objects.get(key, Rights.NONE) | rights
    return Held(Grants(tuple(grant for held in each for grant in held.grants.each)), objects)


def parse_securable(text: str) -> Securable:
    """Return what a text names. Raises: BadGrant."""
    kind, colon, name = text.partition(":")
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


def parse_privileges(texts: Iterable[str], kind: str) -> tuple[str, ...]:
    """Return privileges by their names; `all` stands for every privilege on that kind of thing.

    Raises: BadGrant: one is none, or none on that kind of thing; or there are none
    """
    allowed = frozenset(PRIVILEGES) if kind in (WAREHOUSE, NAMESPACE) else ON_OBJECTS
    named = [text.strip() for text in texts]
    found = tuple(dict.fromkeys(word for text in named for word in (sorted(allowed) if text == EVERY_PRIVILEGE else [text])))
    odd = [text for text in found if text not in allowed]
    if odd or not found:
        raise BadGrant(f"{', '.join(odd)[:100]!r} is no privilege on a {kind}; there are {', '.join(sorted(allowed))}, and `all` of these.")
    return found


def parse_name(text: str, what: str) -> str:
    """Return the name of a principal or role, in the one spelling it is known by. Raises: BadGrant."""
    issuer, colon, told = text.partition(":")
    if colon and ISSUER.fullmatch(issuer) and not BROKEN_ESCAPE.search(told):
        try:
            return format_outside(issuer, unquote(told, errors="strict"))
        except UnicodeDecodeError as error:
            raise BadGrant(f"The {what} {text[:100]!r} is not UTF-8 when its escapes are decoded.") from error
    if NAME.fullmatch(text) is None:
        raise BadGrant(
            f"The {what} {text[:100]!r} has a name that is not of 1 to 128 printable ASCII characters without blanks, `,:|`, "
            "and is not `<issuer>:<name>` either."
        )
    return text


def format_outside(issuer: str, told: str) -> str:
    """Return what a principal or role is called here that an issuer calls `told`; no two have the same name. Raises: BadGrant."""
    try:
        name = f"{issuer}:{quote(told, safe=SAFE_OUTSIDE, errors='strict')}"
    except UnicodeEncodeError as error:
        raise BadGrant(f"The issuer {issuer!r} tells a name that is no Unicode text.") from error
    if not told or len(name) > LONGEST_OUTSIDE:
        raise BadGrant(f"The issuer {issuer!r} tells a name that is empty, or longer than {LONGEST_OUTSIDE} characters when escaped.")
    return name


def is_outside(name: str) -> bool:
    """Tell whether an issuer of tokens names somebody so."""
    return ":" in name


def parse_grantee(text: str) -> Grantee:
    """Return whom a text names: `name`, or `role:name`. Raises: BadGrant."""
    is_role = text.startswith(ROLE_PREFIX)
    return Grantee(parse_name(text.removeprefix(ROLE_PREFIX), "role" if is_role else "principal"), is_role)


def to_rights(privilege: str, kind: str) -> Rights:
    """Return what a privilege gives; who manages the warehouse chooses where files lie, and manages all."""
    rights = PRIVILEGES.get(privilege, Rights.NONE)
    return rights | Rights.ALL if kind == WAREHOUSE and rights is Rights.MANAGE else rights


def find_key(kind: str, levels: Levels) -> tuple[str, Levels]:
    """Return what a table's or view's rights are found by."""
    return kind, fold_levels(levels)
