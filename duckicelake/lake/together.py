"""Many small queries as one statement: what they ask costs less than asking."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, TypeVar

import psycopg

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Together:
    """The rows of queries that were asked together, by query; they come as JSON, which has no times and no UUIDs."""

    found: Mapping[LiteralString, Sequence[dict[str, Any]]]

    def rows(self, kind: type[Row], query: LiteralString, **convert: Callable[[Any], object]) -> list[Row]:
        """Return a query's rows as frozen dataclasses whose fields are named like its columns."""
        rows = self.found[query]
        for column, read in convert.items():
            for row in rows:
                row[column] = read(row[column])
        return [kind(**row) for row in rows]

    def column(self, query: LiteralString) -> list[Any]:
        """Return the first column of a query."""
        return [next(iter(row.values())) for row in self.found[query]]

    def value(self, query: LiteralString) -> Any:
        """Return the first column of a query's only row, None when it has no row."""
        return next(iter(self.column(query)), None)


def fetch_together(conn: psycopg.Connection, queries: Sequence[LiteralString], **parameters: object) -> Together:
    """Ask queries in one statement, and see one state of the lake with all of them."""
    opening, closing = "(SELECT json_agg(q) FROM (", ") q)"
    each = (closing + ", " + opening).join(queries)
    row = conn.execute("SELECT " + opening + each + closing, parameters).fetchone()
    assert row is not None
    return Together({query: found or [] for query, found in zip(queries, row, strict=True)})
