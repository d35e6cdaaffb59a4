"""Spares: relations made ahead, which the next branch claims. A claimed one is in nothing different from relations made for the branch."""

from contextlib import closing
from threading import Thread
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from duckicelake.lake.branches.create import BranchRequest, create_branch, remove_repository
from duckicelake.lake.branches.delete import delete_branch
from duckicelake.lake.branches.registry import Branch, is_shared, list_branches
from duckicelake.lake.branches.spare import LARGE, prepare_spare, remove_spare
from duckicelake.lake.writing.migrate import migrate
from tests.lake.bare import list_relations
from tests.lake.branches.repository import as_lake, fill, maintain, make_branch, read_head, read_rows
from tests.lake.branches.test_lifecycle import READ_STATE, kill_at
from tests.support.lakes import FreshLake
from tests.support.tiers import long_but, whole_after

SPARE = "lake@+"


def has_spare(conn: psycopg.Connection) -> bool:
    """Return True if the lake has a spare, and fail if it has half of one."""
    row = conn.execute("SELECT (SELECT count(*) FROM iceberg_spare), to_regnamespace(%s) IS NOT NULL", (f'"{SPARE}"',)).fetchone()
    assert row is not None and (row[0] == 1) == row[1]
    copying = conn.execute("SELECT count(*) FROM iceberg_branch_copy WHERE number = 0").fetchone()
    assert copying is not None and (copying[0] > 0) == row[1]
    return row[1]


def make_spare(lake: FreshLake) -> psycopg.Connection:
    """Prepare the lake for branches, make a spare, and return a connection."""
    conn = lake.psycopg()
    create_branch(conn, lake.metadata_schema, BranchRequest("first"))
    assert delete_branch(conn, lake.metadata_schema, "first")
    assert prepare_spare(conn, lake.metadata_schema)
    assert has_spare(conn)
    return conn


def read_large(conn: psycopg.Connection, schema: str, fork_snapshot_id: int) -> dict[str, list[tuple[object, ...]]]:
    """Return the rows up to the fork point of the tables that a spare has copies of."""
    rows: dict[str, list[tuple[object, ...]]] = {}
    for table in LARGE:
        columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
        until = sql.SQL("true") if table.until is None else sql.SQL("{} <= {}").format(sql.Identifier(table.until), fork_snapshot_id)
        statement = sql.SQL("SELECT {} FROM {} WHERE {}").format(columns, sql.Identifier(schema, table.name), until)
        rows[table.name] = sorted(conn.execute(statement).fetchall(), key=repr)
    return rows


def list_kinds(conn: psycopg.Connection, schema: str) -> list[tuple[object, ...]]:
    """Return the comment, relations, functions and triggers of a branch without its schema's name."""
    return conn.execute(
        """
        SELECT 'schema', coalesce(obj_description(n.oid, 'pg_namespace'), ''), '', '' FROM pg_namespace n WHERE n.nspname = %(schema)s
         UNION ALL
        SELECT 'relation', c.relname, c.relkind::text, coalesce(replace(pg_get_viewdef(c.oid), n.nspname, ''), '') FROM pg_class c
          JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s
         UNION ALL
        SELECT 'function', p.proname, '', replace(p.prosrc, n.nspname, '') FROM pg_proc p
          JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %(schema)s
         UNION ALL
        SELECT 'trigger', c.relname || t.tgname, '', replace(pg_get_triggerdef(t.oid), n.nspname, '') FROM pg_trigger t
          JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = %(schema)s AND NOT t.tgisinternal
         ORDER BY 1, 2, 3, 4
        """,
        {"schema": schema},
    ).fetchall()


SELECT_COPYING = """
SELECT c.table_name, c.operation, replace(c.statement, b.schema_name, '') FROM iceberg_branch_copy c JOIN iceberg_branch b USING (number)
 WHERE b.name = %(name)s ORDER BY 1, 2
"""
CHANGE_NOTES = """
INSERT INTO iceberg_schema (table_id, schema_id, json) VALUES (901, 1, 'late');
UPDATE iceberg_schema SET json = 'changed' WHERE table_id = 900;
DELETE FROM iceberg_hidden WHERE table_id = 900;
INSERT INTO iceberg_hidden (table_id, snapshot_id) VALUES (901, 2)
"""


