"""Trino over REST beside DuckDB on the lake itself, on the same tables."""

from typing import Any

import pytest
from duckdb import DuckDBPyConnection

from tests.interop.trino.reader import open_trino
from tests.support.going_on import check_going_on
from tests.support.readers import Served
from tests.support.trino.server import Trino, TrinoRefused

Rows = list[tuple[Any, ...]]

ALLOWED = {
    "iceberg.register-table-procedure.enabled": "true",
    "iceberg.add-files-procedure.enabled": "true",
    "iceberg.allowed-extra-properties": "*",
    "iceberg.expire-snapshots.min-retention": "0s",
}
"""What the connector does only where it is told to."""

OWN = "CAST(snapshot_id AS varchar) = element_at(summary, 'ducklake.snapshot-id')"


class Story:
    """Trino and DuckDB on one lake."""

    def __init__(self, served: Served, trino: Trino) -> None:
        self.served, self.trino = served, trino
        self.catalog = open_trino(trino, served, ALLOWED).catalog
        self.duck = self._attach()

    def run(self, statement: str) -> Rows:
        """Have Trino run a statement: `{t}` is the table ns.t, `{c}` the catalog."""
        found = self.trino.arrow(self._name(statement)).to_pylist()
        return [tuple(row.values()) for row in found]

    def refuse(self, statement: str, why: str) -> None:
        """Trino refuses the statement for this reason."""
        with pytest.raises(TrinoRefused, match=why):
            self.trino.arrow(self._name(statement))

    def ask(self, query: str) -> Rows:
        """Have DuckDB answer; `{t}` is the table ns.t of the lake."""
        return self.duck.execute(query.replace("{t}", "lake.ns.t")).fetchall()

    def check(self, name: str = "t", snapshot_id: int | None = None) -> int:
        """Both see the same rows of a table in ns; returns how many."""
        trino_at, duck_at = (
            ("", "") if snapshot_id is None else (f" FOR VERSION AS OF BIGINT '{snapshot_id}'", f" AT (VERSION => {snapshot_id})")
        )
        self.duck.execute("SET arrow_lossless_conversion = true")
        theirs = self.trino.arrow(self._name(f"SELECT * FROM {{c}}.ns.{name}{trino_at}"))
        mine = self.duck.execute(f"FROM lake.ns.{name}{duck_at}").to_arrow_table().to_pylist()
        assert _sort(theirs.to_pylist()) == _sort(mine)
        return len(mine)

    def check_past(self, name: str = "t") -> list[int]:
        """Both see the same rows at every snapshot; returns them in order."""
        ids = self.list_snapshots(name)
        for snapshot_id in ids:
            self.check(name, snapshot_id)
        return ids

    def check_going_on(self, name: str = "t") -> None:
        """DuckDB goes on with the table as with one of its own, and Trino with what came of that."""
        check_going_on(self.served, ("ns", name))
        # DuckDB 1.5.5 may break over inlined tables that another session's flush dropped.
        self.duck = self._attach()
        assert self.check(name) > 0

    def list_snapshots(self, name: str = "t") -> list[int]:
        """The snapshots under their own ids, in order."""
        return [row[0] for row in self.run(f'SELECT snapshot_id FROM {{c}}.ns."{name}$snapshots" WHERE {OWN} ORDER BY committed_at, 1')]

    def load(self, name: str = "t") -> Any:
        """A table's metadata."""
        return self.served.server.get(f"namespaces/ns/tables/{name}").json["metadata"]

    def _attach(self) -> DuckDBPyConnection:
        conn = self.served.lake.duckdb()
        conn.execute("SET TimeZone = 'UTC'")
        return conn

    def _name(self, statement: str) -> str:
        return statement.replace("{t}", f"{self.catalog}.ns.t").replace("{c}", self.catalog)


def _sort(rows: list[dict[str, Any]]) -> list[str]:
    # DuckDB calls the zone Etc/UTC.
    return sorted(repr(dict(sorted(row.items()))).replace("Etc/UTC", "UTC") for row in rows)
