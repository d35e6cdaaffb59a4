"""Read-only DuckLake on branches: the lake's roles read a schema of views of each branch, and keys open the files that it reads."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import duckdb
import psycopg
import pyarrow as pa
import pytest
from ducklakepy import DuckLakeCatalog
from ducklakepy.expressions import col
from ducklakepy.schema import Column
from ducklakepy.schema import Schema as LakeSchema
from ducklakepy.types import Int64Type
from psycopg import sql
from sqlalchemy.exc import SQLAlchemyError

from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.lake.branches import registry
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.delete import delete_branch
from duckicelake.lake.branches.merge import MergeRequest, merge_branch
from duckicelake.lake.branches.registry import Branch, get_branch
from duckicelake.lake.branches.reset import reset_branch
from duckicelake.lake.writing.migrate import migrate
from tests.lake.branches.repository import as_lake, make_branch, read_head
from tests.lake.branches.test_lifecycle import list_objects
from tests.rest.auth.ducklake.readers import Told
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
from tests.support.ducklake_1_1 import open_ducklakepy, read_at, to_rows
from tests.support.lakes import FreshLake

CREDENTIALS = "/v1/lake%40{}/ducklake-credentials"
ROWS = "SELECT * FROM {}.a.rows ORDER BY ALL"
MINE = '"lake@dev"'


def ask(guarded: Guarded, name: str, principal: str = "reader") -> Told:
    """Return what a principal of the settings is given to read a branch with."""
    answer = guarded.get(principal, CREDENTIALS.format(name))
    assert answer.status == 200, answer.body
    return Told(guarded, answer.json)


def find_dev(lake: FreshLake) -> Branch:
    """Return the branch `dev`."""
    return get_branch(lake.psycopg(), "dev")


def list_left(lake: FreshLake) -> list[str]:
    """Return the schemas of readers."""
    found = lake.psycopg().execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%@%readers' ORDER BY 1").fetchall()
    return [name for (name,) in found]


def hold_views(told: Told, lake: FreshLake) -> psycopg.Connection:
    """Return a reader's session whose transaction has locked each view of inlined rows of the branch, and none of their tables."""
    conn = lake.opened.enter_context(closing(psycopg.connect(told.answer["dsn"])))
    for name in list_views(lake):
        conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier("lake@dev_readers", name)))
    return conn


def list_views(lake: FreshLake) -> Sequence[str]:
    """Return the names of the views of inlined rows that readers of `dev` have."""
    found = lake.psycopg().execute(
        "SELECT viewname FROM pg_views WHERE schemaname = 'lake@dev_readers' AND viewname LIKE 'ducklake_inlined_data_%_%'"
        " AND viewname <> 'ducklake_inlined_data_tables' ORDER BY 1"
    )
    return [name for (name,) in found.fetchall()]


@pytest.mark.whole
def test_a_reader_that_holds_views_delays_no_reset(lake: FreshLake) -> None:
    """A reset replaces the views of inlined tables that have other columns now, but waits for none that a reader's transaction holds."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        dev, watching = make_branch(lake, "dev"), lake.psycopg()
        lake.duckdb().execute("ALTER TABLE a.t ADD COLUMN mine VARCHAR; INSERT INTO a.t VALUES (78, 'x')")
        dev.duckdb().execute("ALTER TABLE a.t ADD COLUMN c INTEGER; INSERT INTO a.t VALUES (1, 1)")
        held = hold_views(ask(guarded, "dev"), lake)
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = ANY(%s::text[]::regclass[])"
        views = [f'"lake@dev_readers".{name}' for name in list_views(lake)]
        with ThreadPoolExecutor(1) as pool:
            reset = pool.submit(reset_branch, lake.psycopg(), lake.metadata_schema, "dev")
            seen = 0
            while not reset.done():
                seen += watching.execute(waiting, [views]).fetchone() != (0,)
        reset.result()
        assert views and not seen
        # The views that were left are replaced when credentials are asked for, and none of them is held any more.
        held.rollback()
        assert (78, "x") in ask(guarded, "dev").duckdb().execute(f"FROM {MINE}.a.t").fetchall()


def test_a_deleted_branch_is_read_no_more(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its views are closed to the lake's roles, also for prepared statements, while a writer's session keeps the schema in place."""
    monkeypatch.setattr(registry, "AWAITED_MS", 1)
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        dev = make_branch(lake, "dev")
        told = ask(guarded, "dev")
        reader = lake.opened.enter_context(closing(psycopg.connect(told.answer["dsn"], autocommit=True)))
        reader.execute('PREPARE p AS SELECT count(*) FROM "lake@dev_readers".ducklake_table')
        assert reader.execute("EXECUTE p").fetchone() != (0,)
        dev.psycopg(autocommit=False).execute("SELECT count(*) FROM ducklake_data_file")
        assert not delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
        for statement in ("EXECUTE p", 'SELECT FROM "lake@dev_readers".ducklake_table'):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(statement)
        make_branch(lake, "dev")
        assert ask(guarded, "dev").duckdb().execute(f"SELECT count(*) FROM {MINE}.a.t").fetchone() == (10,)


