"""Numbers once given out: alice and bob are two servers on one lake."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duckicelake.errors import LakeMoved
from duckicelake.lake.connect import Lake, writing
from duckicelake.lake.notes import METADATA_LOG_MAX, VersionRequest, assign_version, read_notes
from duckicelake.lake.rows import JsonNote, Position, TableNote, TableNotes
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

NOTE = TableNote(7, "s3://b/i/t", 2, 0, 0, -1, -1, "", 0)
SELECT_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def ask(at: int, token: str, schemas: Sequence[JsonNote] = (), specs: Sequence[JsonNote] = (), note: TableNote = NOTE) -> VersionRequest:
    """A state at some lake snapshot that wants its numbers."""
    return VersionRequest(Position(at, 0), token, note, schemas, specs, [])


def give(lake: Lake, wanted: VersionRequest, now_ms: int = 1000) -> TableNotes:
    """Number it in a transaction of its own."""
    with writing(lake) as conn:
        return assign_version(conn, wanted, now_ms)


def versions(notes: TableNotes) -> list[int]:
    """The metadata versions of the log."""
    return [row.metadata_version for row in notes.metadata_log]


def test_versions_are_dense_and_start_at_one(opened: Lake) -> None:
    """Each new state gets the next version, and the log names all of them, oldest first."""
    for at in range(1, 5):
        notes = give(opened, ask(at, f"state {at}"), now_ms=at * 10)
    assert versions(notes) == [1, 2, 3, 4]
    assert [row.updated_ms for row in notes.metadata_log] == [10, 20, 30, 40]
    assert notes.table is not None
    assert (notes.table.metadata_version, notes.table.token, notes.table.lake_snapshot_id) == (4, "state 4", 4)


def test_the_same_state_keeps_its_version(opened: Lake) -> None:
    """Also when other tables moved the lake on, and for whoever asks late."""
    first = give(opened, ask(5, "same"))
    assert give(opened, ask(9, "same")).metadata_log == first.metadata_log
    assert give(opened, ask(3, "same")).metadata_log == first.metadata_log


def test_an_older_state_gets_no_version(opened: Lake) -> None:
    """Who saw less than the last numbered state reads again, and nothing is written."""
    before = give(opened, ask(5, "new"))
    for position in (Position(4, 0), Position(4, 9)):
        with pytest.raises(LakeMoved):
            give(opened, replace(ask(4, "old", [JsonNote(0, "[]")]), position=position))
    assert give(opened, ask(5, "new")) == before


def test_changes_without_a_lake_snapshot_count_too(opened: Lake) -> None:
    """Expiry moves a state on; what was read before it is older."""
    give(opened, replace(ask(5, "expired"), position=Position(5, 2)))
    with pytest.raises(LakeMoved):
        give(opened, replace(ask(5, "before"), position=Position(5, 1)))


def test_times_never_go_back(opened: Lake) -> None:
    """Clocks of servers differ; the log is in order all the same."""
    for at, now_ms in enumerate((50, 40, 60), 1):
        notes = give(opened, ask(at, str(at)), now_ms)
    assert [row.updated_ms for row in notes.metadata_log] == [50, 50, 60]


@pytest.mark.parametrize("older", [0, 3])
def test_two_writers_of_one_state_get_one_version(opened: Lake, lake: FreshLake, older: int) -> None:
    """Bob waits for alice and finds her number, be it the table's first or a later one."""
    watcher, wanted = lake.psycopg(), ask(5, "same", [JsonNote(0, "[]")])
    for at in range(older):
        give(opened, ask(at, str(at)))
    with ThreadPoolExecutor(1) as threads:
        with writing(opened) as conn:
            alice = assign_version(conn, wanted, 1000)
            asking = threads.submit(give, opened, wanted, 2000)
            wait_for(lambda: watcher.execute(SELECT_WAITING).fetchone() == (1,), "bob waits for alice")
        bob = asking.result(timeout=60)
    assert versions(alice) == list(range(1, older + 2))
    assert bob == alice


