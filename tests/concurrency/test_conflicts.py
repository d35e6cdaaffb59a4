"""DuckDB's transaction is open while an Iceberg client commits: both changes are right in the end, or DuckDB's is refused."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from duckdb import DuckDBPyConnection

from duckicelake.commands.check import list_findings
from duckicelake.config import LakeSettings
from duckicelake.embedded.home import Home
from duckicelake.lake.inspect import LakeFinding
from duckicelake.translate.reader_limits import READER_LIMITS
from tests.concurrency.conflicts import BASE, OURS, THEIRS, Side, Tables
from tests.rest.serving import make_settings, serve
from tests.rest.writing.client import open_client
from tests.support.lakes import FreshLake
from tests.support.readers import PyIcebergReader, Served

AT_ONCE = "SET ducklake_retry_wait_ms = 1"
MAINTENANCE = (
    "CALL ducklake_flush_inlined_data('lake')",
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)",
)

OFTEN = {"append"}
"""The others take their time in the `--long`."""

COLUMNS = {"add column", "drop column", "rename column"}
TABLES = {"rename table", "drop table", "create table"}
FILES = {"merge", "rewrite"}
LANDS: Mapping[str, set[str]] = {
    "append": {"insert", "insert inlined"} | FILES | COLUMNS | TABLES,
    "delete": COLUMNS | TABLES,
    "delete inlined": COLUMNS | TABLES,
    "overwrite": COLUMNS | TABLES,
    "add column": FILES | {"drop table", "create table"},
    "drop column": FILES | TABLES,
    "rename column": FILES | {"drop table", "create table"},
    "retype column": FILES | TABLES,
    "rename table": FILES | {"drop table"},
    "drop table": {"create table"},
    "make table again": {"create table"},
    "create table": set(THEIRS) - {"rename table", "create table"},
    "set property": FILES | TABLES,
    "set tag": set(THEIRS),
}
"""What of DuckDB's changes lands beside each of ours; the others it refuses when it commits."""

BUSY = {("delete inlined", "flush")}
"""DuckDB's transaction holds the inlined rows: ours is refused, and its own lands."""

HOLES = {
    ("add column", "rename table"),
    ("rename column", "rename table"),
    ("drop table", "rename table"),
    ("make table again", "rename table"),
}
"""What DuckDB 1.5.5 does not notice, be the other side Iceberg or a DuckDB too: see below."""


def list_damage(settings: LakeSettings, folder: Path) -> list[LakeFinding]:
    """What `check` finds, but for what single readers do not read: DataFusion misreads all tables that a column was added to."""
    readers = {limit.readers for limit in READER_LIMITS}
    return [finding for finding in list_findings(settings, Home(folder)) if finding.subject not in readers]


