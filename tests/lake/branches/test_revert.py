"""Reverts of lake snapshots: a new snapshot takes back what one did, and leaves what others did since."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import duckdb
import pytest
from duckdb import DuckDBPyConnection

from duckicelake.errors import BadRequest, MergeConflicts, NotFound
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.merge import MergeRequest, merge_branch
from duckicelake.lake.branches.revert import RevertRequest, preview_revert, revert_snapshot
from tests.lake.branches.merge_cells import APPEND, COMPACT, FLUSH, REWRITE
from tests.lake.branches.repository import Rows, maintain, make_branch, read_head, read_rows
from tests.lake.branches.test_merge_table import dump, three_way
from tests.rest.branches.test_served import open_catalog
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack
from tests.support.tiers import whole_after

FIRST, PART = "DELETE FROM {t} WHERE id < 15", "DELETE FROM {t} WHERE id BETWEEN 15 AND 17"
HALF = REWRITE.replace("0.01", "0.5")
LATER = "INSERT INTO {t} SELECT i, 'l' FROM range(3000, 3030) r(i)"


@dataclass(frozen=True)
class Case:
    """Statements that are reverted, as one snapshot, and what follows before the revert. `before`: what precedes both.

    `conflict`: its kind; None if the table then has the rows of before with what followed. `rows`: what followed, if the columns changed.
    """

    name: str
    reverted: tuple[str, ...]
    since: tuple[str, ...] = ()
    conflict: str | None = None
    before: tuple[str, ...] = ()
    rows: Rows | None = None


CASES = (
    Case("append", (APPEND,)),
    Case("append_then_append", (APPEND,), (LATER,)),
    Case("append_then_delete_there", (APPEND,), ("DELETE FROM {t} WHERE id = 1003",), "change/delete"),
    Case("append_then_delete_elsewhere", (APPEND,), (FIRST,)),
    Case("append_then_compaction", (APPEND,), (LATER, COMPACT), "change/compaction"),
    Case("inlined_append", ("INSERT INTO {t} VALUES (901, 'b'), (902, 'b')",), ("INSERT INTO {t} VALUES (903, 'l')",)),
    Case("inlined_append_then_flush", ("INSERT INTO {t} VALUES (901, 'b')",), (FLUSH,), "change/compaction"),
    Case("inlined_append_then_delete", ("INSERT INTO {t} VALUES (901, 'b')",), ("DELETE FROM {t} WHERE id = 901",), "change/delete"),
    Case("delete", (FIRST,)),
    Case("delete_then_append", (FIRST,), (LATER,)),
    Case("delete_then_delete_there", (FIRST,), (PART,), "change/delete"),
    Case("delete_then_rewrite", (FIRST,), (REWRITE,), "change/delete"),
    Case("delete_then_rewrite_of_a_part", ("DELETE FROM {t} WHERE id < 15 OR id BETWEEN 100 AND 102",), (HALF,), "change/delete"),
    Case("delete_then_flush", ("DELETE FROM {t} WHERE id IN (3, 900)",), (FLUSH,)),
    Case("second_delete", (FIRST,), (), None, (PART,)),
    Case("inlined_delete", ("DELETE FROM {t} WHERE id = 3",), (LATER,)),
    Case("second_inlined_delete", ("DELETE FROM {t} WHERE id IN (3, 103)",), (), None, ("DELETE FROM {t} WHERE id = 4", FIRST)),
    Case("delete_of_inlined", ("DELETE FROM {t} WHERE id = 900",), (LATER,)),
    Case("delete_of_a_file", ("DELETE FROM {t} WHERE id < 50",), (LATER,), None, (PART, "DELETE FROM {t} WHERE id = 3")),
    Case("truncate", ("TRUNCATE {t}",), (LATER,), None, (FIRST, "DELETE FROM {t} WHERE id = 103")),
    Case("update", ("UPDATE {t} SET v = 'u' WHERE id < 15 OR id = 900",), (LATER,)),
    Case("overwrite", ("BEGIN", "DELETE FROM {t}", APPEND, "COMMIT"), (LATER,)),
    Case(
        "add_column", ("ALTER TABLE {t} ADD COLUMN n INTEGER DEFAULT 7",), ("INSERT INTO {t} VALUES (905, 'l', 1)",), None, (), [(905, "l")]
    ),
    Case("drop_column", ("ALTER TABLE {t} DROP COLUMN v",), (), None, (), []),
    Case("column_twice", ("ALTER TABLE {t} RENAME COLUMN v TO w",), ("ALTER TABLE {t} RENAME COLUMN w TO x",), "change/change"),
    Case("rename_column", ("ALTER TABLE {t} RENAME COLUMN v TO w",), ("INSERT INTO {t} VALUES (905, 'l')",)),
    Case("comment", ("COMMENT ON TABLE {t} IS 'b'",), (LATER,)),
    Case("partitioning", ("ALTER TABLE {t} SET PARTITIONED BY (v)",), (LATER,)),
    Case("sorting", ("ALTER TABLE {t} SET SORTED BY (v)",), (LATER,)),
    Case("drop", ("DROP TABLE {t}",), (), None, (FIRST, "DELETE FROM {t} WHERE id = 103")),
    Case("drop_then_namesake", ("DROP TABLE {t}",), ("CREATE TABLE {t} (i INTEGER)",), ""),
)


@dataclass
class Reverted:
    """What a case's table had before the reverted snapshot, after it, and at the revert; and what it has now."""

    number: int
    before: Rows
    after: Rows
    now: Rows
    made: int | None = None
    refusal: MergeConflicts | None = None


