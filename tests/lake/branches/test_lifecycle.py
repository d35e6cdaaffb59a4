"""How branches come and go: names, fork points, branches of branches, deletion, and what happens beside open transactions."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import boto3
import psycopg
import pytest

from duckicelake.errors import AlreadyExists, BadRequest, NotFound, Unsupported
from duckicelake.lake.branches import registry
from duckicelake.lake.branches.create import BranchRequest, build_branch_path, create_branch, remove_repository
from duckicelake.lake.branches.delete import delete_branch
from duckicelake.lake.branches.layout import read_format
from duckicelake.lake.branches.merge import MergeRequest, merge_branch
from duckicelake.lake.branches.registry import (
    check_name,
    choose_schema,
    list_branches,
    list_children,
    rename_branch,
)
from duckicelake.lake.branches.reset import reset_branch
from duckicelake.lake.install import uninstall
from duckicelake.lake.lake_format import V1_1
from duckicelake.lake.reader_views import ReadMember
from duckicelake.lake.readers import install_readers
from duckicelake.lake.writing.migrate import migrate
from tests.lake.bare import list_relations
from tests.lake.branches import stopping
from tests.lake.branches.repository import fill, maintain, make_branch, read_head, read_rows
from tests.support.lakes import FreshLake
from tests.support.tiers import long_but
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]

READ_STATE = """
SELECT (SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal),
       (SELECT count(*) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname LIKE 'lake%'),
       (SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname LIKE 'lake%')
"""


def list_objects(lake: FreshLake) -> set[str]:
    """The data objects in the folders of a lake and of its branches."""
    store = lake.store
    keys = {"aws_access_key_id": store.access_key_id, "aws_secret_access_key": store.secret_access_key}
    s3 = boto3.client("s3", endpoint_url=store.endpoint, region_name=store.region, **keys)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=store.bucket, Prefix=f"{lake.name}/data")
    return {f"s3://{store.bucket}/{found.get('Key')}" for page in pages for found in page.get("Contents", [])}


def list_named(lake: FreshLake, table: str) -> set[str]:
    """The files that DuckDB reads a table from, as `t` in main or `s.t`."""
    schema, _, name = table.rpartition(".")
    call = f"ducklake_list_files('lake', '{name}', schema => '{schema or 'main'}')"
    with closing(lake.duckdb(read_only=True)) as session:
        rows = session.execute(f"SELECT data_file, delete_file FROM {call}").fetchall()
    return {path for row in rows for path in row if path is not None}


@pytest.mark.parametrize("name", ["main", "12", "a b", "", "a@b", "-a", "x" * 60])
def test_names_that_cannot_be_used_are_refused(name: str) -> None:
    """A name is part of a warehouse's name and of a schema's; a number means a snapshot."""
    with pytest.raises(BadRequest):
        check_name(name, "lake")


def test_a_branch_lies_beside_its_lake() -> None:
    """Never below a folder of the lake, whose orphan scan would remove its files; a whole bucket has nothing beside it."""
    assert build_branch_path("s3://b/x/data/", 3) == "s3://b/x/data-branch-3/"
    assert build_branch_path("/x/data/", 3) == "/x/data-branch-3/"
    assert build_branch_path("file:///x/", 3) == "file:///x-branch-3/"
    for whole in ("s3://b/", "/"):
        with pytest.raises(BadRequest, match="whole bucket"):
            build_branch_path(whole, 3)


def test_a_lake_with_branches_is_not_migrated(lake: FreshLake) -> None:
    """The message names them. Branches that are made afterwards have the lake's new version."""
    conn = lake.psycopg()
    make_branch(lake, "dev")
    with pytest.raises(BadRequest, match="dev"):
        migrate(conn, lake.metadata_schema)
    assert delete_branch(conn, lake.metadata_schema, "dev")
    assert not migrate(conn, lake.metadata_schema).obstacles
    late = make_branch(lake, "late")
    assert read_format(conn, late.metadata_schema) is V1_1