@dataclass(frozen=True, slots=True)
class Stage:
    """A served lake, and what each kind of DuckDB's changes has there: a namespace of its own with the table `t`."""

    served: Served
    iceberg: PyIcebergReader
    duck: DuckDBPyConnection
    plain: DuckDBPyConnection
    namespaces: Mapping[str, str]

    def make_tables(self, *kinds: str) -> None:
        """Make those of these kinds, in the lake and in the plain DuckDB."""
        for conn, names in ((self.duck, [self.namespaces[kind] for kind in kinds]), (self.plain, ["plain"])):
            for statement in ("CREATE SCHEMA {s}", *BASE):
                with transaction(conn):
                    for name in names:
                        conn.execute(write(statement, name))

    def side(self, kind: str) -> Side:
        """Who writes as an Iceberg client."""
        client = open_client(self.served.server, self.served.lake)
        return Side(self.iceberg.catalog, client, self.duck, self.namespaces[kind])

    def expect(self, statements: Sequence[str]) -> Tables | None:
        """What the plain table becomes, None when nobody could do that in this order."""
        self.plain.execute("BEGIN")
        try:
            for statement in statements:
                self.plain.execute(write(statement, "plain"))
            return see(self.plain, "memory", "plain")
        except duckdb.Error:
            return None
        finally:
            self.plain.execute("ROLLBACK")

    def list_outcomes(self, name: str, kind: str, end: str) -> list[Tables | None]:
        """What may become of a table that both sides changed, or one of them."""
        twin, theirs = OURS[name].twin, [] if THEIRS[kind].startswith("CALL") else [THEIRS[kind]]
        if end != "both":
            return [self.expect(twin if end == "ours" else theirs)]
        # DuckDB drops the table that it has begun with, whatever it is called by now.
        renamed = [statement.replace("{t}", "{s}.u") for statement in theirs] if name == "rename table" else theirs
        orders = [*twin, *theirs], [*theirs, *twin], [*twin, *renamed]
        return [tables for order in orders if (tables := self.expect(order)) is not None]

    def see_iceberg(self, namespace: str) -> Tables:
        """What Iceberg clients have."""
        idents = self.iceberg.catalog.list_tables(namespace)
        tables = {name: self.iceberg.read((namespace, name)) for _, name in idents}
        return {
            name: (table.column_names, sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr))
            for name, table in tables.items()
        }


@contextmanager
def transaction(conn: DuckDBPyConnection) -> Generator[None]:
    """One transaction of DuckDB."""
    conn.execute("BEGIN")
    yield
    conn.execute("COMMIT")


def write(statement: str, namespace: str) -> str:
    """A statement about a namespace's table."""
    return statement.format(s=namespace, t=f"{namespace}.t")


def see(conn: DuckDBPyConnection, catalog: str, namespace: str) -> Tables:
    """What DuckDB has, which must count right without looking."""
    query = "SELECT table_name FROM duckdb_tables() WHERE database_name = ? AND schema_name = ?"
    names = [name for (name,) in conn.execute(query, [catalog, namespace]).fetchall()]
    return {name: read(conn, f"{catalog}.{namespace}.{name}") for name in names}


def read(conn: DuckDBPyConnection, name: str) -> tuple[list[str], list[tuple[object, ...]]]:
    """The columns and the rows of a table."""
    arrow = conn.execute(f"FROM {name}").to_arrow_table()
    key, rows = arrow.column_names[0], sorted(zip(*(column.to_pylist() for column in arrow.columns), strict=True), key=repr)
    known = [row[0] for row in rows if row[0] is not None]
    counted = conn.execute(f"SELECT count(*), min({key}), max({key}) FROM {name}").fetchall()
    assert counted == [(len(rows), min(known, default=None), max(known, default=None))], name
    return arrow.column_names, rows


@pytest.fixture
def stage(lake: FreshLake) -> Generator[Stage]:
    """A lake in which nothing is made yet."""
    with serve(make_settings(lake)) as server:
        served = Served(lake, server)
        namespaces = {kind: kind.replace(" ", "_") for kind in THEIRS}
        with duckdb.connect() as plain:
            yield Stage(served, served.pyiceberg(), lake.duckdb(), plain, namespaces)


@pytest.mark.whole
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.long) for name in OURS])
def test_both_sides_are_right_or_one_is_refused(stage: Stage, name: str, tmp_path: Path) -> None:
    """What lands is as it would be one after the other, for every reader, and goes on so through maintenance."""
    near = stage.served.lake.duckdb()
    near.execute(AT_ONCE)
    kinds = [kind for kind in THEIRS if (name, kind) not in HOLES]
    stage.make_tables(*kinds)
    ended = {kind: meet(stage, near, name, kind) for kind in kinds}
    assert {kind for kind, end in ended.items() if end == "both"} == LANDS[name]
    assert {(name, kind) for kind, end in ended.items() if end == "theirs"} == {pair for pair in BUSY if pair[0] == name}
    fresh = stage.served.lake.duckdb()
    for kind, end in ended.items():
        seen = see(fresh, "lake", stage.namespaces[kind])
        assert seen in stage.list_outcomes(name, kind, end), f"{kind}: {end}"
        assert seen == see(near, "lake", stage.namespaces[kind]) == stage.see_iceberg(stage.namespaces[kind]), kind
    [settings] = make_settings(stage.served.lake).lakes()
    assert list_damage(settings, tmp_path) == []
    for statement in MAINTENANCE:
        fresh.execute(statement)
    for kind, end in ended.items():
        assert see(fresh, "lake", stage.namespaces[kind]) in stage.list_outcomes(name, kind, end), f"{kind}, maintained"