def test_a_newer_state_whose_ids_were_given_out_meanwhile_reads_again_or_agrees(opened: Lake) -> None:
    """Alice noted ids that bob, who had read before her, gives too: what agrees stands, what differs is read again."""
    first, second, third = JsonNote(0, "[1]"), JsonNote(1, "[2]"), JsonNote(1, "[3]")
    give(opened, ask(5, "alice", [first]))
    assert versions(give(opened, ask(6, "bob", [first, second]))) == [1, 2]
    for wrong in ([first, third], [JsonNote(2, "[2]")], [JsonNote(0, "[9]")]):
        with pytest.raises(LakeMoved):
            give(opened, ask(7, "carol", wrong))
    notes = give(opened, ask(7, "carol", [JsonNote(2, "[3]")]))
    assert notes.schemas == [first, second, JsonNote(2, "[3]")]
    assert versions(notes) == [1, 2, 3]


def test_specs_have_the_same_rule(opened: Lake) -> None:
    """Spec ids are given out once."""
    give(opened, ask(5, "alice", specs=[JsonNote(1, "[x]")]))
    with pytest.raises(LakeMoved):
        give(opened, ask(6, "bob", specs=[JsonNote(1, "[y]")]))
    assert give(opened, ask(6, "bob", specs=[JsonNote(1, "[x]")])).specs == [JsonNote(1, "[x]")]


def test_a_format_version_given_out_meanwhile_does_not_fall(opened: Lake) -> None:
    """Alice published version 3; bob, who had read before her, reads again."""
    give(opened, ask(5, "alice", note=replace(NOTE, format_version=3)))
    with pytest.raises(LakeMoved):
        give(opened, ask(6, "bob"))
    notes = give(opened, ask(6, "bob", note=replace(NOTE, format_version=3)))
    assert notes.table is not None
    assert notes.table.format_version == 3


def test_a_table_keeps_its_first_location(opened: Lake) -> None:
    """A rename between two servers' first loads gives two ideas of it; the first one stands."""
    give(opened, ask(5, "alice"))
    with pytest.raises(LakeMoved):
        give(opened, ask(6, "bob", note=replace(NOTE, location="s3://b/i/renamed")))


def test_a_crash_leaves_nothing(opened: Lake, lake: FreshLake) -> None:
    """A transaction that ends without COMMIT gave nothing out."""
    give(opened, ask(5, "first", [JsonNote(0, "[]")]))
    with lake.psycopg() as conn:
        before = read_notes(conn, 7)
    with pytest.raises(ConnectionError), writing(opened) as conn:
        assign_version(conn, ask(6, "second", [JsonNote(1, "[1]")], [JsonNote(1, "[2]")]), 9)
        raise ConnectionError
    with pytest.raises(LakeMoved), writing(opened) as conn:
        assign_version(conn, ask(6, "third", [JsonNote(1, "[1]")]), 9)
        raise LakeMoved("the server ended here")
    with lake.psycopg() as conn:
        assert read_notes(conn, 7) == before
        assert read_notes(conn, 8) == TableNotes(None, [], [], [], [])


def test_tables_are_numbered_on_their_own(opened: Lake) -> None:
    """One table's versions say nothing of another's."""
    give(opened, ask(5, "one"))
    assert versions(give(opened, ask(3, "other", note=replace(NOTE, table_id=8)))) == [1]


def test_the_log_that_is_read_is_bounded(opened: Lake) -> None:
    """As many older versions as Iceberg keeps by default, and the current one."""
    with writing(opened) as conn:
        for at in range(1, METADATA_LOG_MAX + 5):
            notes = assign_version(conn, ask(at, str(at)), at)
    assert versions(notes) == list(range(4, METADATA_LOG_MAX + 5))


moves = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), max_size=12)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves)
def test_whoever_asks_in_whatever_order(lake: FreshLake, asked: list[tuple[int, str]]) -> None:
    """Versions stay dense, never belong to an older state than the one before, and a refusal changes nothing."""
    with psycopg.connect(lake.dsn, options=f"-c search_path={lake.metadata_schema}") as conn, conn.transaction(force_rollback=True):
        newest, count = (-1, ""), 0
        for at, token in asked:
            if at < newest[0] and token != newest[1]:
                with pytest.raises(LakeMoved):
                    assign_version(conn, ask(at, token), 1)
                continue
            if token != newest[1]:
                newest, count = (at, token), count + 1
            assert versions(assign_version(conn, ask(at, token), 1)) == list(range(1, count + 1))
