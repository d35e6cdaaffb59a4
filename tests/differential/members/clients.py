"""The clients that change and read members of a history of merges as DuckLakes: DuckDB, and ducklakepy, which attaches DuckLake 1.1.

`merging.Repository` calls them. DuckDB attaches a member anew for each call; ducklakepy keeps a session until a branch is merged or reset.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import duckdb
import pyarrow as pa
from ducklakepy import DuckLakeCatalog
from ducklakepy.expressions import col
from ducklakepy.schema import Column, Schema
from ducklakepy.types import Int32Type, Int64Type, VarcharType

from tests.differential.replay import find_doubled
from tests.differential.sessions import Sessions
from tests.lake.branches.repository import MAINTENANCE
from tests.support.ducklake_1_1 import open_ducklakepy, read_at
from tests.support.lakes import FreshLake

CHANGES: Mapping[str, Sequence[str]] = {
    "append": ("INSERT INTO {t} (id, v) SELECT i, 'w{n}' FROM range({n}000, {n}030) r(i)",),
    "insert": ("INSERT INTO {t} (id, v) VALUES ({n}001, 'w{n}'), ({n}002, 'w{n}')",),
    "delete": ("DELETE FROM {t} WHERE id % 3 = {n} % 3",),
    "delete few": ("DELETE FROM {t} WHERE id % 31 = {n} % 31",),
    "update": ("UPDATE {t} SET v = 'u{n}' WHERE id % 5 = {n} % 5",),
    "add": ("ALTER TABLE {t} ADD COLUMN c{n} INTEGER", "INSERT INTO {t} (id, c{n}) VALUES ({n}001, 1)"),
    "rename": ("ALTER TABLE {t} RENAME TO t{n}",),
    "drop": ("DROP TABLE {t}",),
    "create": ("CREATE TABLE t{n} (id BIGINT, v VARCHAR)", "INSERT INTO t{n} SELECT i, 'w{n}' FROM range({n}000, {n}040) r(i)"),
    "flush": MAINTENANCE[:1],
    "compact": MAINTENANCE[1:2],
    "rewrite": MAINTENANCE[2:3],
    "clean": MAINTENANCE[4:],
    "maintain": MAINTENANCE,
}

Row = tuple[tuple[str, object], ...]
Counted = Counter[Row]


class Table(NamedTuple):
    """A table's name and rows; a row has no NULLs, so that columns that are added change none."""

    name: str
    rows: Counted


State = Mapping[str, Table]
"""The tables of a member by their uuids."""


class LakeClient(Protocol):
    """A client of a member as a DuckLake."""

    def read(self, lake: FreshLake) -> tuple[int, State]:
        """Return the newest snapshot and what it shows."""
        ...

    def change(self, lake: FreshLake, kind: str, table: Table, number: int) -> None:
        """Make one of `CHANGES`, on this table if it is about one."""
        ...

    def forget(self, lake: FreshLake) -> None:
        """Open the next session anew on a branch that was merged or reset."""
        ...

    def prove(self, lake: FreshLake, shown: Mapping[int, State]) -> tuple[set[int], set[str]]:
        """Fail unless each snapshot shows what it showed; return those that are left, and the tables without older snapshots."""
        ...


@dataclass(frozen=True, slots=True)
class DuckDBClient:
    """DuckDB, on lakes of DuckLake 1.0."""

    sessions: Sessions

    def read(self, lake: FreshLake) -> tuple[int, State]:
        """Return what a new session sees."""
        with self.sessions.on_lake(lake) as session:
            [(head,)] = session.conn.execute("SELECT id FROM ducklake_current_snapshot('lake')").fetchall()
            named = session.conn.execute("SELECT table_uuid::VARCHAR, table_name FROM ducklake_table_info('lake')").fetchall()
            return head, {uuid: Table(name, read_rows(session.conn, name)) for uuid, name in named}

    def change(self, lake: FreshLake, kind: str, table: Table, number: int) -> None:
        """Run the statements."""
        with self.sessions.on_lake(lake) as session:
            for statement in CHANGES[kind]:
                try:
                    session.conn.execute(statement.format(t=table.name, n=number))
                except duckdb.TransactionException as error:
                    # DuckDB 1.5.5 cannot rewrite tables with a column that older inlined rows lack.
                    if "inlined-data aggregates" not in str(error):
                        raise

    def forget(self, lake: FreshLake) -> None:
        """Do nothing: each session is new."""

    def prove(self, lake: FreshLake, shown: Mapping[int, State]) -> tuple[set[int], set[str]]:
        """Compare all tables but those that DuckDB reads twice at older snapshots."""
        with self.sessions.on_lake(lake) as session:
            left = {row[0] for row in session.conn.execute("SELECT snapshot_id FROM ducklake_snapshots('lake')").fetchall()}
            doubled = {name for _, name in find_doubled(session.conn)}
            for at in sorted(left & set(shown)):
                for table in shown[at].values():
                    if table.name not in doubled and not shows(session.conn, table, at):
                        # DuckDB may take older tables for those of this snapshot once it has read inlined rows: docs/upstream.md.
                        self.sessions.attach_again(session, lake)
                        assert read_rows(session.conn, table.name, at) == table.rows, f"DuckDB: {table.name} {at}"
        return left, doubled