def test_a_reader_sees_what_it_may_read_on_a_branch(lake: FreshLake) -> None:
    """Files of both, inlined rows and deletes, also after a merge; no other tables, and no writing."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        main = lake.duckdb()
        main.execute("CREATE TABLE a.rows AS SELECT range AS i FROM range(100)")
        main.execute("INSERT INTO a.rows VALUES (-1); DELETE FROM a.rows WHERE i IN (3, 50)")
        main.execute("CREATE TABLE a.filed AS SELECT range AS i FROM range(50)")
        main.execute("CREATE TABLE b.secret AS SELECT range AS i FROM range(100)")
        dev = make_branch(lake, "dev")
        session = dev.duckdb()
        session.execute("INSERT INTO a.rows FROM range(1000, 1100)")
        session.execute("INSERT INTO a.rows VALUES (-2); DELETE FROM a.rows WHERE i IN (1000, 7)")
        session.execute("CREATE TABLE a.made AS SELECT 1 AS i FROM range(40)")
        told = ask(guarded, "dev")
        reader = told.duckdb()
        assert reader.execute(ROWS.format(MINE)).fetchall() == session.execute(ROWS.format("lake")).fetchall()
        assert reader.execute(f"SELECT count(*) FROM {MINE}.a.made").fetchone() == (40,)
        for hidden in ("b.secret", "b.t"):
            with pytest.raises(duckdb.CatalogException):
                reader.execute(f"SELECT * FROM {MINE}.{hidden}")
        for statement in (f"INSERT INTO {MINE}.a.rows VALUES (1)", f"DELETE FROM {MINE}.a.rows", f"DROP TABLE {MINE}.a.rows"):
            with pytest.raises(duckdb.Error):
                reader.execute(statement)
        with closing(psycopg.connect(told.answer["dsn"], autocommit=True)) as conn:
            seen = conn.execute('SELECT table_name FROM "lake@dev_readers".ducklake_table WHERE end_snapshot IS NULL ORDER BY 1').fetchall()
            assert [name for (name,) in seen] == ["filed", "made", "other", "rows", "t"]
            for relation in ("lake@dev.ducklake_table", "lake@dev.own_data_file", "lake@dev.iceberg_grant", "lake@dev_readers.iceberg_me"):
                schema, name = relation.split(".")
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(f'SELECT * FROM "{schema}"."{name}"')  # pyright: ignore
        # An open session sees what is inlined and deleted inline later, and the branch as it is after a merge.
        session.execute("INSERT INTO a.rows VALUES (-3); DELETE FROM a.made WHERE i = 1")
        assert reader.execute(ROWS.format(MINE)).fetchall() == session.execute(ROWS.format("lake")).fetchall()
        main.execute("INSERT INTO a.rows VALUES (-4); DELETE FROM a.t WHERE i = 9; DELETE FROM a.filed WHERE i = 4")
        main.execute("ALTER TABLE a.other ADD COLUMN c INTEGER")
        main.execute("INSERT INTO a.other VALUES (2, 2)")
        merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev"))
        for each, tables in ((reader, ("rows", "t", "filed")), (ask(guarded, "dev").duckdb(), ("rows", "filed", "other"))):
            for table in tables:
                query = f"SELECT * FROM {{}}.a.{table} ORDER BY ALL"
                assert each.execute(query.format(MINE)).fetchall() == lake.duckdb().execute(query.format("lake")).fetchall()


@pytest.mark.whole
def test_nothing_of_readers_is_left_of_a_branch(lake: FreshLake) -> None:
    """The schema goes with the branch; the roles are the lake's. A branch made again shows its own rows; a revoke holds at once."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        managed = Managed(guarded)
        managed.add("ann")
        managed.give("read", "namespace:a", "ann")
        schema, query, main = lake.metadata_schema, f"SELECT count(*) FROM {MINE}.a.t", lake.duckdb()
        make_branch(lake, "dev")

        def open_as_ann() -> Told:
            answer = managed.ask("ann", "GET", CREDENTIALS.format("dev"))
            assert answer.status == 200, answer.body
            return Told(guarded, answer.json)

        told = open_as_ann()
        reader = told.duckdb()
        assert reader.execute(query).fetchone() == (10,)
        managed.take("read", "namespace:a", "ann")
        with pytest.raises(duckdb.Error, match="is over, or was changed"):
            reader.execute(query)
        reader.close()
        managed.give("read", "table:a.t", "ann")
        assert list_left(lake) == [f"{schema}@dev_readers"]
        # The deletion ends the sessions of readers whose transactions hold the branch.
        held = hold_views(open_as_ann(), lake)
        assert delete_branch(lake.psycopg(), schema, "dev")
        with pytest.raises(psycopg.OperationalError):
            held.execute("SELECT 1")
        assert list_left(lake) == []
        main.execute("INSERT INTO a.t VALUES (77)")
        make_branch(lake, "dev")
        assert open_as_ann().duckdb().execute(query).fetchone() == (11,)
        # Both sides have a table of inlined rows of one name, with other columns.
        main.execute("ALTER TABLE a.t ADD COLUMN mine VARCHAR; INSERT INTO a.t VALUES (78, 'x')")
        as_lake(lake, find_dev(lake)).duckdb().execute("ALTER TABLE a.t ADD COLUMN c INTEGER; INSERT INTO a.t VALUES (1, 1)")
        assert len(open_as_ann().duckdb().execute(f"FROM {MINE}.a.t").fetchall()) == 12
        reset_branch(lake.psycopg(), schema, "dev")
        assert (78, "x") in open_as_ann().duckdb().execute(f"FROM {MINE}.a.t").fetchall()
        # A tag is read likewise; a snapshot without one is not, because other readers could attach it.
        make_branch(lake, BranchRequest("v1", is_tag=True))
        assert ask(guarded, "v1", "reader").duckdb().execute('SELECT count(*) FROM "lake@v1".a.t').fetchone() == (12,)
        assert guarded.get("admin", CREDENTIALS.format(read_head(lake) - 1)).error == (501, "UnsupportedOperationException")
        names = {name for (name,) in lake.psycopg().execute("SELECT role_name FROM iceberg_reader").fetchall()}
        roles = lake.psycopg().execute("SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)", [list(names)]).fetchall()
        assert len(roles) == len(names) >= 2
        assert lake.psycopg().execute('SELECT count(*) FROM "lake@dev".iceberg_reader').fetchone() == (0,)


