"""Read-only DuckLake on branches: the lake's roles read a schema of views of each branch, and keys open the files that it reads."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import duckdb
import psycopg
import pytest
from psycopg import sql

from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.lake.branches import registry
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.delete import delete_branch
from duckicelake.lake.branches.merge import MergeRequest, merge_branch
from duckicelake.lake.branches.registry import Branch, get_branch
from duckicelake.lake.branches.reset import reset_branch
from tests.lake.branches.repository import as_lake, make_branch, read_head
from tests.rest.auth.ducklake.readers import Told
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
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