def test_a_schema_of_that_name_is_not_taken_over(lake: FreshLake) -> None:
    """What is in the way stays, and the message names it."""
    conn = lake.psycopg()
    conn.execute('CREATE SCHEMA "lake@dev"')
    with pytest.raises(AlreadyExists, match="lake@dev"):
        create_branch(conn, lake.metadata_schema, BranchRequest("dev"))
    assert list_branches(conn) == []


def test_a_lake_without_branches_has_nothing_of_them(lake: FreshLake) -> None:
    """Nothing is added before the first branch, and all of it goes again when a lake without branches is given back to DuckDB."""
    conn = lake.psycopg()
    assert list_branches(conn) == []
    before = list_relations(lake)
    assert not [name for name in before if "branch" in name]
    make_branch(lake, "dev")
    with pytest.raises(BadRequest, match="dev"):
        remove_repository(conn, lake.metadata_schema)
    assert delete_branch(conn, lake.metadata_schema, "dev")
    remove_repository(conn, lake.metadata_schema)
    assert list_relations(lake) == before
    uninstall(conn, lake.metadata_schema)
    assert conn.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal").fetchone() == (0,)


def test_a_lake_prepared_by_another_version_is_prepared_again(lake: FreshLake) -> None:
    """The next branch brings the triggers and functions of the version that makes it."""
    conn = lake.psycopg()
    make_branch(lake, "dev")
    before = conn.execute(READ_STATE).fetchone()
    assert delete_branch(conn, lake.metadata_schema, "dev")
    conn.execute("UPDATE iceberg_setting SET value = 'other' WHERE key = 'repository'")
    conn.execute("DROP TRIGGER iceberg_copy_deleted ON ducklake_data_file")
    make_branch(lake, "dev")
    assert conn.execute(READ_STATE).fetchone() == before


def test_a_name_is_taken_without_regard_to_case(lake: FreshLake) -> None:
    """DuckDB would not tell the schemas apart. A deleted branch's name is free, and its ids are not given again."""
    conn = lake.psycopg()
    first = create_branch(conn, lake.metadata_schema, BranchRequest("dev"))
    with pytest.raises(AlreadyExists):
        create_branch(conn, lake.metadata_schema, BranchRequest("DEV"))
    assert delete_branch(conn, lake.metadata_schema, "dev")
    assert create_branch(conn, lake.metadata_schema, BranchRequest("DEV")).number > first.number


def test_a_renamed_branch_keeps_all_but_its_name(lake: FreshLake) -> None:
    """Attached sessions go on, and the old name is free for another branch, which gets a schema of its own."""
    conn, schema = lake.psycopg(), lake.metadata_schema
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(20)")
    dev = make_branch(lake, "Dev")
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t FROM range(20, 40)")
        renamed = rename_branch(conn, schema, "Dev", "trial")
        assert (renamed.name, renamed.schema_name, renamed.data_path) == ("trial", dev.metadata_schema, dev.data_path)
        session.execute("INSERT INTO t FROM range(40, 60)")
    again = make_branch(lake, "dev")
    assert again.metadata_schema.lower() != dev.metadata_schema.lower()
    again.duckdb().execute("INSERT INTO t VALUES (100)")
    assert (len(read_rows(dev, "t")), len(read_rows(again, "t")), len(read_rows(lake, "t"))) == (60, 21, 20)
    assert list_children(conn, renamed) == []
    merge_branch(conn, schema, MergeRequest("trial"))
    merge_branch(conn, schema, MergeRequest("dev"))
    assert len(read_rows(lake, "t")) == 61
    for name in ("trial", "dev"):
        assert delete_branch(conn, schema, name)
    assert make_branch(lake, "dev").metadata_schema == f"{schema}@dev"