@dataclass(frozen=True, slots=True)
class DucklakepyClient:
    """ducklakepy, on lakes of DuckLake 1.1; `opened` closes its sessions."""

    opened: ExitStack = field(default_factory=ExitStack)
    _catalogs: dict[str, DuckLakeCatalog] = field(default_factory=dict[str, DuckLakeCatalog])

    def on_lake(self, lake: FreshLake) -> DuckLakeCatalog:
        """The session on a member."""
        if lake.metadata_schema not in self._catalogs:
            self._catalogs[lake.metadata_schema] = self.opened.enter_context(open_ducklakepy(lake))
        return self._catalogs[lake.metadata_schema]

    def read(self, lake: FreshLake) -> tuple[int, State]:
        """Return what the session sees."""
        catalog = self.on_lake(lake)
        tables = [catalog.load_table(ident) for ident in catalog.list_tables("main")]
        shown = {table.table_uuid: Table(table.name, count_rows(table.to_arrow().to_pylist())) for table in tables}
        return catalog.current_snapshot().snapshot_id, shown

    def change(self, lake: FreshLake, kind: str, table: Table, number: int) -> None:
        """Do what the statement of DuckDB does."""
        catalog = self.on_lake(lake)
        if kind in MAINTAINED:
            for each in MAINTAINED[kind]:
                each(catalog)
        elif kind == "create":
            ident = ("main", f"t{number}")
            catalog.create_table(ident, schema=Schema(Column("id", Int64Type()), Column("v", VarcharType())))
            catalog.load_table(ident).append(make_rows(number, range(40)))
        else:
            _change_by_ducklakepy(catalog, kind, table, number)

    def forget(self, lake: FreshLake) -> None:
        """End the session, which remembers tables of inlined deletes that the branch may have no longer."""
        if lake.metadata_schema in self._catalogs:
            self._catalogs.pop(lake.metadata_schema).close()

    def prove(self, lake: FreshLake, shown: Mapping[int, State]) -> tuple[set[int], set[str]]:
        """Compare all tables; and fail if two rows have had one row id."""
        catalog = self.on_lake(lake)
        left = {each.snapshot_id for each in catalog.snapshots()}
        for at in sorted(left & set(shown)):
            for table in shown[at].values():
                rows = count_rows(read_at(catalog, ("main", table.name), at).to_pylist())
                assert rows == table.rows, f"ducklakepy: {table.name} {at}"
        for ident in catalog.list_tables("main"):
            found = catalog.load_table(ident).insertions(min(left), max(left)).to_arrow()
            row_ids = {(row["rowid"], row["id"]) for row in found.to_pylist()}
            assert len(row_ids) == len({row_id for row_id, _ in row_ids}), f"row ids of {ident}"
        return left, set()


def _change_by_ducklakepy(catalog: DuckLakeCatalog, kind: str, table: Table, number: int) -> None:
    opened, every = catalog.load_table(("main", table.name)), {"delete": 3, "delete few": 31, "update": 5}
    if kind in every:
        ids = {dict(row)["id"] for row in table.rows}
        chosen = [each for each in ids if isinstance(each, int) and each % every[kind] == number % every[kind]]
        if not chosen:
            return
        where = col("id").isin(chosen)
        opened.update(where, {"v": f"u{number}"}) if kind == "update" else opened.delete(where)
    elif kind == "add":
        opened.update_schema().add_column(f"c{number}", Int32Type()).commit()
        row = {field.name: pa.nulls(1, field.type) for field in opened.to_arrow().schema}
        one = {"id": pa.array([number * 1000 + 1], pa.int64()), f"c{number}": pa.array([1], pa.int32())}
        catalog.load_table(("main", table.name)).append(pa.table(row | one))
    elif kind in ("append", "insert"):
        opened.append(make_rows(number, range(30) if kind == "append" else range(1, 3)))
    elif kind == "rename":
        opened.rename(f"t{number}")
    else:
        assert kind == "drop"
        catalog.drop_table(("main", table.name))


def make_rows(number: int, numbers: Sequence[int]) -> pa.Table:
    """Rows of the first two columns."""
    return pa.table({"id": pa.array([number * 1000 + each for each in numbers], pa.int64()), "v": [f"w{number}"] * len(numbers)})


def _flush(catalog: DuckLakeCatalog) -> None:
    for ident in catalog.list_tables("main"):
        catalog.flush_inlined_data(ident)


def _clean(catalog: DuckLakeCatalog) -> None:
    catalog.cleanup_old_files(older_than=datetime.now(UTC), exclusive=True)
    catalog.delete_orphaned_files(older_than=datetime.now(UTC), exclusive=True)


def _rewrite(catalog: DuckLakeCatalog) -> None:
    catalog.rewrite_data_files(delete_threshold=0.01)


def _expire(catalog: DuckLakeCatalog) -> None:
    catalog.expire_snapshots(older_than=datetime.now(UTC))


MAINTAINED: Mapping[str, Sequence[Callable[[DuckLakeCatalog], object]]] = {
    "flush": (_flush,),
    "compact": (DuckLakeCatalog.merge_adjacent_files,),
    "rewrite": (_rewrite,),
    "clean": (_clean,),
    "maintain": (_flush, DuckLakeCatalog.merge_adjacent_files, _rewrite, _expire, _clean),
}


def shows(conn: duckdb.DuckDBPyConnection, table: Table, at: int) -> bool:
    """Return True if a session shows these rows at a snapshot."""
    try:
        return read_rows(conn, table.name, at) == table.rows
    except duckdb.CatalogException:
        return False


def read_rows(conn: duckdb.DuckDBPyConnection, name: str, at: int | None = None) -> Counted:
    """The rows of a table, now or at a snapshot."""
    version = "" if at is None else f" AT (VERSION => {at})"
    return count_rows(conn.execute(f"FROM lake.main.{name}{version}").to_arrow_table().to_pylist())


def count_rows(rows: Sequence[Mapping[str, object]]) -> Counted:
    """Rows without NULLs, counted."""
    return Counter(tuple(sorted((key, value) for key, value in row.items() if value is not None)) for row in rows)
