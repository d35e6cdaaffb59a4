"""The one transaction of a commit: the lock, the steps, and what happens when it ends badly."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from duckicelake.errors import CommitFailed, CommitStateUnknown, LakeBusy
from duckicelake.lake.changes import Change, format_changes, parse_changes, quote_names
from duckicelake.lake.connect import Lake
from duckicelake.lake.writing import transaction
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.rows import LakeHead, LakeStep, NewTag
from duckicelake.lake.writing.transaction import committing
from duckicelake.lake.writing.waiting_sessions import LockYielded
from tests.support.lakes import FreshLake


def step(head: LakeHead, *changes: Change, catalog: bool = False) -> LakeStep:
    """A step that only says something."""
    return LakeStep(changes, (), catalog, head.next_catalog_id, head.next_file_id + 1)


def read_snapshots(lake: FreshLake) -> list[tuple[int, int, int, str | None]]:
    """Id, schema version, next file id and changes of every lake snapshot."""
    return lake.psycopg().execute(
        "SELECT s.snapshot_id, s.schema_version, s.next_file_id, c.changes_made FROM ducklake_snapshot s"
        " JOIN ducklake_snapshot_changes c USING (snapshot_id) ORDER BY 1"
    ).fetchall()  # fmt: skip


def test_steps_become_consecutive_lake_snapshots(opened: Lake, lake: FreshLake) -> None:
    """Each with its own words; the schema version rises only where DuckDB must read the catalog again."""
    with committing(opened) as commit:
        head = commit.head
        last = write_steps(
            commit, [step(head, Change("altered_table", "1"), catalog=True), step(head), step(head, Change("created_schema", '"s"'))]
        )
    assert last == head.snapshot_id + 3
    made = read_snapshots(lake)[-3:]
    assert [row[0] for row in made] == [head.snapshot_id + n for n in (1, 2, 3)]
    assert [row[1] for row in made] == [head.schema_version + 1] * 3
    assert [row[3] for row in made] == ["altered_table:1", None, 'created_schema:"s"']


def test_times_ascend_whatever_the_clock_says(opened: Lake, lake: FreshLake) -> None:
    """A lake snapshot from the future does not make the next ones older than it."""
    conn = lake.psycopg()
    future = datetime.now(UTC) + timedelta(days=1)
    conn.execute("UPDATE ducklake_snapshot SET snapshot_time = %s", [future])
    with committing(opened) as commit:
        write_steps(commit, [step(commit.head), step(commit.head)])
    times = [row[0] for row in conn.execute("SELECT snapshot_time FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 3")]
    assert times == [future + timedelta(microseconds=2), future + timedelta(microseconds=1), future]


def test_an_error_leaves_nothing(opened: Lake, lake: FreshLake) -> None:
    """Rows written before it are gone, and the lock is free."""
    before = read_snapshots(lake)
    with pytest.raises(KeyError), committing(opened) as commit:
        rows = (NewTag(1, "k", "v"),)
        write_steps(commit, [LakeStep((), rows, True, commit.head.next_catalog_id, commit.head.next_file_id)])
        raise KeyError
    assert read_snapshots(lake) == before
    assert lake.psycopg().execute("SELECT count(*) FROM ducklake_tag").fetchone() == (0,)
    with committing(opened):
        pass


def test_a_held_lock_is_a_busy_lake(opened: Lake, lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the wait for it has its limit."""
    monkeypatch.setattr(transaction, "BEGIN_LOCKED", transaction.BEGIN_LOCKED.replace(b"10s", b"50ms"))
    holder = lake.psycopg(autocommit=False)
    holder.execute("LOCK TABLE ducklake_snapshot IN ROW EXCLUSIVE MODE")
    with pytest.raises(LakeBusy), committing(opened):
        raise AssertionError("the lock was held")
    holder.rollback()


def test_readers_are_not_held_up(opened: Lake, lake: FreshLake) -> None:
    """DuckDB reads while we commit."""
    session = lake.duckdb()
    session.execute("CREATE TABLE t AS SELECT 1 AS i")
    with committing(opened):
        assert session.execute("FROM t").fetchall() == [(1,)]


def test_a_connection_lost_in_commit_is_an_unknown_outcome(opened: Lake, lake: FreshLake) -> None:
    """Nobody can tell whether it landed."""
    with pytest.raises(CommitStateUnknown), committing(opened) as commit:
        write_steps(commit, [step(commit.head)])
        end_backend(lake, commit.conn)


@pytest.mark.parametrize("has_begun", [True, False], ids=["in the way", "broken"])
def test_a_commit_that_is_not_sent_says_that_nothing_was_done(opened: Lake, lake: FreshLake, has_begun: bool) -> None:
    """The look for others comes with COMMIT: whoever it finds is let pass, and when it fails itself nothing is committed either."""
    before, other = read_snapshots(lake), lake.psycopg(autocommit=False)
    with pytest.raises(LockYielded if has_begun else CommitFailed), committing(opened, yields=True) as commit:
        write_steps(commit, [step(commit.head)])
        opened.waiting_sessions.record([(other.info.backend_pid, "1/1", True)])
        if has_begun:
            other.execute("SELECT max(snapshot_id) FROM ducklake_snapshot")
        else:
            commit.conn.execute("ALTER TABLE ducklake_snapshot RENAME TO gone")
    assert read_snapshots(lake) == before
    other.rollback()
    with committing(opened, yields=True) as commit:
        write_steps(commit, [step(commit.head)])
    assert len(read_snapshots(lake)) == len(before) + 1


def end_backend(lake: FreshLake, conn: psycopg.Connection) -> None:
    """End a connection's server process, and wait until it has gone."""
    admin = lake.psycopg()
    admin.execute("SELECT pg_terminate_backend(%s, 10000)", [conn.info.backend_pid])


def test_changes_are_written_as_they_are_read() -> None:
    """Names with quotes, commas and colons too."""
    changes = [Change("created_table", quote_names('a"b', "c,d:e")), Change("inserted_into_table", "7")]
    text = format_changes(changes)
    assert text == 'created_table:"a""b"."c,d:e",inserted_into_table:7'
    assert list(parse_changes(text)) == changes
    assert format_changes([]) is None