@dataclass
class Field:
    """A lake on which every case was played and reverted."""

    lake: FreshLake
    found: dict[str, Reverted]


def run(session: DuckDBPyConnection, name: str, statements: tuple[str, ...]) -> None:
    """Run statements on the table of a case."""
    for statement in statements:
        session.execute(statement.format(t=name))


def read(session: DuckDBPyConnection, name: str, at: int | None = None) -> Rows:
    """The rows of a table, none if there is no such table."""
    version = "" if at is None else f" AT (VERSION => {at})"
    try:
        return sorted(session.execute(f"FROM {name}{version}").fetchall(), key=repr)
    except duckdb.CatalogException:
        return []


def revert(lake: FreshLake, snapshot_id: int, ref: str = "main") -> int:
    """Revert a snapshot and return the one that does so."""
    return revert_snapshot(lake.psycopg(), lake.metadata_schema, RevertRequest(snapshot_id, ref)).snapshot_id


def play(lake: FreshLake, session: DuckDBPyConnection, case: Case) -> Reverted:
    """Make a case's table with ids 0-19 and 100-119 in a file each, and the inlined row 900; run its statements."""
    run(session, case.name, ("CREATE TABLE {t} (id BIGINT, v VARCHAR)",))
    for first in (0, 100):
        run(session, case.name, (f"INSERT INTO {{t}} SELECT i, 'o' FROM range({first}, {first + 20}) r(i)",))
    run(session, case.name, ("INSERT INTO {t} VALUES (900, 'i')", *case.before))
    before = read(session, case.name)
    run(session, case.name, case.reverted)
    number, after = read_head(lake), read(session, case.name)
    run(session, case.name, case.since)
    return Reverted(number, before, after, read(session, case.name))


@pytest.fixture(scope="module")
def field(stack: SharedStack) -> Iterator[Field]:
    """Every case, played first, and then reverted one by one."""
    with make_lake(stack) as lake, closing(lake.duckdb()) as session:
        found = {case.name: play(lake, session, case) for case in CASES}
        for case in CASES:
            each = found[case.name]
            unchanged = dump(lake, lake) if case.conflict is not None else []
            try:
                each.made = revert(lake, each.number)
            except MergeConflicts as error:
                each.refusal = error
                assert unchanged in ([], dump(lake, lake)), case.name
        yield Field(lake, found)


def expect(case: Case, each: Reverted) -> Rows:
    """The rows that a case's table has after the revert."""
    if case.conflict is not None:
        return each.now
    if case.rows is not None:
        return sorted([row for row in (*each.before, *case.rows)], key=repr)
    return three_way(each.after, each.now, each.before)


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_each_kind_of_change_is_reverted_or_refused(field: Field, case: Case) -> None:
    """The rows that came go, those that went come back, and what others did since stays."""
    each = field.found[case.name]
    if case.conflict is None:
        assert each.refusal is None, each.refusal
    else:
        assert each.refusal is not None
        assert case.conflict in [*(conflict.kind for conflict in each.refusal.conflicts), ""], each.refusal
    with closing(field.lake.duckdb()) as session:
        assert read(session, case.name) == expect(case, each)
        for at, rows in ((each.number - 1, each.before), (each.number, each.after), ((each.made or 1) - 1, each.now)):
            if at and "drop" not in case.name and "column" not in case.name:
                assert read(session, case.name, at) == rows, at