def test_a_claimed_spare_is_what_a_branch_without_one_is(lake: FreshLake) -> None:
    """Whatever the lake has added, changed and deleted since the spare was made, also in a transaction that was open then."""
    main = lake.duckdb()
    fill(main)
    main.execute("CREATE TABLE dropped AS SELECT range AS i FROM range(50)")
    lake.psycopg().execute("INSERT INTO iceberg_schema (table_id, schema_id, json) VALUES (900, 0, 'x')")
    lake.psycopg().execute("INSERT INTO iceberg_hidden (table_id, snapshot_id) VALUES (900, 1)")
    late = lake.psycopg(autocommit=False)
    late.execute("UPDATE ducklake_table_column_stats SET min_value = '-7' WHERE table_id = (SELECT max(table_id) FROM ducklake_table)")
    conn = make_spare(lake)
    late.commit()
    main.execute("DROP TABLE dropped")
    main.execute("INSERT INTO t SELECT i, 'late' FROM range(3000, 3100) r(i)")
    main.execute("ALTER TABLE s.parts ADD COLUMN m INTEGER DEFAULT 5")
    main.execute("DELETE FROM t WHERE id > 3050")
    conn.execute(CHANGE_NOTES)
    maintain(lake)
    main.execute("INSERT INTO empty VALUES (1), (2)")
    claimed = create_branch(conn, lake.metadata_schema, BranchRequest("dev"))
    assert not has_spare(conn)
    plain = create_branch(conn, lake.metadata_schema, BranchRequest("plain"))
    fork = claimed.fork_snapshot_id
    assert fork == plain.fork_snapshot_id
    assert read_large(conn, claimed.schema_name, fork) == read_large(conn, plain.schema_name, fork) == read_large(conn, "lake", fork)
    assert list_kinds(conn, claimed.schema_name) == list_kinds(conn, plain.schema_name)
    assert conn.execute(SELECT_COPYING, {"name": "dev"}).fetchall() == conn.execute(SELECT_COPYING, {"name": "plain"}).fetchall() != []
    settings = "SELECT key, value FROM {}.iceberg_setting WHERE key <> 'iceberg_path' ORDER BY 1"
    for_claimed, for_plain = (sql.SQL(settings).format(sql.Identifier(each.schema_name)) for each in (claimed, plain))
    assert conn.execute(for_claimed).fetchall() == conn.execute(for_plain).fetchall()


@pytest.mark.whole
def test_a_claimed_spare_is_written_and_maintained_like_a_branch(lake: FreshLake) -> None:
    """Neither side sees the other, also after maintenance of both; a branch of the branch, and one of an older snapshot, claim one too."""
    fill(lake.duckdb())
    conn = make_spare(lake)
    before = read_rows(lake, "t")
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("DELETE FROM t WHERE id < 50")
        session.execute("INSERT INTO t SELECT i, 'd' FROM range(1000, 1040) r(i)")
    lake.duckdb().execute("DELETE FROM t WHERE id > 100")
    rows = read_rows(dev, "t")
    for side in (lake, dev):
        maintain(side)
    assert read_rows(dev, "t") == rows
    assert prepare_spare(conn, lake.metadata_schema)
    child = create_branch(conn, lake.metadata_schema, BranchRequest("child", "dev"))
    fork = child.fork_snapshot_id
    assert read_large(conn, child.schema_name, fork) == read_large(conn, dev.metadata_schema, fork) != read_large(conn, "lake", fork)
    child = as_lake(lake, child)
    assert not has_spare(conn)
    assert prepare_spare(conn, lake.metadata_schema)
    old = make_branch(lake, BranchRequest("old", at=max(row[0] for row in conn.execute("SELECT snapshot_id FROM ducklake_snapshot"))))
    assert not has_spare(conn)
    assert (read_rows(child, "t"), read_rows(old, "t"), len(before)) == (rows, read_rows(lake, "t"), len(before))


