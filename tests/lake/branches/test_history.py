"""The log of a branch, and the difference between two members of a repository."""

from contextlib import closing

import pytest

from duckicelake.commands.branches import format_changes, format_entry
from duckicelake.errors import NotFound
from duckicelake.lake.branches.diff import Diff, ObjectChange, read_diff
from duckicelake.lake.branches.log import describe_change, read_log
from duckicelake.lake.branches.registry import get_ref_schema
from tests.lake.branches.repository import fill, make_branch, read_head
from tests.support.lakes import FreshLake


def compare(old: FreshLake, new: FreshLake) -> Diff:
    """The difference between two members."""
    return read_diff(old.psycopg(), old.metadata_schema, new.metadata_schema)


def test_the_log_says_who_did_what_to_which_table(lake: FreshLake) -> None:
    """Newest first; a table has the name of that time; the log of a branch goes on from the lake's."""
    with closing(lake.duckdb()) as main:
        main.execute("CREATE TABLE t AS SELECT range AS id FROM range(50)")
        main.execute("BEGIN")
        main.execute("INSERT INTO t FROM range(100, 200)")
        main.execute("CALL lake.set_commit_message('ann', 'more rows')")
        main.execute("COMMIT")
        head = read_head(lake)
        dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("ALTER TABLE t RENAME TO u")
        session.execute("DELETE FROM u WHERE id < 20")
        session.execute("UPDATE u SET id = id + 1 WHERE id > 150")
    entries = read_log(dev.psycopg(), dev.metadata_schema, limit=100)
    shown = [(each.author, each.message, [(op.operation, op.name) for op in each.operations]) for each in entries]
    message = f"branch dev of main at snapshot {head}"
    assert shown[:5] == [
        (None, None, [("overwrite", "main.u")]),
        (None, None, [("delete", "main.u")]),
        (None, None, [("create", "main.u")]),
        ("duckicelake", message, []),
        ("duckicelake", message, []),
    ]
    assert shown[5:7] == [("ann", "more rows", [("append", "main.t")]), (None, None, [("create", "main.t"), ("append", "main.t")])]
    assert [each.snapshot_id for each in read_log(dev.psycopg(), dev.metadata_schema, limit=1, before=head + 1)] == [head]
    lines = format_entry(entries[5])
    assert lines[0].startswith(f"{head}  20") and lines[0].endswith("+00:00  ann: more rows") and lines[1] == "    append main.t"


def test_a_difference_counts_files_and_rows(lake: FreshLake) -> None:
    """Appends, deletes, updates, inlined rows and deletes of one side; the reverse difference is the mirror image."""
    with closing(lake.duckdb()) as main:
        fill(main)
    dev = make_branch(lake, "dev")
    assert compare(lake, dev).is_empty and compare(dev, lake).is_empty
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t SELECT i, 'x' FROM range(1000, 1060) r(i)")
        session.execute("DELETE FROM t WHERE id BETWEEN 100 AND 139")
        session.execute("INSERT INTO t VALUES (2000, 'inlined')")
        session.execute("DELETE FROM t WHERE id IN (900, 250)")
        session.execute("UPDATE s.parts SET n = n + 1000 WHERE k = 1")
    there, back = compare(lake, dev), compare(dev, lake)
    assert [(each.change, each.name) for each in there.tables] == [("changed", "main.t"), ("changed", "s.parts")]
    t, parts = there.tables
    assert (t.files_added, t.files_removed, t.rows_added, t.rows_deleted) == (1, 0, 61, 42)
    assert (parts.rows_added, parts.rows_deleted) == (20, 20)
    assert [(each.rows_added, each.rows_deleted) for each in back.tables] == [(42, 61), (20, 20)]


def test_a_difference_names_what_was_made_dropped_renamed_and_changed(lake: FreshLake) -> None:
    """Namespaces, tables, views, columns, properties and layouts."""
    with closing(lake.duckdb()) as main:
        fill(main)
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        for statement in (
            "CREATE SCHEMA made",
            "CREATE TABLE made.fresh AS SELECT range AS i FROM range(40)",
            "DROP TABLE empty",
            "CREATE OR REPLACE TABLE s.parts AS SELECT 1 AS k FROM range(30)",
            "CREATE OR REPLACE VIEW seen AS SELECT v FROM t",
            "CREATE VIEW other AS SELECT 1 AS x",
            "ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 7",
            "ALTER TABLE t RENAME COLUMN v TO w",
            "ALTER TABLE t RENAME TO t2",
            "COMMENT ON TABLE t2 IS 'd'",
            "ALTER TABLE t2 SET PARTITIONED BY (n)",
        ):
            session.execute(statement)
    found = compare(lake, dev)
    assert [(each.change, each.name) for each in found.namespaces] == [("made", "made")]
    assert [(each.change, each.name, each.old_name) for each in found.tables] == [
        ("made", "made.fresh", None),
        ("dropped", "main.empty", None),
        ("renamed", "main.t2", "main.t"),
        ("replaced", "s.parts", None),
    ]
    assert [(each.change, each.name) for each in found.views] == [("made", "main.other"), ("replaced", "main.seen")]
    fresh, _, t2, parts = found.tables
    assert [(each.change, each.name) for each in t2.columns] == [("renamed", "w"), ("made", "n")]
    assert (t2.properties, t2.layout) == (["comment"], ["partitioning"])
    assert (fresh.rows_added, parts.rows_added, parts.rows_deleted) == (40, 30, 60)
    assert describe_change(t2)["columns"][1] == {"change": "made", "name": "n", "after": "int32 DEFAULT 7 (rows before: 7)"}
    lines = format_changes("table", found.tables)
    assert "renamed table main.t2 (was main.t)" in lines and "    comment changed" in lines


def test_an_unknown_branch_has_no_log(lake: FreshLake) -> None:
    """The message says which names there may be."""
    with pytest.raises(NotFound, match="branch list"):
        get_ref_schema(lake.psycopg(), lake.metadata_schema, "nothing")
    assert get_ref_schema(lake.psycopg(), lake.metadata_schema, "main") == lake.metadata_schema
    assert format_changes("view", [ObjectChange("made", "s.v")]) == ["made view s.v"]
