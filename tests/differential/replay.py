"""A history played into a real lake, and what the model says each lake snapshot must show."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol
from uuid import UUID

from duckdb import DuckDBPyConnection, TransactionException

from tests.differential.generator.model import Lake, Moment, Table, appended_rows, changed_rows, only_appended
from tests.differential.generator.steps import History, Step

READ_HEAD = "SELECT id FROM ducklake_current_snapshot('lake')"
READ_CHANGES = "SELECT snapshot_id, changes FROM ducklake_snapshots('lake') ORDER BY snapshot_id"
READ_TABLE_ID = "SELECT table_id FROM ducklake_table_info('lake') WHERE table_uuid = ?"
METADATA = "__ducklake_metadata_lake.lake"
READ_DOUBLED = f"""
SELECT DISTINCT s.schema_name, t.table_name
  FROM {METADATA}.ducklake_delete_file a
  JOIN {METADATA}.ducklake_delete_file b ON a.data_file_id = b.data_file_id AND a.delete_file_id < b.delete_file_id
  JOIN {METADATA}.ducklake_table t ON t.table_id = a.table_id
  JOIN {METADATA}.ducklake_schema s ON s.schema_id = t.schema_id
 WHERE (a.end_snapshot IS NULL OR b.begin_snapshot < a.end_snapshot) AND (b.end_snapshot IS NULL OR a.begin_snapshot < b.end_snapshot)
"""
NOT_OF_ROWS = {"tables_altered", "tables_dropped", "tables_created", "views_altered"}


class Client(Protocol):
    """Who commits a step over REST."""

    def commit(self, step: Step, lake: Lake) -> None:
        """Commit the step to a lake that is as it says."""
        ...


def replay(conn: DuckDBPyConnection, history: History, outside: str, clients: Mapping[str, Client] | None = None) -> Iterator[Moment]:
    """Play a history, giving for each lake snapshot the lake that it left.

    `outside` is a folder for files that the lake takes in, ending in a slash; `clients` commit the steps that are by them.
    What others commit between two steps is maintenance.
    """
    set_variables(conn, history.time_zone, outside)
    before, last = read_head(conn), Lake()
    for step, _, lake in history.run():
        while before < read_head(conn):
            before += 1
            yield Moment(before, last, is_maintenance=True)
        yield from play_step(conn, step, Moment(before, last), clients)
        before, last = read_head(conn), lake


def set_variables(conn: DuckDBPyConnection, time_zone: str, outside: str) -> None:
    """Give a session the time zone of a history, and the folder for files that the lake takes in."""
    conn.execute(f"SET TimeZone = '{time_zone}'")
    conn.execute(f"SET VARIABLE outside = '{outside}'")


def play_step(conn: DuckDBPyConnection, step: Step, last: Moment, clients: Mapping[str, Client] | None = None) -> list[Moment]:
    """Play one step after the newest moment of a lake; return a moment for each lake snapshot that it made, the newest last."""
    before, (statements, lake) = last.lake_snapshot_id, step.run(last.lake)
    if step.by is not None:
        assert clients is not None
        clients[step.by].commit(step, last.lake)
    else:
        for statement in statements:
            _execute(conn, statement, is_maintenance=step.is_maintenance)
    head = read_head(conn)
    is_one = not step.is_maintenance and step.by is None
    assert head <= before + 1 or not is_one, f"one step made lake snapshots {before + 1} to {head}"
    assert head == before or not step.is_refused, f"a refused step made lake snapshots {before + 1} to {head}"
    moment = Moment(head, lake, step.touched, step.inserted, step.is_maintenance, beside=step.beside, moved=step.moved)
    made = [replace(moment, lake_snapshot_id=between, is_known=step.is_maintenance) for between in range(before + 1, head)]
    # What clients say beside the rows is known even when it makes no lake snapshot.
    return [*made, moment if head > before else Moment(head, lake)]


def _execute(conn: DuckDBPyConnection, statement: str, *, is_maintenance: bool) -> None:
    """Run a statement; DuckDB 1.5.5 cannot rewrite tables with a column that older inlined rows lack, and leaves them as they are."""
    try:
        conn.execute(statement)
    except TransactionException as error:
        if not is_maintenance or "inlined-data aggregates" not in str(error):
            raise


def find_doubled(conn: DuckDBPyConnection) -> set[tuple[str, str]]:
    """The tables, by every name they had, with files that DuckDB reads twice at old snapshots: they have two delete files then."""
    return set(conn.execute(READ_DOUBLED).fetchall())


def read_head(conn: DuckDBPyConnection) -> int:
    """The newest lake snapshot."""
    row = conn.execute(READ_HEAD).fetchone()
    assert row is not None
    return row[0]


def read_snapshots(conn: DuckDBPyConnection) -> dict[int, dict[str, list[str]]]:
    """The lake snapshots that are not expired, each with what DuckLake says that it changed."""
    return dict(conn.execute(READ_CHANGES).fetchall())


def read_table_id(conn: DuckDBPyConnection, table_uuid: UUID) -> str:
    """DuckLake's number of a table, as the changes name it."""
    row = conn.execute(READ_TABLE_ID, [table_uuid]).fetchone()
    assert row is not None, f"the lake has no table {table_uuid}"
    return str(row[0])