@pytest.mark.long
def test_iceberg_clients_read_the_same(field: Field) -> None:
    """Each table loads, with the rows that DuckDB reads, and the revert is a snapshot of its history."""
    with serve(make_settings(field.lake)) as server:
        catalog = open_catalog(server, field.lake, "lake")
        for case in CASES:
            table = catalog.load_table(("main", case.name))
            rows = sorted((tuple(row.values()) for row in table.scan().to_arrow().to_pylist()), key=repr)
            with closing(field.lake.duckdb()) as session:
                assert rows == read(session, case.name), case.name


@pytest.mark.long
def test_tables_go_on_after_a_revert(field: Field) -> None:
    """They are written, inlined too, and every maintenance leaves their rows; what was reverted is reverted again."""
    with closing(field.lake.duckdb()) as session:
        expected: dict[str, Rows] = {}
        for case in CASES:
            if case.name != "drop_then_namesake":
                new: Rows = [(990, "z"), *((number, "z") for number in range(4000, 4030))]
                session.execute(f"INSERT INTO {case.name} (id) VALUES (990)")
                session.execute(f"INSERT INTO {case.name} (id) FROM range(4000, 4030)")
                expected[case.name] = read(session, case.name)
                assert {row[0] for row in new} <= {row[0] for row in expected[case.name]}, case.name
    maintain(field.lake)
    with closing(field.lake.duckdb()) as session:
        for name, rows in expected.items():
            assert read(session, name) == rows, name


def test_a_merge_is_reverted_and_the_revert_too(lake: FreshLake) -> None:
    """On the lake: tables that it made go, rows that it deleted come back; then all of it comes again."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT range AS id FROM range(40)")
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        for statement in ("INSERT INTO t FROM range(100, 130)", "DELETE FROM t WHERE id < 15", "CREATE TABLE made AS SELECT 1 AS i"):
            session.execute(statement)
    merged = merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev")).snapshot_id
    assert merged is not None
    with_merge = read_rows(lake, "t")
    request = RevertRequest(merged)
    assert preview_revert(lake.psycopg(), lake.metadata_schema, request).tables == {"main.t": ["delete", "append"], "main.made": ["drop"]}
    assert read_rows(lake, "t") == with_merge
    made = revert(lake, merged)
    assert read_rows(lake, "t") == [(number,) for number in range(40)]
    with pytest.raises(duckdb.CatalogException):
        read_rows(lake, "made")
    revert(lake, made)
    assert (read_rows(lake, "t"), read_rows(lake, "made")) == (with_merge, [(1,)])
    assert (read_rows(dev, "t"), read_rows(dev, "made")) == (with_merge, [(1,)])


def test_a_branch_is_reverted_alone(lake: FreshLake) -> None:
    """What it did itself, and what the lake did before; the merge brings the revert to the lake."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT range AS id FROM range(40)")
        session.execute("DELETE FROM t WHERE id < 15")
        session.execute("DELETE FROM t WHERE id = 20")
    deleted = read_head(lake)
    dev = make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t FROM range(100, 130)")
        session.execute("INSERT INTO t VALUES (500)")
    for snapshot_id in (read_head(dev), read_head(dev) - 1, deleted):
        revert(lake, snapshot_id, "dev")
    assert read_rows(dev, "t") == [(number,) for number in range(15, 40)]
    assert len(read_rows(lake, "t")) == 24
    merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev"))
    for side in (lake, dev):
        maintain(side)
    assert read_rows(lake, "t") == read_rows(dev, "t") == [(number,) for number in range(15, 40)]