@pytest.mark.whole
def test_a_branch_has_what_its_parent_has_when_it_gets_the_lock(lake: FreshLake) -> None:
    """Copies are made before; transactions that end while it waits for the lock are copied again."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    dev = make_branch(lake, "dev")
    for parent, member in (("main", lake), ("dev", dev)):
        made: list[Branch] = []
        request = BranchRequest(f"of-{parent}", parent)
        with closing(member.psycopg(autocommit=False)) as writer:
            writer.execute("INSERT INTO iceberg_schema (table_id, schema_id, json) VALUES (900, 0, 'x')")
            writer.execute("UPDATE ducklake_table_column_stats SET min_value = '-7'")
            writer.execute(
                "INSERT INTO ducklake_snapshot SELECT max(snapshot_id) + 1, now(), 1, 5000, max(next_file_id) FROM ducklake_snapshot"
            )
            claim = Thread(target=lambda request=request, made=made: made.append(make_in_thread(lake, request)))
            claim.start()
            wait_for_claims(lake, member, 1)
            writer.execute(
                "INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made) SELECT max(snapshot_id), 'x' FROM ducklake_snapshot"
            )
            writer.commit()
        claim.join()
        fork = made[0].fork_snapshot_id
        assert fork == read_head(member)
        assert read_large(lake.psycopg(), made[0].schema_name, fork) == read_large(lake.psycopg(), member.metadata_schema, fork)
        changes = "SELECT count(*) FROM iceberg_change WHERE kind = 'expire'"
        assert as_lake(lake, made[0]).psycopg().execute(changes).fetchone() == (0,)


def make_in_thread(lake: FreshLake, request: BranchRequest) -> Branch:
    """Make a branch on a connection of its own."""
    return create_branch(lake.psycopg(), lake.metadata_schema, request)


def wait_for_claims(lake: FreshLake, member: FreshLake, count: int) -> None:
    """Wait until so many claims have their relations and wait for a member."""
    relation = f'"{member.metadata_schema}".ducklake_snapshot'
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
    conn = lake.psycopg()
    while conn.execute(waiting, (relation,)).fetchone() != (count,):
        pass


def test_a_spare_is_no_branch(lake: FreshLake) -> None:
    """It is listed nowhere, and what refuses while there are branches drops it."""
    conn = make_spare(lake)
    assert list_branches(conn) == []
    assert not is_shared(conn)
    remove_repository(conn, lake.metadata_schema)
    assert not [name for name in list_relations(lake) if "branch" in name or "spare" in name]
    assert conn.execute("SELECT to_regnamespace(%s)", (f'"{SPARE}"',)).fetchone() == (None,)
    conn = make_spare(lake)
    assert not migrate(conn, lake.metadata_schema).obstacles
    assert not has_spare(conn)


@pytest.mark.parametrize(
    "change",
    whole_after(
        1,
        [
            "UPDATE iceberg_spare SET made_by = 'other', made_in = pg_current_xact_id()",
            "UPDATE iceberg_spare SET lake_version = '0.9', made_in = pg_current_xact_id()",
            # As in a lake that was restored from a dump, where the numbers of transactions are others.
            "UPDATE iceberg_spare SET made_at = made_at",
            # Numbers of transactions are compared by their 32 lower bits.
            "UPDATE iceberg_spare SET made_at = made_at - interval '1 day', made_in = pg_current_xact_id()",
        ],
    ),
    ids=["version", "format", "dump", "age"],
)
def test_a_spare_that_is_not_right_is_not_claimed(lake: FreshLake, change: str) -> None:
    """The branch makes its own relations, and the next spare replaces the wrong one."""
    conn = make_spare(lake)
    conn.execute(change.encode())
    make_branch(lake, "dev")
    assert has_spare(conn)
    assert prepare_spare(conn, lake.metadata_schema)
    make_branch(lake, "next")
    assert not has_spare(conn)


def test_two_claims_at_once_and_one_spare(lake: FreshLake) -> None:
    """One branch gets the spare; the other makes its own relations without waiting, and no third session removes the claimed one."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    conn = make_spare(lake)
    made: list[str] = []

    def claim(name: str) -> None:
        made.append(create_branch(lake.psycopg(), lake.metadata_schema, BranchRequest(name)).schema_name)

    with closing(lake.psycopg(autocommit=False)) as holder:
        # The claims have their relations and wait for the lake.
        holder.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        claims = [Thread(target=claim, args=(name,)) for name in ("one", "two")]
        for thread in claims:
            thread.start()
        wait_for_claims(lake, lake, 2)
        assert not remove_spare(conn, lake.metadata_schema)
        holder.rollback()
    for thread in claims:
        thread.join()
    assert sorted(made) == ["lake@one", "lake@two"]
    assert not has_spare(conn)
    for name in ("one", "two"):
        assert delete_branch(conn, lake.metadata_schema, name)


