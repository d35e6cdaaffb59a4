"""What a merge leaves alone or refuses although each side could have done it: protected objects, named columns, parts merged before."""

from contextlib import closing

import pytest

from duckicelake.errors import MergeConflicts, Unsupported
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.merge import FF, MergeRequest, merge_branch
from duckicelake.lake.branches.merge_rules import OURS, Resolution
from tests.lake.branches.repository import make_branch, read_head, read_rows
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

EXPIRE = "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)"
ADD_TAG = (
    "INSERT INTO ducklake_tag (object_id, begin_snapshot, key, value) VALUES (%s, (SELECT max(snapshot_id) FROM ducklake_snapshot), %s, %s)"
)
ADD_LOCATION = """
INSERT INTO iceberg_table (table_id, location, format_version, sequence_base, metadata_version, lake_snapshot_id, change_id, token,
                           updated_ms, last_column_id, last_partition_id, is_native, current_snapshot_id)
VALUES (%s, %s, 2, 0, 1, -1, -1, '', 0, 1, 999, true, -1)
"""
ADD_REF = "INSERT INTO iceberg_ref (table_id, name, snapshot_id, type) VALUES (%s, %s, 1, %s)"
ADD_STAGED = "INSERT INTO iceberg_kept (table_id, snapshot_id, base_snapshot_id, json, manifest_list) VALUES (%s, 2, 1, %s, '')"
SELECT_ID = "SELECT {0}_id FROM ducklake_{0} WHERE {0}_name = %s AND end_snapshot IS NULL"


def run(side: FreshLake, *statements: str) -> None:
    """Run statements in a new session."""
    with closing(side.duckdb()) as session:
        for statement in statements:
            session.execute(statement)


def set_property(side: FreshLake, kind: str, name: str, key: str, value: str) -> None:
    """Set a property of a table or schema, as the commits of Iceberg clients do."""
    conn = side.psycopg()
    row = conn.execute(SELECT_ID.format(kind).encode(), (name,)).fetchone()
    assert row is not None
    conn.execute(ADD_TAG.encode(), (row[0], key, value))


def find_table(side: FreshLake, name: str) -> int:
    """Return the id of a table."""
    [(table_id,)] = side.psycopg().execute(SELECT_ID.format("table").encode(), (name,)).fetchall()
    return table_id


def read_properties(side: FreshLake, schema: str) -> dict[str, str]:
    """Return the properties of a schema."""
    query = """
        SELECT t.key, t.value FROM ducklake_tag t JOIN ducklake_schema s ON s.schema_id = t.object_id
         WHERE s.schema_name = %s AND s.end_snapshot IS NULL AND t.end_snapshot IS NULL"""
    return dict(side.psycopg().execute(query, (schema,)).fetchall())


def merge(lake: FreshLake, name: str = "dev", *, ours: bool = False) -> None:
    """Merge a branch."""
    request = MergeRequest(name, resolution=Resolution(OURS)) if ours else MergeRequest(name)
    merge_branch(lake.psycopg(), lake.metadata_schema, request)


def list_conflicts(lake: FreshLake) -> list[tuple[str, str]]:
    """Return the kind and the name of all conflicts of a merge that is refused."""
    with pytest.raises(MergeConflicts) as refused:
        merge(lake)
    return sorted((each.kind, each.name) for each in refused.value.conflicts)


def test_what_the_lake_protects_is_not_dropped(lake: FreshLake) -> None:
    """A table, one of a protected namespace, and a namespace; other tables of the merge are left out with ours alone."""
    run(lake, "CREATE SCHEMA s", "CREATE SCHEMA empty", "CREATE SCHEMA free")
    run(lake, *(f"CREATE TABLE {name} AS SELECT 1 AS i" for name in ("t", "s.u", "free.v", "w")))
    dev = make_branch(lake, "dev")
    for kind, name in (("table", "t"), ("schema", "s"), ("schema", "empty")):
        set_property(lake, kind, name, "drop-protection", "True")
    run(dev, "DROP TABLE t", "DROP TABLE s.u", "DROP SCHEMA empty", "DROP TABLE free.v", "DROP SCHEMA free")
    assert list_conflicts(lake) == [("drop/protected", name) for name in ("empty", "main.t", "s.u")]
    merge(lake, ours=True)
    assert read_rows(lake, "t") == read_rows(lake, "s.u") == read_rows(dev, "t") == [(1,)]
    run(lake, "CREATE TABLE empty.x (i INT)", "CREATE SCHEMA free")