def open_with_keys(lake: FreshLake, keys: Mapping[str, str]) -> DuckLakeCatalog:
    """ducklakepy on a lake whose files lie on the store, with these keys."""
    place = {"s3.endpoint": lake.store.endpoint, "s3.region": lake.store.region, "s3.allow-http": "true"}
    catalog = open_ducklakepy(lake, properties=place | dict(keys))
    lake.opened.callback(catalog.close)
    return catalog


def number(*ids: int) -> pa.Table:
    """Rows with one column."""
    return pa.table({"i": pa.array(ids, pa.int64())})


ROWS_1_1, MADE, NESTED = ("a", "rows"), ("a", "made"), ("a", "in", "o")
COLUMNS_1_1 = LakeSchema(Column("i", Int64Type()))
LATER = datetime(2100, 1, 1, tzinfo=UTC)

Write = Callable[[DuckLakeCatalog], object]
REFUSED: Mapping[str, Write] = {
    "insert": lambda reader: reader.load_table(ROWS_1_1).append(number(5)),
    "append": lambda reader: reader.load_table(ROWS_1_1).append(number(*range(50))),
    "delete": lambda reader: reader.load_table(ROWS_1_1).delete(col("i") == 1002),
    "update": lambda reader: reader.load_table(ROWS_1_1).update(col("i") == 1002, {"i": 0}),
    "column": lambda reader: reader.load_table(ROWS_1_1).update_schema().add_column("n", Int64Type()).commit(),
    "option": lambda reader: reader.load_table(ROWS_1_1).set_option("data_inlining_row_limit", 0),
    "create": lambda reader: reader.create_table(("a", "new"), schema=COLUMNS_1_1),
    "rename": lambda reader: reader.rename_table(ROWS_1_1, "new"),
    "drop": lambda reader: reader.drop_table(ROWS_1_1),
    "namespace": lambda reader: reader.create_namespace(("new",)),
    "flush": lambda reader: reader.flush_inlined_data(ROWS_1_1),
    "merge": lambda reader: reader.merge_adjacent_files(ROWS_1_1),
    "rewrite": lambda reader: reader.rewrite_data_files(ROWS_1_1, delete_threshold=0.01),
    "expire": lambda reader: reader.expire_snapshots(older_than=LATER),
    "orphans": lambda reader: reader.delete_orphaned_files(older_than=LATER, exclusive=True),
}