@dataclass(frozen=True, slots=True)
class Change:
    """A table before and after one lake snapshot; `is_insert` when nothing but INSERT was done to it."""

    lake_snapshot_id: int
    before: Table | None
    after: Table
    is_insert: bool
    is_maintenance: bool

    @property
    def is_certain(self) -> bool:
        """The rows differ; else what the step did may have come to nothing, or cancelled out."""
        return changed_rows(self.before, self.after)

    @property
    def added(self) -> Table:
        """The table holding nothing but the rows that were added."""
        assert only_appended(self.before, self.after)
        return appended_rows(self.before, self.after)


class Past:
    """All moments of a history, asked per table."""

    def __init__(self, moments: Sequence[Moment], changes: Mapping[int, Mapping[str, Sequence[str]]]) -> None:
        """`changes` are those of the lake snapshots that are not expired."""
        self.all_moments = tuple(moments)
        self.changes = changes
        self.lake_snapshot_ids = frozenset(changes)

    @property
    def has_expired(self) -> bool:
        """Some lake snapshot is gone."""
        return any(moment.lake_snapshot_id not in self.lake_snapshot_ids for moment in self.all_moments)

    def list_recorded(self, table_id: str) -> set[int]:
        """The lake snapshots, not expired, that DuckLake itself says changed the rows or files of a table."""
        return {key for key, changed in self.changes.items() if any(table_id in changed[kind] for kind in changed.keys() - NOT_OF_ROWS)}

    @property
    def moments(self) -> list[Moment]:
        """The moments that can still be read."""
        return [moment for moment in self.all_moments if moment.lake_snapshot_id in self.lake_snapshot_ids]

    @property
    def head(self) -> Lake:
        """The lake as it is now."""
        return self.all_moments[-1].lake if self.all_moments else Lake()

    def find_table(self, table_id: int, lake_snapshot_id: int) -> Table | None:
        """The table as that lake snapshot left it."""
        found = next((moment for moment in reversed(self.all_moments) if moment.lake_snapshot_id <= lake_snapshot_id), None)
        return None if found is None else found.lake.tables.get(table_id)

    def table_at(self, table_id: int, lake_snapshot_id: int) -> Table:
        """The table as that lake snapshot left it; it must have been there."""
        found = self.find_table(table_id, lake_snapshot_id)
        assert found is not None, f"table {table_id} did not exist at lake snapshot {lake_snapshot_id}"
        return found

    def find_blind(self, table_id: int) -> int:
        """The last lake snapshot of the last commit to a table that made some whose rows the model does not know; 0: none."""
        pairs = pairwise(self.all_moments)
        found = (after.lake_snapshot_id for before, after in pairs if not before.is_known and table_id in after.touched)
        return max(found, default=0)

    def list_known(self, snapshot_ids: Iterable[int]) -> list[int]:
        """Those of them whose rows the model knows."""
        unknown = {moment.lake_snapshot_id for moment in self.all_moments if not moment.is_known}
        return [snapshot_id for snapshot_id in snapshot_ids if snapshot_id not in unknown]

    def list_beside(self, table_id: int) -> set[int]:
        """The lake snapshots that are a client's writes beside main."""
        return {moment.lake_snapshot_id for moment in self.all_moments if table_id in moment.beside}

    def list_moved(self, table_id: int) -> set[int]:
        """The lake snapshots that give main the rows of another snapshot; Iceberg clients see none of them."""
        return {moment.lake_snapshot_id for moment in self.all_moments if table_id in moment.moved}

    def find_hidden(self, table_id: int) -> int:
        """The newest lake snapshot when clients last removed the older snapshots of a table; 0: they never did."""
        times = self.head.tables[table_id].times_hidden
        then = (moment for moment in self.all_moments if table_id in moment.lake.tables)
        return next(moment.lake_snapshot_id for moment in then if moment.lake.tables[table_id].times_hidden == times) if times else 0

    def list_changes(self, table_id: int) -> list[Change]:
        """What each lake snapshot, expired or not, did to the table; those left out that cannot have touched its rows."""
        changes, before = list[Change](), None
        for moment in self.all_moments:
            after = moment.lake.tables.get(table_id)
            is_possible = moment.is_maintenance or table_id in moment.touched or changed_rows(before, after)
            if after is not None and is_possible and table_id not in moment.moved:
                changes.append(Change(moment.lake_snapshot_id, before, after, table_id in moment.inserted, moment.is_maintenance))
            before = after
        return changes