@pytest.mark.whole
def test_a_column_that_the_other_side_partitions_or_sorts_by_is_not_changed(lake: FreshLake) -> None:
    """Neither dropped nor retyped, nor renamed if a sort order names it; a rename is no matter to a partitioning."""
    tables = {
        "a": ("SET PARTITIONED BY (k)", "DROP COLUMN k", "partitioning/schema"),
        "b": ("DROP COLUMN k", "SET PARTITIONED BY (k)", "schema/partitioning"),
        "c": ("SET PARTITIONED BY (k)", "ALTER k TYPE BIGINT", "partitioning/schema"),
        "d": ("SET SORTED BY (k)", "RENAME COLUMN k TO l", "sorting/schema"),
        "e": ("RENAME COLUMN k TO l", "SET SORTED BY (k)", "schema/sorting"),
        "f": ("SET PARTITIONED BY (k)", "RENAME COLUMN k TO l", None),
        "g": ("SET SORTED BY (i)", "RENAME COLUMN k TO l", None),
        "h": ("SET PARTITIONED BY (k)", "ADD COLUMN m INT", None),
    }
    run(lake, *(f"CREATE TABLE {name} (i INT, k INT)" for name in tables))
    dev = make_branch(lake, "dev")
    for side, place in ((dev, 0), (lake, 1)):
        run(side, *(f"ALTER TABLE {name} {case[place]}" for name, case in tables.items()))
    assert list_conflicts(lake) == sorted((case[2], f"main.{name}") for name, case in tables.items() if case[2] is not None)
    merge(lake, ours=True)
    run(lake, *(f"INSERT INTO {name} FROM {name}" for name in tables), "INSERT INTO f SELECT i, i FROM range(30) r(i)")
    assert len(read_rows(lake, "f")) == 30


def test_properties_of_a_namespace_that_both_sides_made_are_merged_by_key(lake: FreshLake) -> None:
    """What one side has is there afterwards; two values of one key are a conflict, and with ours the lake's stays."""
    dev = make_branch(lake, "dev")
    for side, word in ((lake, "lake"), (dev, "dev")):
        run(side, "CREATE SCHEMA s", f"CREATE TABLE s.{word} AS SELECT 1 AS i")
        for key, value in (("both", "same"), (word, "x"), ("other", word)):
            set_property(side, "schema", "s", key, value)
    assert list_conflicts(lake) == [("property/property", "s")]
    merge(lake, ours=True)
    assert read_properties(lake, "s") == read_properties(dev, "s") == {"both": "same", "lake": "x", "dev": "x", "other": "lake"}
    assert read_rows(lake, "s.dev") == [(1,)]


@pytest.mark.parametrize("location", whole_after(1, ["s3://b/one", "s3://b/one/two/"]))
def test_tables_of_both_sides_do_not_share_a_location(lake: FreshLake, location: str) -> None:
    """Clients chose it on either side, where it was free: each table would write over the other's metadata."""
    dev = make_branch(lake, "dev")
    for side, name, chosen in ((lake, "t", "s3://b/one"), (dev, "u", location)):
        run(side, f"CREATE TABLE {name} (i INT)")
        row = side.psycopg().execute(SELECT_ID.format("table").encode(), (name,)).fetchone()
        assert row is not None
        side.psycopg().execute(ADD_LOCATION.encode(), (row[0], chosen))
    head = read_head(lake)
    with pytest.raises(MergeConflicts, match="have one location"):
        merge(lake)
    assert read_head(lake) == head


def test_a_merged_table_goes_on_after_the_metadata_files_at_its_location(lake: FreshLake) -> None:
    """A dropped table of the lake has used the location that the merge gives to the branch's table."""
    run(lake, "CREATE TABLE t (i INT)")
    [(table_id,)] = lake.psycopg().execute(SELECT_ID.format("table").encode(), ("t",)).fetchall()
    lake.psycopg().execute(ADD_LOCATION.encode(), (table_id, f"{lake.iceberg_path}main/t"))
    lake.psycopg().execute("UPDATE iceberg_table SET metadata_version = 9")
    run(lake, "DROP TABLE t")
    dev = make_branch(lake, "dev")
    run(dev, "CREATE TABLE u (i INT)")
    [(table_id,)] = dev.psycopg().execute(SELECT_ID.format("table").encode(), ("u",)).fetchall()
    dev.psycopg().execute(ADD_LOCATION.encode(), (table_id, f"{dev.iceberg_path}main/t"))
    merge(lake)
    found = lake.psycopg().execute("SELECT location, metadata_version FROM iceberg_table ORDER BY table_id").fetchall()
    assert found == [(f"{lake.iceberg_path}main/t", 9), (f"{lake.iceberg_path}main/t", 9)]


@pytest.mark.whole
def test_branches_of_one_tag_are_all_merged(lake: FreshLake) -> None:
    """The tag has changed nothing, so nothing of it is in the lake after the first merge."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    make_branch(lake, BranchRequest("v1", is_tag=True))
    for place, name in enumerate(("one", "two"), 1):
        run(make_branch(lake, BranchRequest(name, "v1")), f"INSERT INTO t FROM range({place}00, {place}20)")
    for name in ("two", "one"):
        merge(lake, name)
    assert len(read_rows(lake, "t")) == 80


@pytest.mark.parametrize(
    "statement", whole_after(1, ["INSERT INTO t VALUES (500)", "CREATE TABLE u (i INT)", "DELETE FROM t WHERE id = 3"])
)
def test_a_part_is_not_merged_twice_after_its_snapshots_have_expired(lake: FreshLake, statement: str) -> None:
    """A branch of a branch brings its parent's rows along, also if the lake snapshots that made them are gone."""
    run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    run(dev, statement)
    child = make_branch(lake, BranchRequest("child", "dev"))
    run(child, "INSERT INTO t FROM range(100, 120)", EXPIRE)
    merge(lake, "child")
    rows = read_rows(lake, "t")
    with pytest.raises(Unsupported, match="merged since"):
        merge(lake, "dev")
    assert read_rows(lake, "t") == rows


