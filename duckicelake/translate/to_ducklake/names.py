"""Names as DuckLake wants them: which folder they give, and which ones DuckDB takes for the same."""

import re
from collections.abc import Iterable
from uuid import UUID

from duckicelake.errors import BadRequest

PLAIN = re.compile(r"[A-Za-z0-9_-]+")


def to_folder(name: str, uuid: UUID) -> str:
    """Return the folder of a schema: its name when it is plain, as DuckLake does it, else its uuid."""
    return f"{name if PLAIN.fullmatch(name) else uuid}/"


def fold_name(name: str) -> str:
    """Return what DuckDB compares names by: it folds ASCII letters only."""
    return "".join(c.lower() if c.isascii() else c for c in name)


def check_distinct(names: Iterable[str], what: str) -> None:
    """Refuse names that DuckDB takes for one.

    Raises: BadRequest: two of them differ by case alone
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(fold_name(name), name)
        if other is not name:
            raise BadRequest(f"{what} {other!r} and {name!r} differ by case alone, and DuckDB folds case; rename one.")