def test_names_that_cannot_be_given_are_refused(lake: FreshLake) -> None:
    """Names that are taken, also by a tag or in another case, or that are none; tags and unknown branches have no other name."""
    conn, schema = lake.psycopg(), lake.metadata_schema
    make_branch(lake, "dev")
    make_branch(lake, BranchRequest("v1", is_tag=True))
    assert rename_branch(conn, schema, "dev", "DEV").name == "DEV"
    for name, new_name, error in (
        ("DEV", "V1", AlreadyExists),
        ("DEV", "main", BadRequest),
        ("dev", "other", NotFound),
        ("v1", "v2", BadRequest),
        ("x", "y", NotFound),
    ):
        with pytest.raises(error):
            rename_branch(conn, schema, name, new_name)
    assert [each.name for each in list_branches(conn)] == ["DEV", "v1"]


def test_the_schema_of_a_snapshot_whose_name_is_too_long_is_called_by_its_number(lake: FreshLake) -> None:
    """Postgres would cut the name, so that two snapshots had one schema."""
    make_branch(lake, "dev")
    conn, long = lake.psycopg(), "x" * 45
    assert choose_schema(conn, long, "snapshot-99", 7) == f"{long}@snapshot-99"
    assert choose_schema(conn, long, "snapshot-4294967301", 7) == f"{long}@7"
    assert choose_schema(conn, lake.metadata_schema, "dev", 7) == f"{lake.metadata_schema}@7"
    with pytest.raises(BadRequest, match="too long"):
        choose_schema(conn, "x" * 62, "snapshot-99", 7)


def test_a_branch_of_another_version_is_neither_merged_nor_reset(lake: FreshLake) -> None:
    """It may lack what this version needs, which only the version that made it knows."""
    conn, schema = lake.psycopg(), lake.metadata_schema
    dev = make_branch(lake, "dev")
    conn.execute(f"""UPDATE "{dev.metadata_schema}".iceberg_setting SET value = 'other' WHERE key = 'made_by'""".encode())
    with pytest.raises(Unsupported, match="another version"):
        merge_branch(conn, schema, MergeRequest("dev"))
    with pytest.raises(Unsupported, match="another version"):
        reset_branch(conn, schema, "dev")
    assert delete_branch(conn, schema, "dev")


