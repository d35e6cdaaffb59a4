"""Clients that read while others write: plain HTTP, and PyIceberg's scans. What they saw is checked when all is over."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from tests.concurrency.ledger import Ledger, Row
from tests.concurrency.writers import ACCOUNTS, AMOUNT, RETENTION_SECONDS
from tests.rest.serving import Server

NAMES = ("accounts", "receipts", "events", "shelf")
NAMESPACE = "main"


@dataclass(frozen=True, slots=True)
class Seen:
    """The rows of a table at a snapshot, as a reader got them."""

    table: str
    snapshot_id: int
    rows: Counter[Row]


@dataclass(slots=True)
class Looker:
    """Loads tables over plain HTTP, and asks again with the tag of the last answer."""

    server: Server
    ledger: Ledger
    chance: random.Random
    tags: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    done: int = 0
    unchanged: int = 0

    def look(self) -> None:
        """One load: 200 with sound metadata or 304, never older than what was acknowledged before or than the last answer."""
        table = self.chance.choice(NAMES)
        acknowledged = self.ledger.get_newest(table)
        tag, last = self.tags.get(table, ("", 0))
        answer = self.server.get(f"namespaces/{NAMESPACE}/tables/{table}", {"If-None-Match": tag} if tag else {})
        self.done += 1
        if answer.status == 304:
            assert last >= acknowledged, f"{table}: 304 for snapshot {last}, though {acknowledged} was committed"
            self.unchanged += 1
            return
        assert answer.status == 200, answer.body
        current = check_metadata(answer.json["metadata"])
        assert current >= max(acknowledged, last), f"{table}: snapshot {current} after {acknowledged} was committed and {last} seen"
        self.tags[table] = (answer.headers["etag"], current)


def check_metadata(metadata: dict[str, Any]) -> int:
    """Fail unless the snapshots are one line that ends at the current one; returns its id, 0 for none."""
    snapshots = metadata.get("snapshots", [])
    if not snapshots:
        assert metadata.get("current-snapshot-id") in (None, -1)
        return 0
    ids = [snapshot["snapshot-id"] for snapshot in snapshots]
    assert ids == sorted(set(ids))
    assert [snapshot["sequence-number"] for snapshot in snapshots] == ids
    assert [snapshot.get("parent-snapshot-id") for snapshot in snapshots] == [None, *ids[:-1]]
    assert metadata["current-snapshot-id"] == metadata["refs"]["main"]["snapshot-id"] == ids[-1]
    assert metadata["last-sequence-number"] >= ids[-1]
    assert metadata["properties"]["ducklake.snapshot-id"] == str(ids[-1])
    return ids[-1]


@dataclass(slots=True)
class Scanner:
    """Scans tables with PyIceberg, at head and in the past."""

    catalog: RestCatalog
    ledger: Ledger
    chance: random.Random
    seen: list[Seen] = field(default_factory=list[Seen])
    done: int = 0
    pairs: int = 0
    too_late: int = 0

    def scan(self) -> None:
        """One table at head and at a snapshot of its past, or two tables at one commit.

        A file may be missing only when the reader has known its metadata for longer than DuckLake's `delete_older_than`.
        """
        began = time.monotonic()
        try:
            if self.done % 2:
                self._scan_pair()
            else:
                self._scan_one(self.chance.choice(NAMES))
        except FileNotFoundError:
            if time.monotonic() - began < RETENTION_SECONDS:
                raise
            self.too_late += 1
        self.done += 1

    def _load(self, name: str) -> Table:
        acknowledged = self.ledger.get_newest(name)
        table = self.catalog.load_table((NAMESPACE, name))
        current = table.metadata.current_snapshot_id or 0
        assert current >= acknowledged, f"{name}: snapshot {current}, though {acknowledged} was committed before"
        return table

    def _scan_one(self, name: str) -> None:
        table = self._load(name)
        ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
        for snapshot_id in {*ids[-1:], *self.chance.sample(ids, min(1, len(ids)))}:
            rows = self._read(table, snapshot_id)
            self.seen.append(Seen(name, snapshot_id, rows))

    def _scan_pair(self) -> None:
        """Accounts and receipts as of one transfer: every balance follows from the receipts."""
        accounts, receipts = self._load("accounts"), self._load("receipts")
        both = {one.snapshot_id for one in accounts.snapshots()} & {one.snapshot_id for one in receipts.snapshots()}
        if not both:
            return
        snapshot_id = max(both)
        balances, paid = self._read(accounts, snapshot_id), self._read(receipts, snapshot_id)
        expected = dict.fromkeys(range(ACCOUNTS), AMOUNT)
        for _, debtor, creditor, amount in paid.elements():
            expected[debtor] -= amount
            expected[creditor] += amount
        wrong = {account: balance for account, balance in balances if expected[account] != balance}
        assert not wrong and len(balances) == balances.total() == ACCOUNTS, f"at {snapshot_id}: balances {wrong}, by receipts {expected}"
        self.pairs += 1

    def _read(self, table: Table, snapshot_id: int) -> Counter[Row]:
        return count_rows(table.scan(snapshot_id=snapshot_id).to_arrow())


def count_rows(rows: pa.Table) -> Counter[Row]:
    """The rows of a table of numbers."""
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
