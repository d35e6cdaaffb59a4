"""What plain DuckDB must be able to do with a table that others wrote: read, count, change, maintain and travel in time.

Every change is made to the lake's table and to a plain copy of it in DuckDB's memory; both, and DuckDB's iceberg extension over REST,
must have the same rows afterwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from duckdb import DuckDBPyConnection

from tests.support.readers import Ident, Served, format_iceberg_attach, quote_ident

COUNTED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "DATE", "TIME")
"""Types of which DuckDB may know MIN and MAX without looking."""

CHANGED: Mapping[str, str] = {"VARCHAR": "{} || '!'", "INTEGER": "{} + 1000000", "BIGINT": "{} + 1000000", "DOUBLE": "{} + 0.5"}
"""Another value of a column, by its type."""

LONGEST_TRAVEL = 6
LEFT = """
SELECT s.snapshot_id FROM ducklake_snapshot s JOIN ducklake_snapshot_changes c USING (snapshot_id)
 WHERE coalesce(c.changes_made, '') NOT LIKE '%compacted_table%'
"""
NAMED_SINCE = "SELECT begin_snapshot FROM ducklake_table WHERE table_uuid = %(uuid)s::uuid AND end_snapshot IS NULL"
MAINTENANCE = (
    "CALL ducklake_flush_inlined_data('lake')",
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)",
)


def check_going_on(served: Served, ident: Ident, *, travels_after_merge: bool = True) -> None:
    """Fail unless DuckDB goes on with the table as with one of its own.

    `travels_after_merge` False: rows whose author gave them no lake snapshot are lost to the past when DuckDB merges files.
    """
    table = open_table(served, ident)
    table.check_now("as it was found")
    table.check_travel(table.list_snapshots(), "as it was found")
    for change in table.list_changes():
        table.change(change)
        table.check_rows(change, table.lake)
    table.check_now("changed")
    snapshot_ids = table.list_snapshots()
    past = table.read_past(snapshot_ids)
    for number, maintenance in enumerate(MAINTENANCE):
        table.conn.execute(maintenance)
        table.check_now(maintenance)
        # DuckDB's rewriting narrows statistics that its own time travel goes by.
        if number == 0 or (number == 1 and travels_after_merge):
            table.check_travel(snapshot_ids, maintenance, past)


def open_table(served: Served, ident: Ident) -> "Table":
    """The table in a session that knows the lake, the catalog and a plain copy."""
    conn = served.lake.duckdb()
    conn.execute(format_iceberg_attach(served.server))
    conn.execute(f"CREATE TEMP TABLE copy AS FROM lake.{quote_ident(ident)}")
    return Table(served, conn, ident)


@dataclass
class Table:
    """A table of the lake beside its copy `temp.copy`, and over REST."""

    served: Served
    conn: DuckDBPyConnection
    ident: Ident

    @property
    def lake(self) -> str:
        """The table in DuckLake."""
        return f"lake.{quote_ident(self.ident)}"

    @property
    def ice(self) -> str:
        """The table over REST."""
        return f"ice.{quote_ident(self.ident)}"

    @cached_property
    def columns(self) -> Mapping[str, str]:
        """Quoted names and types."""
        found = self.ask("SELECT column_name, column_type FROM (DESCRIBE temp.copy)")
        return {quote_ident(("", name))[3:]: kind for name, kind in found}

    def ask(self, query: str) -> list[Any]:
        """The rows of a query."""
        return self.conn.execute(query).fetchall()

    def list_changes(self) -> Sequence[str]:
        """Statements with `{t}` for the table: rows of files and inlined ones come, change and go."""
        names = list(self.columns)
        mix = f"hash({', '.join(names)})"
        key = next(name for name, kind in self.columns.items() if kind in CHANGED)
        other = next((name for name, kind in reversed(self.columns.items()) if kind in CHANGED), key)
        is_changed = {name: CHANGED[self.columns[name]].format(name) for name in (key, other)}
        self.conn.execute(f"CREATE TEMP TABLE few AS FROM temp.copy WHERE {key} IS NOT NULL ORDER BY {mix} LIMIT 4")
        self.conn.execute(f"CREATE TEMP TABLE many AS FROM (FROM temp.copy ORDER BY {mix} LIMIT 9) c, range(3)")
        self.conn.execute("ALTER TABLE temp.many DROP COLUMN range")
        self.conn.execute(f"CREATE TEMP TABLE offered AS FROM temp.few QUALIFY row_number() OVER (PARTITION BY {key}) = 1")
        self.conn.execute(f"INSERT INTO temp.offered SELECT * REPLACE ({is_changed[key]} AS {key}) FROM temp.offered LIMIT 2")
        values = ", ".join(f"s.{name}" for name in names)
        return [
            f"UPDATE {{t}} SET {other} = {is_changed[other]} WHERE {mix} % 3 = 0",
            "INSERT INTO {t} FROM temp.few",
            f"DELETE FROM {{t}} WHERE {mix} % 4 = 0",
            "INSERT INTO {t} FROM temp.many",
            f"MERGE INTO {{t}} t USING temp.offered s ON t.{key} = s.{key} WHEN MATCHED THEN UPDATE SET {other} = s.{other}"
            f" WHEN NOT MATCHED THEN INSERT VALUES ({values})",
            f"DELETE FROM {{t}} WHERE {mix} % 5 = 0",
        ]

    def change(self, statement: str) -> None:
        """Change the lake's table and the copy."""
        for name in (self.lake, "temp.copy"):
            self.conn.execute(statement.format(t=name))

    def check_now(self, where: str) -> None:
        """The lake, the catalog and the copy have the same rows, and what DuckDB counts without looking is right."""
        self.check_rows(where, self.lake, self.ice)
        asked = [f"min({name}), max({name})" for name, kind in self.columns.items() if kind.startswith(COUNTED)]
        for query in ["count(*)", *asked]:
            mine, right = (self.ask(f"SELECT {query} FROM {name}") for name in (self.lake, "temp.copy"))
            # Text, because NaN is not itself.
            assert str(mine) == str(right), f"{query}: {where}"

    def check_rows(self, where: str, *names: str) -> None:
        """Those have the rows of the copy."""
        # by name: clients may have moved columns, and DuckDB has them in the order of their ids
        columns = ", ".join(self.columns)
        for name in names:
            theirs = f"SELECT {columns} FROM {name}"
            both = f"({theirs} EXCEPT ALL FROM temp.copy) UNION ALL (FROM temp.copy EXCEPT ALL {theirs})"
            assert self.ask(both) == [], f"{name}: {where}"

    def list_snapshots(self) -> list[int]:
        """The newest snapshots that are lake snapshots under their own ids, since the table has its name; none of branches or expired."""
        namespace, name = self.ident
        metadata = self.served.server.get(f"namespaces/{namespace}/tables/{name}").json["metadata"]
        own = [s["snapshot-id"] for s in metadata["snapshots"] if s["summary"].get("ducklake.snapshot-id") == str(s["snapshot-id"])]
        conn = self.served.lake.psycopg()
        named = conn.execute(NAMED_SINCE, {"uuid": metadata["table-uuid"]}).fetchone()
        left = {row[0] for row in conn.execute(LEFT).fetchall()}
        return [i for i in own if named is not None and i >= named[0] and i in left][-LONGEST_TRAVEL:]

    def read_past(self, snapshot_ids: Sequence[int]) -> list[list[Any]]:
        """What DuckDB has at those snapshots."""
        return [self._read(self.lake, snapshot_id) for snapshot_id in snapshot_ids]

    def check_travel(self, snapshot_ids: Sequence[int], where: str, past: Sequence[Any] | None = None) -> None:
        """DuckDB and the catalog have the same rows at those snapshots, those of `past` if it is told."""
        for number, snapshot_id in enumerate(snapshot_ids):
            mine = self._read(self.lake, snapshot_id)
            assert mine == self._read(self.ice, snapshot_id), f"at {snapshot_id}: {where}"
            assert past is None or mine == past[number], f"at {snapshot_id}: {where}"

    def _read(self, name: str, snapshot_id: int) -> list[Any]:
        # Within one commit a column is there from the first snapshot on in DuckDB, and NULL.
        rows = self.conn.execute(f"FROM {name} AT (VERSION => {snapshot_id})").to_arrow_table().to_pylist()
        return sorted(({key: row[key] for key in sorted(row) if row[key] is not None} for row in rows), key=repr)