@pytest.mark.parametrize("table", ["iceberg_branch", "iceberg_branch_copy", "iceberg_spare"])
def test_a_role_that_may_insert_everywhere_gives_the_owner_no_statements(lake: FreshLake, table: str) -> None:
    """Triggers and claims run what these tables say with the rights of their owner."""
    make_branch(lake, "dev")
    conn, role = lake.psycopg(), f"writer_{uuid4().hex}"
    with conn.transaction(force_rollback=True):
        conn.execute(f"CREATE ROLE {role}; GRANT {role} TO CURRENT_USER".encode())
        conn.execute(f'GRANT USAGE ON SCHEMA "{lake.metadata_schema}" TO {role}'.encode())
        conn.execute(f'GRANT INSERT, SELECT ON ALL TABLES IN SCHEMA "{lake.metadata_schema}" TO {role}'.encode())
        conn.execute(f"SET LOCAL ROLE {role}".encode())
        conn.execute("INSERT INTO iceberg_change (kind, table_id) VALUES ('hide', 1)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="owner alone"):
            conn.execute(f"INSERT INTO {table} SELECT * FROM {table} WHERE false".encode())


@pytest.mark.whole
def test_a_branch_begins_at_an_older_snapshot_or_time(lake: FreshLake) -> None:
    """Its tables are what they were then. A snapshot whose rows lie together with newer ones is refused."""
    main = lake.duckdb()
    fill(main)
    main.execute("CREATE TABLE plain AS SELECT range AS i FROM range(40)")
    between = read_head(lake)
    main.execute("INSERT INTO plain FROM range(40, 80)")
    at, rows = between - 4, read_rows(lake, "t", between - 4)
    row = lake.psycopg().execute("SELECT snapshot_time FROM ducklake_snapshot WHERE snapshot_id = %s", (at,)).fetchone()
    assert row is not None and isinstance(row[0], datetime)
    main.execute("DELETE FROM t")
    main.execute("INSERT INTO t SELECT i, 'x' FROM range(300) r(i)")
    old, timed = make_branch(lake, BranchRequest("old", at=at)), make_branch(lake, BranchRequest("timed", at=row[0]))
    assert read_rows(old, "t") == read_rows(timed, "t") == rows
    with closing(old.duckdb()) as session:
        session.execute("INSERT INTO t SELECT i, 'o' FROM range(3000, 3040) r(i)")
        assert session.execute("SELECT min(id), max(id), count(*) FROM t").fetchone() == (0, 3039, len(rows) + 40)
    with pytest.raises(BadRequest, match="no snapshot"):
        make_branch(lake, BranchRequest("never", at=10_000))
    main.execute("CALL ducklake_merge_adjacent_files('lake')")
    with pytest.raises(BadRequest, match="put together"):
        make_branch(lake, BranchRequest("merged", at=between))
    assert read_rows(old, "t")[: len(rows)] == rows


def test_bounds_that_the_lake_has_tightened_are_not_an_older_branchs(lake: FreshLake) -> None:
    """A rewrite of DuckLake narrows the bounds of the table to its newest rows; those of an older snapshot are found by their files."""
    with closing(lake.duckdb()) as main:
        main.execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
        at = read_head(lake)
        main.execute("DELETE FROM t WHERE id >= 50")
        main.execute("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.01)")
    with closing(make_branch(lake, BranchRequest("old", at=at)).duckdb()) as session:
        assert session.execute("SELECT count(*), min(id), max(id) FROM t WHERE id > 60").fetchone() == (39, 61, 99)
        assert session.execute("SELECT min(id), max(id) FROM t").fetchone() == (0, 99)


@pytest.mark.whole
def test_a_branch_of_a_branch_is_a_member_of_its_own(lake: FreshLake) -> None:
    """It begins with what its parent shows, and stays when the parent changes, is cleaned up and deleted."""
    main = lake.duckdb()
    fill(main)
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("DELETE FROM t WHERE id < 50")
        session.execute("INSERT INTO t SELECT i, 'd' FROM range(1000, 1040) r(i)")
        session.execute("INSERT INTO t VALUES (2000, 'inlined')")
        session.execute("CREATE TABLE made AS SELECT range AS i FROM range(20)")
    rows, made = read_rows(dev, "t"), read_rows(dev, "made")
    child = make_branch(lake, BranchRequest("child", "dev"))
    assert (read_rows(child, "t"), read_rows(child, "made")) == (rows, made)
    with closing(child.duckdb()) as session:
        session.execute("INSERT INTO t SELECT i, 'c' FROM range(5000, 5020) r(i)")
        session.execute("DELETE FROM made WHERE i < 5")
    assert (read_rows(dev, "t"), read_rows(dev, "made")) == (rows, made)
    with closing(dev.duckdb()) as session:
        session.execute("DROP TABLE made")
        session.execute("DELETE FROM t")
    rows, made = read_rows(child, "t"), read_rows(child, "made")
    maintain(dev)
    assert (read_rows(child, "t"), read_rows(child, "made")) == (rows, made)
    assert delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
    for side in (lake, child):
        maintain(side)
        assert (read_rows(child, "t"), read_rows(child, "made")) == (rows, made)


def test_a_deleted_branch_leaves_no_file(lake: FreshLake) -> None:
    """What it alone reached goes with the lake's clean-up, also what the lake had kept for it; the lake keeps its own."""
    main = lake.duckdb()
    main.execute("CREATE TABLE t (id BIGINT)")
    for first in (0, 100, 200):
        main.execute(f"INSERT INTO t SELECT i FROM range({first}, {first + 100}) r(i)")
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t SELECT i FROM range(1000, 1100) r(i)")
        session.execute("DELETE FROM t WHERE id BETWEEN 100 AND 149")
        session.execute("CREATE TABLE made AS SELECT range AS i FROM range(50)")
    main.execute("INSERT INTO t SELECT i FROM range(300, 400) r(i)")
    maintain(dev)
    maintain(lake)
    rows = read_rows(lake, "t")
    assert not list_named(dev, "t") <= list_named(lake, "t")
    assert delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
    maintain(lake)
    assert read_rows(lake, "t") == rows
    assert list_objects(lake) == list_named(lake, "t")


@pytest.mark.whole
def test_a_deletion_lets_the_lake_go_on_beside_a_reader(lake: FreshLake) -> None:
    """A session that reads the branch holds its schema alone: the branch is gone at once, and the schema when the session has ended."""
    main = lake.duckdb()
    main.execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    dev = make_branch(lake, "dev")
    reader = dev.psycopg(autocommit=False)
    reader.execute("SELECT count(*) FROM ducklake_data_file")
    conn = lake.psycopg()
    assert not delete_branch(conn, lake.metadata_schema, "dev")
    assert list_branches(conn) == []
    # The name is free, and other branches go with their schemas.
    again = make_branch(lake, "dev")
    assert len(read_rows(again, "t")) == 100
    assert delete_branch(conn, lake.metadata_schema, "dev")
    left = "SELECT nspname FROM pg_namespace WHERE nspname LIKE '%@%' ORDER BY 1"
    assert conn.execute(left).fetchall() == [(dev.metadata_schema,)]
    main.execute("DELETE FROM t WHERE id < 50")
    maintain(lake)
    reader.rollback()
    assert make_branch(lake, "dev").metadata_schema == dev.metadata_schema


def test_a_readers_schema_that_is_being_made_goes_with_the_branch(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion waits until it is there, and drops it; none is made for a deleted branch, whose schema may still be in use."""
    dev, deleting, watching = make_branch(lake, "dev"), lake.psycopg(), lake.psycopg()
    member = ReadMember(dev.metadata_schema, lake.metadata_schema)
    waiting = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
    with ThreadPoolExecutor(1) as pool, dev.psycopg() as making:
        with making.transaction():
            install_readers(making, member)
            deleted = pool.submit(delete_branch, deleting, lake.metadata_schema, "dev")
            wait_for(lambda: watching.execute(waiting, [deleting.info.backend_pid]).fetchone() == (True,), "the deletion to wait")
        assert deleted.result()
    assert watching.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%@%'").fetchall() == []
    monkeypatch.setattr(registry, "AWAITED_MS", 1)
    make_branch(lake, "dev").psycopg(autocommit=False).execute("SELECT count(*) FROM ducklake_data_file")
    assert not delete_branch(deleting, lake.metadata_schema, "dev")
    with pytest.raises(NotFound, match="deleted"):
        install_readers(dev.psycopg(), member)


@pytest.mark.whole
def test_a_transaction_of_duckdb_goes_on_across_a_claim(lake: FreshLake) -> None:
    """What it commits afterwards is the lake's alone."""
    main = lake.duckdb()
    fill(main)
    make_branch(lake, "first")
    before = read_rows(lake, "t")
    main.execute("BEGIN")
    main.execute("DELETE FROM t WHERE id BETWEEN 30 AND 60")
    main.execute("UPDATE t SET v = 'open' WHERE id BETWEEN 61 AND 80")
    main.execute("INSERT INTO t SELECT i, 'open' FROM range(7000, 7030) r(i)")
    dev = make_branch(lake, "dev")
    main.execute("COMMIT")
    assert read_rows(dev, "t") == before
    assert len(read_rows(lake, "t")) == len(before) - 31 + 30
    with closing(dev.duckdb()) as session:
        session.execute("DELETE FROM t WHERE id BETWEEN 30 AND 60")
        assert session.execute("SELECT count(*) FROM t").fetchone() == (len(before) - 31,)


REMOVALS = {
    "rows": "DELETE FROM ducklake_data_file",
    "files": "INSERT INTO ducklake_files_scheduled_for_deletion SELECT data_file_id, path, true, now() FROM ducklake_data_file",
}


@pytest.mark.parametrize("has_branch", [False, True], ids=["first", "another"])
@pytest.mark.parametrize("removal", REMOVALS)
def test_a_cleanup_that_cannot_see_the_branch_fails(lake: FreshLake, removal: str, has_branch: bool) -> None:
    """A transaction that began before the claim removes nothing that the branch shows; Postgres makes it begin again."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    if has_branch:
        make_branch(lake, "first")
    late = lake.psycopg(autocommit=False)
    late.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    late.execute("SELECT count(*) FROM ducklake_snapshot")
    make_branch(lake, "dev")
    with pytest.raises(psycopg.errors.SerializationFailure):
        late.execute(REMOVALS[removal].encode())


def kill_at(lake: FreshLake, action: str, step: str, name: str = "dev") -> None:
    """Let another process make, merge or delete a branch, and kill it (SIGKILL) when it reaches a step."""
    command = [sys.executable, "-m", stopping.__name__, lake.dsn, lake.metadata_schema, action, name, step]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().strip() == stopping.REACHED
        finally:
            process.kill()


CREATION_STEPS = ["create_schema", "create_schema+", "_claim_in_turn", "_read_fork", "_copy_inlined+", "copy_notes+"]


@pytest.mark.parametrize("step", long_but(CREATION_STEPS, "copy_notes+"))
def test_a_killed_creation_leaves_nothing(lake: FreshLake, step: str) -> None:
    """All or nothing: neither schema nor row is left, the lake goes on at once, and the same name can be made afterwards."""
    main = lake.duckdb()
    main.execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    make_branch(lake, "first")
    conn = lake.psycopg()
    before = conn.execute(READ_STATE).fetchone()
    kill_at(lake, "create", step)
    main.execute("INSERT INTO t FROM range(100, 200)")
    assert conn.execute(READ_STATE).fetchone() == before
    assert [branch.name for branch in list_branches(conn)] == ["first"]
    assert read_rows(make_branch(lake, "dev"), "t") == read_rows(lake, "t")


@pytest.mark.whole
@pytest.mark.parametrize("step", long_but(["_schedule", "_schedule+"], "_schedule+"))
def test_a_deletion_killed_before_its_end_changes_nothing(lake: FreshLake, step: str) -> None:
    """The branch is whole, and can be deleted afterwards."""
    main = lake.duckdb()
    main.execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    dev = make_branch(lake, "dev")
    main.execute("DELETE FROM t WHERE id < 50")
    maintain(lake)
    kill_at(lake, "delete", step)
    assert len(read_rows(dev, "t")) == 100
    maintain(lake)
    maintain(dev)
    assert len(read_rows(dev, "t")) == 100
    assert delete_branch(lake.psycopg(), lake.metadata_schema, "dev")
    assert len(read_rows(lake, "t")) == 50


@pytest.mark.whole
def test_a_deletion_killed_after_its_transaction_is_finished_by_the_next_command(lake: FreshLake) -> None:
    """The branch is gone, its files go with the lake's clean-up, and the schema goes when a branch is made or deleted next."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(100)")
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t FROM range(100, 200)")
    kill_at(lake, "delete", "drop_deleted")
    conn = lake.psycopg()
    assert list_branches(conn) == []
    maintain(lake)
    assert list_objects(lake) == list_named(lake, "t")
    with pytest.raises(BadRequest):
        delete_branch(conn, lake.metadata_schema, "dev")
    assert conn.execute("SELECT to_regnamespace('\"lake@dev\"')").fetchone() == (None,)