@pytest.mark.whole
def test_a_branch_keeps_the_partitioning_of_a_table_that_came_back(lake: FreshLake) -> None:
    """The lake has two rows of one partitioning then: only the one that the lake deletes becomes the branch's own."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t (id BIGINT, k INTEGER)")
        session.execute("ALTER TABLE t SET PARTITIONED BY (k)")
        session.execute("INSERT INTO t SELECT range, range % 2 FROM range(40)")
        session.execute("DROP TABLE t")
    revert(lake, read_head(lake))
    dev = make_branch(lake, "dev")
    lake.psycopg().execute("DELETE FROM ducklake_partition_info WHERE end_snapshot IS NOT NULL")
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t SELECT range, 7 FROM range(30)")
    query = f"""SELECT count(*) FROM "{dev.metadata_schema}".ducklake_partition_info WHERE end_snapshot IS NULL"""
    assert lake.psycopg().execute(query.encode()).fetchone() == (1,)
    assert (len(read_rows(dev, "t")), len(read_rows(lake, "t"))) == (70, 40)


ROWS = "CREATE TABLE {t} AS SELECT i AS id, 'o' AS v FROM range(40) r(i)"
SOME = ("CREATE TABLE {t} (id INTEGER NOT NULL, v VARCHAR)",)
LAST, WIDE = "RESET SORTED BY", "INSERT INTO {t} SELECT 5000000000 + i, 'w' FROM range(30) r(i)"
BREAKING = (
    Case("made_then_partitioned", (ROWS,), ("ALTER TABLE {t} SET PARTITIONED BY (v)",), "create/change"),
    Case("made_then_sorted", (ROWS,), ("ALTER TABLE {t} SET SORTED BY (v)",), "create/change"),
    Case("made_then_described", (ROWS,), ("COMMENT ON COLUMN {t}.v IS 'c'",), "create/change"),
    Case(
        "unsorted_then_dropped",
        (f"ALTER TABLE {{t}} {LAST}",),
        ("DROP TABLE {t}",),
        "change/drop",
        (ROWS, "ALTER TABLE {t} SET SORTED BY (v)"),
    ),
    Case("emptied_then_dropped", ("TRUNCATE {t}",), ("DROP TABLE {t}",), "change/drop", (ROWS,)),
    Case("widened_then_files", ("ALTER TABLE {t} ALTER id SET DATA TYPE BIGINT",), (WIDE,), "change/append", SOME),
    Case(
        "widened_then_row",
        ("ALTER TABLE {t} ALTER id SET DATA TYPE BIGINT",),
        ("INSERT INTO {t} VALUES (5000000000, 'w')",),
        "change/append",
        SOME,
    ),
    Case("optional_then_null", ("ALTER TABLE {t} ALTER id DROP NOT NULL",), ("INSERT INTO {t} (v) VALUES ('n')",), "change/append", SOME),
    Case("required_dropped_then_row", ("ALTER TABLE {t} DROP COLUMN id",), ("INSERT INTO {t} VALUES ('n')",), "change/append", SOME),
    Case("namesake_of_a_column", ("ALTER TABLE {t} DROP COLUMN v",), ("ALTER TABLE {t} ADD COLUMN V INTEGER",), "two columns", (ROWS,)),
    Case(
        "field_of_an_added_column",
        ("ALTER TABLE {t} ADD COLUMN s STRUCT(a INTEGER)",),
        ("ALTER TABLE {t} ADD COLUMN s.b INTEGER",),
        "field b",
        (ROWS,),
    ),
    Case(
        "sorted_by_an_added_column", ("ALTER TABLE {t} ADD COLUMN s INTEGER",), ("ALTER TABLE {t} SET SORTED BY (s)",), "sorted by", (ROWS,)
    ),
    Case(
        "sorted_by_a_dropped_column",
        (f"ALTER TABLE {{t}} {LAST}",),
        ("ALTER TABLE {t} DROP COLUMN v",),
        "sorted by",
        (ROWS, "ALTER TABLE {t} SET SORTED BY (v)"),
    ),
)


@pytest.mark.whole
def test_no_revert_leaves_a_lake_that_cannot_be_read(lake: FreshLake) -> None:
    """DuckDB attaches no lake with a partitioning of a dropped table or two columns of a name, and reads no wide value as a narrow one."""
    numbers: dict[str, int] = {}
    with closing(lake.duckdb()) as session:
        for case in BREAKING:
            run(session, case.name, (*case.before, *case.reverted))
            numbers[case.name] = read_head(lake)
            run(session, case.name, case.since)
    unchanged = dump(lake, lake)
    for case in BREAKING:
        with pytest.raises(MergeConflicts) as refused:
            revert(lake, numbers[case.name])
        assert case.conflict is not None
        assert case.conflict in str(refused.value), case.name
    assert dump(lake, lake) == unchanged


AGAIN = (
    Case("emptied", ("TRUNCATE {t}",), (), None, (ROWS,)),
    Case("file", ("DELETE FROM {t}",), (), None, (ROWS,)),
    Case("inlined", ("DELETE FROM {t} WHERE id = 900",), (), None, (ROWS, "INSERT INTO {t} VALUES (900, 'i')")),
    Case("compacted", ("DELETE FROM {t}",), (), None, (ROWS,)),
)


def test_rows_come_back_once(lake: FreshLake) -> None:
    """A revert that is asked for again is refused, also after a compaction, until the first one is reverted."""
    for case in AGAIN:
        with closing(lake.duckdb()) as session:
            run(session, case.name, case.before)
            before = read(session, case.name)
            run(session, case.name, case.reverted)
        number = read_head(lake)
        made = revert(lake, number)
        if case.name == "compacted":
            with closing(lake.duckdb()) as session:
                run(session, case.name, (LATER,))
                session.execute("CALL ducklake_merge_adjacent_files('lake')")
                before = read(session, case.name)
        with pytest.raises(MergeConflicts):
            revert(lake, number)
        assert read_rows(lake, case.name) == sorted(before), case.name
        if case.name != "compacted":
            revert(lake, made)
            revert(lake, number)
            assert read_rows(lake, case.name) == sorted(before), case.name


@pytest.mark.whole
def test_rows_that_a_branch_brought_back_come_back_once(lake: FreshLake) -> None:
    """The branch's revert is merged; the lake has no snapshot of it, but the rows."""
    with closing(lake.duckdb()) as session:
        run(session, "t", (ROWS, "TRUNCATE {t}"))
    number = read_head(lake)
    dev = make_branch(lake, "dev")
    revert(lake, number, "dev")
    merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev"))
    for ref in ("main", "dev"):
        with pytest.raises(MergeConflicts):
            revert(lake, number, ref)
    assert (len(read_rows(lake, "t")), len(read_rows(dev, "t"))) == (40, 40)