def open_reader(guarded: Guarded, branch: FreshLake) -> DuckLakeCatalog:
    """ducklakepy with nothing but what a reader of `dev` is given now."""
    told = ask(guarded, "dev").answer
    [given] = told["storage-credentials"]
    return open_with_keys(replace(branch, dsn=told["dsn"], metadata_schema=told["metadata-schema"]), given["config"])


def check_equal(reader: DuckLakeCatalog, writer: DuckLakeCatalog, since: int) -> None:
    """The reader has the same rows as the writer, at each snapshot since one, and the same changes."""
    assert reader.list_namespaces() == ["a", "a.in"]
    snapshots = [each.snapshot_id for each in reader.snapshots()]
    assert snapshots == [each.snapshot_id for each in writer.snapshots()]
    for ident in (ROWS_1_1, MADE, NESTED):
        assert to_rows(reader.load_table(ident).to_arrow()) == to_rows(writer.load_table(ident).to_arrow())
    for each in [each for each in snapshots if each >= since]:
        assert to_rows(read_at(reader, ROWS_1_1, each)) == to_rows(read_at(writer, ROWS_1_1, each))
    feeds = [side.load_table(ROWS_1_1).changes(snapshots[0], snapshots[-1]).to_arrow() for side in (reader, writer)]
    assert len(feeds[0]) > 200 and to_rows(feeds[0]) == to_rows(feeds[1])


@pytest.mark.whole
def test_ducklakepy_reads_a_branch_of_ducklake_1_1_and_writes_nothing(lake: FreshLake) -> None:
    """Files, inlined rows and deletes of the lake and the branch, a nested namespace, older snapshots and changes; also after merges."""
    with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        with closing(lake.duckdb()) as session:
            session.execute("CREATE TABLE a.rows AS SELECT range AS i FROM range(100); INSERT INTO a.rows VALUES (-1)")
            session.execute("DELETE FROM a.rows WHERE i IN (3, 50); CREATE TABLE b.secret AS SELECT range AS i FROM range(100)")
        migrate(lake.psycopg(), lake.metadata_schema)
        since = read_head(lake)
        dev = make_branch(lake, "dev")
        own = {"s3.access-key-id": lake.store.access_key_id, "s3.secret-access-key": lake.store.secret_access_key}
        main, writer = open_with_keys(lake, own), open_with_keys(dev, own)
        for first in (1000, 1100, 1200):
            writer.load_table(ROWS_1_1).append(number(*range(first, first + 50)))
        writer.load_table(ROWS_1_1).append(number(-2))
        writer.load_table(ROWS_1_1).delete(col("i").isin([1000, 7]))
        writer.create_table(MADE, schema=COLUMNS_1_1).append(number(*range(40)))
        writer.create_namespace(NESTED[:2])
        writer.create_table(NESTED, schema=COLUMNS_1_1).append(number(*range(30)))
        reader = open_reader(guarded, dev)
        check_equal(reader, writer, since)
        check_refused(lake, reader)
        # An open session sees what the branch gets later, and after merges one with new keys.
        main.load_table(ROWS_1_1).append(number(*range(2000, 2050)))
        main.load_table(ROWS_1_1).append(number(-3))
        writer.load_table(ROWS_1_1).append(number(-4))
        check_equal(reader, writer, since)
        for request in (MergeRequest("main", "dev"), MergeRequest("dev")):
            assert merge_branch(lake.psycopg(), lake.metadata_schema, request).tables
            check_equal(open_reader(guarded, dev), writer, since)
        assert to_rows(main.load_table(ROWS_1_1).to_arrow()) == to_rows(writer.load_table(ROWS_1_1).to_arrow())


def check_refused(lake: FreshLake, reader: DuckLakeCatalog) -> None:
    """Postgres and the store refuse each write, and all is as before."""
    before, objects = reader.current_snapshot(), list_objects(lake)
    done: list[str] = []
    for name, write in REFUSED.items():
        try:
            write(reader)
        except (SQLAlchemyError, OSError):
            continue
        done.append(name)
    assert not done and not reader.cleanup_old_files(older_than=LATER, exclusive=True).removed
    assert (reader.current_snapshot(), list_objects(lake)) == (before, objects)
