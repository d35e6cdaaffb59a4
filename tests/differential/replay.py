"""A history played into a real lake, and what the model says each lake snapshot must show."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from duckdb import DuckDBPyConnection

from tests.differential.generator.model import Lake, Moment, Table, appended_rows, changed_rows, only_appended
from tests.differential.generator.steps import History

READ_HEAD = "SELECT max(snapshot_id) FROM ducklake_snapshots('lake')"
READ_SNAPSHOTS = "SELECT snapshot_id FROM ducklake_snapshots('lake') ORDER BY snapshot_id"


def replay(conn: DuckDBPyConnection, history: History) -> Iterator[Moment]:
    """Play a history, giving after each step that made a lake snapshot the lake that it left."""
    conn.execute(f"SET TimeZone = '{history.time_zone}'")
    before = read_head(conn)
    for step, statements, lake in history.run():
        for statement in statements:
            conn.execute(statement)
        head = read_head(conn)
        assert head <= before + 1 or step.is_maintenance, f"one step made lake snapshots {before + 1} to {head}"
        for lake_snapshot_id in range(before + 1, head + 1):
            yield Moment(lake_snapshot_id, lake, step.touched, step.inserted, step.is_maintenance)
        before = head


def read_head(conn: DuckDBPyConnection) -> int:
    """The newest lake snapshot."""
    row = conn.execute(READ_HEAD).fetchone()
    assert row is not None
    return row[0]


def read_snapshots(conn: DuckDBPyConnection) -> list[int]:
    """The lake snapshots that are not expired."""
    return [snapshot_id for (snapshot_id,) in conn.execute(READ_SNAPSHOTS).fetchall()]


@dataclass(frozen=True, slots=True)
class Change:
    """A table before and after one lake snapshot; `is_insert` when nothing but INSERT was done to it."""

    lake_snapshot_id: int
    before: Table | None
    after: Table
    is_insert: bool

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

    def __init__(self, moments: Sequence[Moment], lake_snapshot_ids: Collection[int]) -> None:
        """`lake_snapshot_ids` are those that are not expired."""
        self.all_moments = tuple(moments)
        self.lake_snapshot_ids = frozenset(lake_snapshot_ids)

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

    def list_changes(self, table_id: int) -> list[Change]:
        """What each lake snapshot, expired or not, did to the table; those left out that cannot have touched its rows."""
        changes, before = list[Change](), None
        for moment in self.all_moments:
            after = moment.lake.tables.get(table_id)
            is_possible = moment.is_maintenance or table_id in moment.touched or changed_rows(before, after)
            if after is not None and is_possible:
                changes.append(Change(moment.lake_snapshot_id, before, after, is_insert=table_id in moment.inserted))
            before = after
        return changes