@pytest.mark.parametrize("ref", whole_after(1, ["main", "dev"]))
def test_a_table_whose_files_are_being_deleted_does_not_come_back(lake: FreshLake, ref: str) -> None:
    """Before they are, it does, and they stay."""
    member = lake if ref == "main" else make_branch(lake, ref)
    with closing(member.duckdb()) as session:
        run(session, "t", (ROWS, "DROP TABLE {t}"))
    number, conn, schema = read_head(member), member.psycopg(), member.metadata_schema
    insert = f"""INSERT INTO "{schema}".iceberg_purge (table_id, table_uuid, locations, due_at)
                 SELECT DISTINCT table_id, table_uuid, ARRAY['x'], 'infinity'::timestamptz FROM "{schema}".ducklake_table
                  WHERE table_name = 't'"""
    conn.execute(insert.encode())
    revert(member if ref == "main" else lake, number, ref)
    with closing(member.duckdb()) as session:
        assert len(read(session, "t")) == 40
        run(session, "t", ("DROP TABLE {t}",))
    conn.execute(insert.replace("'infinity'::timestamptz", "now()").encode())
    with pytest.raises(MergeConflicts, match="being deleted"):
        revert(member if ref == "main" else lake, read_head(member), ref)


def test_a_snapshot_after_an_expired_one_is_not_reverted(lake: FreshLake) -> None:
    """Rows that were live only in the expired one are gone."""
    with closing(lake.duckdb()) as session:
        run(session, "t", (ROWS, "INSERT INTO {t} SELECT i, 'n' FROM range(200, 230) r(i)", "UPDATE {t} SET v = 'u' WHERE id >= 200"))
        head = read_head(lake)
        session.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{head - 1}])")
    with pytest.raises(BadRequest, match="expired"):
        revert(lake, head)
    assert len(read_rows(lake, "t")) == 70


def test_what_cannot_be_reverted_is_refused(lake: FreshLake) -> None:
    """Snapshots that are not there, the first one, compactions, tags and unknown branches."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT range AS id FROM range(40)")
        session.execute("INSERT INTO t FROM range(40)")
        session.execute("CALL ducklake_merge_adjacent_files('lake')")
    make_branch(lake, BranchRequest("v1", is_tag=True))
    head = read_head(lake)
    cases = ((99, "main", NotFound), (0, "main", BadRequest), (head, "main", BadRequest), (head, "v1", BadRequest), (1, "x", NotFound))
    for snapshot_id, ref, error in cases:
        with pytest.raises(error):
            revert(lake, snapshot_id, ref)
    assert read_head(lake) == head