def test_a_spare_of_another_role_is_not_claimed(lake: FreshLake) -> None:
    """Only a member of the role that owns a schema may rename it. The branch makes its own relations."""
    conn, role = make_spare(lake), f"maker_{uuid4().hex}"
    with conn.transaction(force_rollback=True):
        conn.execute(f"CREATE ROLE {role}; GRANT {role} TO CURRENT_USER; GRANT CREATE ON DATABASE {lake.name} TO {role}".encode())
        conn.execute(f'ALTER SCHEMA "{SPARE}" OWNER TO {role}; REVOKE {role} FROM CURRENT_USER'.encode())
        create_branch(conn, lake.metadata_schema, BranchRequest("dev"))
        assert has_spare(conn)


def test_a_spare_without_its_row_is_made_again(lake: FreshLake) -> None:
    """`DROP SCHEMA lake CASCADE` leaves its tables. A schema of this name that the catalog has not made stays."""
    conn = make_spare(lake)
    conn.execute("DELETE FROM iceberg_spare; DELETE FROM iceberg_branch_copy WHERE number = 0")
    assert prepare_spare(conn, lake.metadata_schema)
    assert has_spare(conn)
    assert remove_spare(conn, lake.metadata_schema)
    conn.execute(f'CREATE SCHEMA "{SPARE}"'.encode())
    assert not prepare_spare(conn, lake.metadata_schema)
    assert conn.execute("SELECT to_regnamespace(%s) IS NOT NULL", (f'"{SPARE}"',)).fetchone() == (True,)


def test_a_spare_in_use_is_not_claimed(lake: FreshLake) -> None:
    """`pg_dump` locks its tables so, maybe for hours, and then reads them by name. The branch makes its own relations without waiting."""
    conn = make_spare(lake)
    with closing(lake.psycopg(autocommit=False)) as dump:
        dump.execute(f'LOCK TABLE "{SPARE}".iceberg_schema IN ACCESS SHARE MODE'.encode())
        make_branch(lake, "dev")
        assert has_spare(conn)
        dump.execute(f'SELECT FROM "{SPARE}".iceberg_schema'.encode())
    make_branch(lake, "next")
    assert not has_spare(conn)


STEPS = ["create_schema", "_create_copied+", "copy_large+"]


@pytest.mark.whole
@pytest.mark.parametrize("step", long_but(STEPS, "_create_copied+"))
def test_a_spare_killed_half_made_leaves_nothing(lake: FreshLake, step: str) -> None:
    """All or nothing; the next one is whole."""
    make_branch(lake, "first")
    conn = lake.psycopg()
    before = conn.execute(READ_STATE).fetchone()
    kill_at(lake, "spare", step)
    assert prepare_spare(conn, lake.metadata_schema)
    assert has_spare(conn)
    assert remove_spare(conn, lake.metadata_schema)
    assert not has_spare(conn)
    assert conn.execute(READ_STATE).fetchone() == before


@pytest.mark.parametrize("step", long_but(["claim_spare+", "catch_up+", "copy_notes+"], "claim_spare+"))
def test_a_killed_claim_leaves_the_spare(lake: FreshLake, step: str) -> None:
    """It is whole, and the next branch claims it."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    conn = make_spare(lake)
    kill_at(lake, "create", step)
    lake.duckdb().execute("INSERT INTO t FROM range(100, 200)")
    assert has_spare(conn)
    assert list_branches(conn) == []
    assert read_rows(make_branch(lake, "dev"), "t") == read_rows(lake, "t")
    assert not has_spare(conn)


@pytest.mark.whole
def test_a_killed_removal_leaves_the_spare(lake: FreshLake) -> None:
    """One that was not claimed for a while is removed whole or not at all."""
    conn = make_spare(lake)
    assert not remove_spare(conn, lake.metadata_schema, 600.0)
    kill_at(lake, "remove", "drop_spare+")
    assert has_spare(conn)
    assert remove_spare(conn, lake.metadata_schema)
    assert not has_spare(conn)
