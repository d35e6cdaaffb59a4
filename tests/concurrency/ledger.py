"""What the writers say they have committed: the model that every answer is checked against."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock

Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """What one commit did to one table: whole rows taken away and put in."""

    removed: tuple[Row, ...] = ()
    added: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """An acknowledged commit: the lake snapshot it made, and the tables it changed."""

    lake_snapshot_id: int
    changes: Mapping[str, Change]


@dataclass(slots=True)
class Ledger:
    """All acknowledged commits so far."""

    commits: list[Commit] = field(default_factory=list[Commit])
    newest: dict[str, int] = field(default_factory=dict[str, int])
    lock: Lock = field(default_factory=Lock)

    def acknowledge(self, commit: Commit) -> None:
        """Enter a commit as soon as the writer knows of it."""
        with self.lock:
            self.commits.append(commit)
            for table in commit.changes:
                self.newest[table] = max(commit.lake_snapshot_id, self.newest.get(table, 0))

    def get_newest(self, table: str) -> int:
        """The newest lake snapshot that is known to have changed the table."""
        with self.lock:
            return self.newest.get(table, 0)

    def list_states(self, table: str, lake_snapshot_ids: Iterable[int]) -> dict[int, Counter[Row]]:
        """The table's rows at each of the lake snapshots, from all commits; none may take away what is not there."""
        rows: Counter[Row] = Counter()
        left = sorted((one for one in self.commits if table in one.changes), key=lambda one: one.lake_snapshot_id, reverse=True)
        states: dict[int, Counter[Row]] = {}
        for wanted in sorted(set(lake_snapshot_ids)):
            while left and left[-1].lake_snapshot_id <= wanted:
                _apply(rows, left.pop().changes[table])
            states[wanted] = rows.copy()
        return states


def _apply(rows: Counter[Row], change: Change) -> None:
    for row in change.removed:
        assert rows[row] == 1, f"a commit took away {row}, which was not there: a write was lost"
        del rows[row]
    rows.update(change.added)
