"""Grants: rights on namespaces, and their text form in settings, OAuth scopes, tokens and the audit log. Immutable values, no I/O.

`access`, `rest`, `gateway` and `catalog` use this module on every thread. `Rights.ALL` is the right to choose locations and to
register files: the grant `*` includes it, `ns:*:*` does not. `ns:<name>:<r|w|rw|*>` covers a namespace and everything nested in it;
levels are joined by `.`, and any character that is not part of an ASCII identifier is percent-encoded.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Flag
from string import ascii_lowercase, ascii_uppercase
from urllib.parse import quote, unquote

from duckicelake.errors import CatalogError

Levels = tuple[str, ...]


class Rights(Flag):
    """Rights in a namespace; each of them also allows to see the namespace and to list its content."""

    NONE = 0
    READ = 1
    WRITE = 2
    MANAGE = 4
    ALL = 8
    LIST = 16
    CREATE = 32
    DROP = 64


CHANGE = Rights.WRITE | Rights.CREATE | Rights.DROP
EVERYTHING = Rights.READ | CHANGE | Rights.MANAGE | Rights.ALL
WORDS = {
    "r": Rights.READ,
    "w": CHANGE,
    "rw": Rights.READ | CHANGE,
    "*": Rights.READ | CHANGE | Rights.MANAGE,
}
GRANT = re.compile(r"ns:(?P<name>[!-9;-~]+):(?P<word>r|w|rw|\*)")
BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
WHOLE = "*"
FOLDED = str.maketrans(ascii_uppercase, ascii_lowercase)


class BadGrant(CatalogError):
    """A malformed grant, privilege, securable or name."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on a namespace and everything nested in it; without levels, on all namespaces. Names are case-folded."""

    levels: Levels
    rights: Rights

    def reaches(self, levels: Levels) -> bool:
        """True if the grant covers the (case-folded) namespace."""
        return levels[: len(self.levels)] == self.levels


@dataclass(frozen=True, slots=True)
class Grants:
    """The grants of a principal."""

    each: tuple[Grant, ...] = ()

    def on(self, levels: Levels) -> Rights:
        """Return the rights in a namespace."""
        folded = fold_levels(levels)
        found = Rights.NONE
        for grant in self.each:
            if grant.reaches(folded):
                found = grant.rights if found is Rights.NONE else found | grant.rights
        return found

    def shows(self, levels: Levels) -> bool:
        """True if the principal may know that the namespace exists: a grant covers it or a namespace nested in it."""
        folded = fold_levels(levels)
        return any(grant.reaches(folded) or grant.levels[: len(folded)] == folded for grant in self.each)

    def covers(self, other: "Grants") -> bool:
        """True if these grants allow everything that `other` allows."""
        return all(asked.rights & ~self.on(asked.levels) == Rights.NONE for asked in other.each)

    def within(self, scope: "Grants") -> "Grants":
        """Return the intersection with the grants of a scope."""
        both = [_meet(mine, asked) for mine in self.each for asked in scope.each]
        return Grants(tuple(dict.fromkeys(grant for grant in both if grant.rights is not Rights.NONE)))


NO_GRANTS = Grants()
ALL_GRANTS = Grants((Grant((), EVERYTHING),))


def _meet(one: Grant, other: Grant) -> Grant:
    longer = max(one.levels, other.levels, key=len)
    return Grant(longer, one.rights & other.rights if one.reaches(longer) and other.reaches(longer) else Rights.NONE)


def parse_grants(texts: Iterable[str]) -> Grants:
    """Return the grants written in texts. Raises: BadGrant: a text is malformed."""
    return Grants(tuple(_parse_grant(text) for text in texts))


def _parse_grant(text: str) -> Grant:
    if text == WHOLE:
        return Grant((), EVERYTHING)
    found = GRANT.fullmatch(text)
    if found is None or BROKEN_ESCAPE.search(found["name"]):
        raise BadGrant(f"{text[:100]!r} is no grant; write `ns:<name>:<r|w|rw|*>` or `*`.")
    if found["name"] == WHOLE:
        return Grant((), WORDS[found["word"]])
    try:
        levels = tuple(unquote(level, errors="strict") for level in found["name"].split("."))
    except UnicodeDecodeError as error:
        raise BadGrant(f"{text[:100]!r} is not UTF-8 when its escapes are decoded.") from error
    if not all(levels):
        raise BadGrant(f"{text[:100]!r} has an empty level; write a dot within a name as %2E.")
    return Grant(fold_levels(levels), WORDS[found["word"]])


def format_grants(grants: Grants) -> str:
    """Return the grants as an OAuth scope: separated by spaces, each in the form of the settings."""
    return " ".join(_format_grant(grant) for grant in grants.each)


def _format_grant(grant: Grant) -> str:
    if grant == ALL_GRANTS.each[0]:
        return WHOLE
    word = next(word for word, rights in WORDS.items() if rights == grant.rights & WORDS[WHOLE])
    return f"ns:{format_name(grant.levels) or WHOLE}:{word}"


def format_name(levels: Levels) -> str:
    """Return the text form of a name of several levels; different names have different texts."""
    return ".".join([level if level.isascii() and level.isidentifier() else _escape(level) for level in levels])


def _escape(level: str) -> str:
    return quote(level, safe="", errors="surrogatepass").replace(".", "%2E").replace("*", "%2A")


def fold_levels(levels: Levels) -> Levels:
    """Return a namespace case-folded for comparison; like DuckDB, this folds ASCII letters only."""
    return tuple(level.translate(FOLDED) for level in levels)


def format_object(levels: Levels) -> str:
    """Return the case-folded text form of a name, as the audit log writes it."""
    return format_name(fold_levels(levels))
