"""DuckDB sessions that write: transfers between accounts, a list that grows, a shelf that changes, and their maintainer."""

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
from duckdb import DuckDBPyConnection

from tests.concurrency.ledger import Change, Commit, Ledger

ACCOUNTS, AMOUNT = 20, 1000
RETENTION_SECONDS = 20

TABLES = (
    "CREATE TABLE accounts (id BIGINT, balance BIGINT)",
    "CREATE TABLE receipts (id BIGINT, debtor BIGINT, creditor BIGINT, amount BIGINT)",
    "CREATE TABLE events (writer BIGINT, number BIGINT)",
    "CREATE TABLE shelf (id BIGINT, edition BIGINT)",
    # DuckDB 1.5.5 lets an inlined delete of a file's row and the maintenance of that file both commit, and the row comes back.
    # So one table has its deletes in files, and the other is not maintained.
    "CALL lake.set_option('data_inlining_row_limit', 0, table_name => 'accounts')",
    "CALL lake.set_option('auto_compact', false, table_name => 'shelf')",
    f"CALL lake.set_option('delete_older_than', '{RETENTION_SECONDS} seconds')",
    "CALL lake.set_option('rewrite_delete_threshold', 0.1)",
)


@dataclass(slots=True)
class Writer:
    """One session of DuckDB with a random course of its own."""

    conn: DuckDBPyConnection
    ledger: Ledger
    number: int
    chance: random.Random
    made: int = 0
    lost: int = 0

    def transfer(self) -> None:
        """Move money and write a receipt, in one transaction over two tables."""
        debtor, creditor = self.chance.sample(range(ACCOUNTS), 2)
        amount = self.chance.randrange(1, 50)
        receipt = (self.number * 1_000_000 + self.made, debtor, creditor, amount)
        with self._transaction() as changes:
            before = dict(self._ask(f"SELECT id, balance FROM accounts WHERE id IN ({debtor}, {creditor})"))
            after = {debtor: before[debtor] - amount, creditor: before[creditor] + amount}
            self.conn.execute(
                f"UPDATE accounts SET balance = CASE id WHEN {debtor} THEN {after[debtor]} ELSE {after[creditor]} END "
                f"WHERE id IN ({debtor}, {creditor})"
            )
            self.conn.execute(f"INSERT INTO receipts VALUES {receipt}")
            changes["accounts"] = Change(tuple(before.items()), tuple(after.items()))
            changes["receipts"] = Change(added=(receipt,))

    def report(self) -> None:
        """Add the next numbers of this writer, few (inlined) or many (a file)."""
        count = self.chance.choice([1, 3, 25])
        rows = tuple((self.number, self.made * 100 + index) for index in range(count))
        with self._transaction() as changes:
            self.conn.execute(f"INSERT INTO events VALUES {', '.join(map(str, rows))}")
            changes["events"] = Change(added=rows)

    def rearrange(self) -> None:
        """Put something on the shelf, replace something, take something away: all of it inlined."""
        with self._transaction() as changes:
            there = self._ask("FROM shelf ORDER BY id")
            old = self.chance.choice(there) if there else None
            if old is None or len(there) < 8 or self.chance.random() < 0.4:
                new = (self.made, 0)
                self.conn.execute(f"INSERT INTO shelf VALUES {new}")
                changes["shelf"] = Change(added=(new,))
            elif self.chance.random() < 0.5:
                self.conn.execute(f"UPDATE shelf SET edition = edition + 1 WHERE id = {old[0]}")
                changes["shelf"] = Change((old,), ((old[0], old[1] + 1),))
            else:
                self.conn.execute(f"DELETE FROM shelf WHERE id = {old[0]}")
                changes["shelf"] = Change((old,))

    @contextmanager
    def _transaction(self) -> Generator[dict[str, Change]]:
        """A transaction that is entered in the ledger when COMMIT returns, and counted as lost when DuckDB refuses it."""
        changes: dict[str, Change] = {}
        self.conn.execute("BEGIN")
        try:
            yield changes
            self.conn.execute("COMMIT")
        except duckdb.Error as error:
            check_lost_race(error)
            self._roll_back()
            self.lost += 1
        else:
            self.made += 1
            self.ledger.acknowledge(Commit(read_last_commit(self.conn), changes))

    def _ask(self, sql: str) -> list[Any]:
        return self.conn.execute(sql).fetchall()

    def _roll_back(self) -> None:
        # A COMMIT that failed has ended the transaction.
        try:
            self.conn.execute("ROLLBACK")
        except duckdb.TransactionException:
            return


def read_last_commit(conn: DuckDBPyConnection) -> int:
    """The lake snapshot that this session's last commit made."""
    (snapshot_id,) = conn.execute("FROM lake.last_committed_snapshot()").fetchone() or (None,)
    assert snapshot_id is not None
    return snapshot_id


def check_lost_race(error: duckdb.Error) -> None:
    """Fail unless DuckDB says that another transaction was first."""
    text = str(error).lower()
    if not any(word in text for word in ("conflict", "concurrent", "another transaction", "deadlock", "retry")):
        raise error


def fill(conn: DuckDBPyConnection, ledger: Ledger) -> None:
    """Make the tables, and the accounts with the same balance in each."""
    for statement in TABLES:
        conn.execute(statement)
    conn.execute(f"INSERT INTO accounts SELECT i, {AMOUNT} FROM range({ACCOUNTS}) r(i)")
    added = tuple((account, AMOUNT) for account in range(ACCOUNTS))
    ledger.acknowledge(Commit(read_last_commit(conn), {"accounts": Change(added=added)}))


@dataclass(slots=True)
class Maintainer:
    """A session that keeps the lake tidy, as its owner would: nothing younger than the retention is deleted."""

    conn: DuckDBPyConnection
    chance: random.Random
    done: int = 0
    lost: int = 0

    def tidy(self) -> None:
        """One kind of maintenance after the other; a race may be lost to a writer."""
        kinds: Sequence[Callable[[], None]] = (self._flush, self._merge, self._rewrite, self._expire, self._clean_up, self._checkpoint)
        try:
            kinds[self.done % len(kinds)]()
        except duckdb.Error as error:
            check_lost_race(error)
            self.lost += 1
        self.done += 1

    def _flush(self) -> None:
        self.conn.execute("CALL ducklake_flush_inlined_data('lake')")

    def _merge(self) -> None:
        self.conn.execute("CALL ducklake_merge_adjacent_files('lake')")

    def _rewrite(self) -> None:
        self.conn.execute("CALL ducklake_rewrite_data_files('lake', 'accounts', delete_threshold => 0.1)")

    def _expire(self) -> None:
        self.conn.execute("CALL ducklake_expire_snapshots('lake', older_than => now() - INTERVAL 4 SECOND)")

    def _clean_up(self) -> None:
        self.conn.execute("CALL ducklake_cleanup_old_files('lake')")

    def _checkpoint(self) -> None:
        self.conn.execute("CHECKPOINT")