def meet(stage: Stage, near: DuckDBPyConnection, name: str, kind: str) -> str:
    """DuckDB begins and does its own, the client commits, DuckDB commits; tell who landed: both, ours, theirs."""
    near.execute("BEGIN")
    near.execute(write(THEIRS[kind], stage.namespaces[kind]))
    is_done = OURS[name].do(stage.side(kind))
    try:
        near.execute("COMMIT")
    except duckdb.TransactionException:
        assert is_done is not False, "nobody landed"
        return "ours"
    return "theirs" if is_done is False else "both"


@pytest.mark.whole
@pytest.mark.parametrize("change", ["add column", "rename column"])
def test_a_rename_hides_a_change_of_columns_from_duckdb(stage: Stage, change: str) -> None:
    """DuckDB checks no rename, and makes a place for inlined rows with the columns it knew: it cannot read the table before that goes."""
    near, conn = stage.served.lake.duckdb(), stage.served.lake.psycopg()
    stage.make_tables("rename table")
    assert meet(stage, near, change, "rename table") == "both"
    namespace = stage.namespaces["rename table"]
    with pytest.raises(duckdb.InternalException):
        stage.served.lake.duckdb().execute(f"FROM lake.{namespace}.u").fetchall()
    [(name,)] = conn.execute(SELECT_NEWEST_INLINED, {"namespace": namespace}).fetchall()
    conn.execute("DELETE FROM ducklake_inlined_data_tables WHERE table_name = %(name)s", {"name": name})
    seen = see(stage.served.lake.duckdb(), "lake", namespace)
    assert seen == stage.expect([*OURS[change].twin, THEIRS["rename table"]]) == stage.see_iceberg(namespace)


@pytest.mark.parametrize("end", ["drop table", "make table again"])
@pytest.mark.long
def test_a_rename_of_a_dropped_table_leaves_a_name(stage: Stage, end: str, tmp_path: Path) -> None:
    """DuckDB checks no rename: the table has no columns then. DuckDB does not show it, `check` tells, and an end to it helps."""
    near = stage.served.lake.duckdb()
    stage.make_tables("rename table")
    assert meet(stage, near, end, "rename table") == "both"
    namespace = stage.namespaces["rename table"]
    assert see(stage.served.lake.duckdb(), "lake", namespace) == stage.expect(OURS[end].twin)
    answer = stage.served.server.get(f"namespaces/{namespace}/tables/u")
    assert answer.error == (406, "DamagedLakeException")
    [settings] = make_settings(stage.served.lake).lakes()
    assert ("u", "has no columns") in {(found.subject, found.problem) for found in list_findings(settings, Home(tmp_path))}
    stage.served.lake.psycopg().execute("UPDATE ducklake_table SET end_snapshot = begin_snapshot WHERE table_name = 'u'")
    assert list_damage(settings, tmp_path) == []
    assert (namespace, "u") not in stage.iceberg.catalog.list_tables(namespace)


SELECT_NEWEST_INLINED = """
SELECT i.table_name FROM ducklake_inlined_data_tables i
  JOIN ducklake_table t ON t.table_id = i.table_id AND t.end_snapshot IS NULL
  JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.schema_name = %(namespace)s
 ORDER BY i.schema_version DESC LIMIT 1
"""