def test_refs_and_staged_snapshots_of_tables_are_not_lost(lake: FreshLake) -> None:
    """On tables that have no other change, and on new ones, in both directions; those of the lake do not stand against it."""
    run(lake, *(f"CREATE TABLE {name} AS SELECT 1 AS i" for name in ("t", "u", "v", "published", "of_the_lake")))
    lake.psycopg().execute(ADD_REF, (find_table(lake, "of_the_lake"), "v1", "tag"))
    dev = make_branch(lake, "dev")
    run(dev, "CREATE TABLE made AS SELECT 1 AS i", "DROP TABLE v", "INSERT INTO of_the_lake VALUES (2)")
    for name, kind in (("t", "branch"), ("made", "tag"), ("v", "tag")):
        dev.psycopg().execute(ADD_REF, (find_table(lake if name == "v" else dev, name), "audit", kind))
    for name in ("u", "published"):
        dev.psycopg().execute(ADD_STAGED, (find_table(dev, name), '{"summary": {"wap.id": "w"}}'))
    dev.psycopg().execute("INSERT INTO iceberg_move VALUES (%s, 9, 2)", (find_table(dev, "published"),))
    run(lake, "CREATE TABLE other AS SELECT 1 AS i")
    refused = [("refs/any", f"main.{name}") for name in ("made", "t", "u")]
    assert list_conflicts(lake) == refused
    with pytest.raises(MergeConflicts, match="refs/any"):
        merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("main", "dev"))
    dev.psycopg().execute("DELETE FROM iceberg_kept")
    dev.psycopg().execute("DELETE FROM iceberg_ref WHERE table_id <> %s", (find_table(dev, "t"),))
    merge(lake, ours=True)
    assert read_rows(lake, "made") == read_rows(dev, "other") == [(1,)]


def test_a_branch_that_has_refs_alone_has_changes(lake: FreshLake) -> None:
    """So the lake is not merged into it as a fast-forward, which would forget them."""
    run(lake, "CREATE TABLE t AS SELECT 1 AS i")
    dev = make_branch(lake, "dev")
    dev.psycopg().execute(ADD_REF, (find_table(dev, "t"), "audit", "branch"))
    run(lake, "INSERT INTO t VALUES (2)")
    with pytest.raises(MergeConflicts, match="changes of its own"):
        merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("main", "dev", FF))
    assert dev.psycopg().execute("SELECT name FROM iceberg_ref").fetchall() == [("audit",)]


def test_definitions_of_both_sides_are_a_conflict(lake: FreshLake) -> None:
    """Whatever the lake changed of the definition; the same on both sides is none, and what the lake left alone is taken."""
    lakes: dict[str, int | str] = {"sorted": 3, "equal": 2, "widened": "ALTER TABLE {} ADD COLUMN n INT", "dropped": "DROP TABLE {}"}
    run(lake, *(f"CREATE TABLE {name} AS SELECT 1 AS i" for name in ("step", "free", *lakes)))
    dev = make_branch(lake, "dev")
    for name in ("free", *lakes):
        add_order(dev, name, 2)
    for name, change in lakes.items():
        if isinstance(change, int):
            add_order(lake, name, change)
        else:
            run(lake, change.format(name))
    refused = [("change/drop", "dropped"), ("definition/definition", "sorted"), ("definition/definition", "widened")]
    assert list_conflicts(lake) == [(kind, f"main.{name}") for kind, name in refused]
    merge(lake, ours=True)
    query = """
        SELECT t.table_name, s.order_id FROM iceberg_shape s JOIN ducklake_table t USING (table_id)
         WHERE t.end_snapshot IS NULL ORDER BY 1"""
    assert lake.psycopg().execute(query).fetchall() == [("equal", 2), ("free", 2), ("sorted", 3)]


def add_order(side: FreshLake, name: str, order_id: int) -> None:
    """Note a sort order of a client, as its commit does."""
    conn, table_id = side.psycopg(), find_table(side, name)
    run(side, "INSERT INTO step VALUES (1)")
    conn.execute("INSERT INTO iceberg_schema VALUES (%s, 0, '{}') ON CONFLICT DO NOTHING", (table_id,))
    conn.execute("INSERT INTO iceberg_sort_order VALUES (%s, %s, %s)", (table_id, order_id, f"[{order_id}]"))
    conn.execute("INSERT INTO iceberg_shape SELECT %s, max(snapshot_id), 0, 0, %s FROM ducklake_snapshot", (table_id, order_id))
