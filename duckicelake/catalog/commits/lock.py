"""The second step of a commit: `locking` opens the transaction, takes the lake's lock and checks that the prepared bases are current.

Then it applies the requests to the metadata of their tables and looks up all rows that planning the commit needs.

With an Idempotency-Key, keys of more than an hour are deleted and this one is inserted right after the lock, so a repeated request ends
here. DuckDB sessions that lost a race and wait to commit get the lock first; it is taken again after them. No other row is written in this
step.

`commits.commit` calls it; plan and write follow in the same transaction. Every other committer waits, DuckDB included, so nothing slow
is done here.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from duckicelake.catalog.commits.apply import apply_request
from duckicelake.catalog.commits.look_up import TableChange, look_up
from duckicelake.catalog.commits.prepare import Prepared, read_committed_ids
from duckicelake.catalog.commits.requests import (
    CommitBatch,
    CommittedIds,
    GroupMember,
    TableCommit,
    check_still_required,
    check_uuids,
    is_committed,
    join_updates,
    list_unknown_ids,
)
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CommitFailed
from duckicelake.lake.read import find_table
from duckicelake.lake.server_turns import compute_key
from duckicelake.lake.writing.idempotency import has_transaction
from duckicelake.lake.writing.lookups import is_touched, read_client_snapshots
from duckicelake.lake.writing.transaction import Commit, WatchedTable, committing


class BaseChanged(Exception):
    """A table changed between reading it and locking the lake; the request is to be prepared again."""


@dataclass(frozen=True, slots=True)
class LockedTable:
    """A prepared request whose base is current, and the lake snapshots of those of the client's ids that have been committed."""

    prepared: Prepared
    committed_ids: CommittedIds


@dataclass(frozen=True, slots=True)
class Locked:
    """The requests of a commit under the lake's lock, which `commit` holds.

    `changes` are the requests with the rows that they concern; none if `has_landed`: they were committed before.
    `digest` identifies a request for several tables.
    `refusals` are the errors of those members of a group whose requirements do not hold, by their place in the group.
    """

    commit: Commit
    tables: Sequence[LockedTable]
    changes: Sequence[TableChange] = ()
    has_landed: bool = False
    digest: str = ""
    refusals: Mapping[int, CommitFailed] = field(default_factory=dict[int, CommitFailed])

    @property
    def only_table(self) -> Prepared | None:
        """The table of a commit to one table, None of a commit to several."""
        return self.tables[0].prepared if len(self.tables) == 1 else None


@contextmanager
def locking(warehouse: Warehouse, batch: CommitBatch, prepared: Sequence[Prepared], *, yields: bool) -> Generator[Locked]:
    """Hold the lake's lock in one transaction, committed at the end and rolled back by any error.

    Raises: BaseChanged. CommitFailed: a part of the requests has landed, and not this request as a whole. What `apply_request`, `look_up`
    and `committing` raise
    """
    with committing(warehouse.lake, _build_watched(warehouse, batch.watched, prepared), yields=yields) as commit:
        if commit.locked_check is not None and commit.locked_check.has_rival:
            warehouse.caches.note_race(prepared[0].request.ident.stored)
        yield _check(commit, batch, prepared)


def _check(commit: Commit, batch: CommitBatch, prepared: Sequence[Prepared]) -> Locked:
    tables = _read_committed_ids(commit, prepared)
    refusals: Mapping[int, CommitFailed] = {}
    if batch.members:
        tables, commit, refusals = _choose_members(commit, batch.members, tables[0])
    if any(table.prepared.is_cached and _is_outdated(commit, table.prepared) for table in tables):
        raise BaseChanged
    if _has_landed(commit, tables, batch.digest):
        return Locked(commit, tables, has_landed=True)
    if any(_is_outdated(commit, table.prepared) for table in tables):
        raise BaseChanged
    return Locked(commit, tables, _look_up_all(commit, tables), digest=batch.digest, refusals=refusals)


def _look_up_all(commit: Commit, tables: Sequence[LockedTable]) -> Sequence[TableChange]:
    check_uuids([table.prepared.request for table in tables])
    now_ms, head = time.time_ns() // 1_000_000, commit.head
    return [
        look_up(commit.conn, apply_request(table.prepared, table.committed_ids, head.snapshot_id, now_ms), head.lake_format)
        for table in tables
    ]


def _build_watched(warehouse: Warehouse, requests: Sequence[TableCommit], prepared: Sequence[Prepared]) -> WatchedTable | None:
    """Return the table that is checked in the same round trip as the lock: the only one of the commit, if it exists."""
    base, ident = prepared[0].base, prepared[0].request.ident
    if len(prepared) != 1 or base.row is None:
        return None
    takes_turns = warehouse.caches.is_contended(ident.stored)
    turn_key = None if takes_turns else compute_key(warehouse.lake.metadata_schema, str(ident))
    client_ids = list_unknown_ids(requests[0], base.metadata)
    return WatchedTable(base.row.table_id, base.row.table_uuid, base.position, client_ids, turn_key)


def _read_committed_ids(commit: Commit, prepared: Sequence[Prepared]) -> list[LockedTable]:
    if commit.locked_check is not None:
        return [LockedTable(prepared[0], commit.locked_check.committed_ids)]
    return [LockedTable(each, read_committed_ids(commit.conn, each.request, each.base)) for each in prepared]


def _choose_members(
    commit: Commit, members: Sequence[GroupMember], table: LockedTable
) -> tuple[list[LockedTable], Commit, Mapping[int, CommitFailed]]:
    """Return the commit of the members whose requirements hold, and the errors of the others.

    No requirement depends on a property, so what holds under the lock still holds after the changes of the members before.
    """
    ident, refusals = table.prepared.request.ident, dict[int, CommitFailed]()
    for number, member in enumerate(members):
        try:
            check_still_required(member.request, table.prepared.base.metadata, table.committed_ids)
        except CommitFailed as error:
            refusals[number] = error
    chosen = [member for number, member in enumerate(members) if number not in refusals]
    chosen_table = replace(table, prepared=replace(table.prepared, request=join_updates(ident, chosen)))
    return [chosen_table], replace(commit, audit_contexts=[member.audit_context for member in chosen]), refusals


def _is_outdated(commit: Commit, prepared: Prepared) -> bool:
    """Return True if the table was changed or created after the request was prepared."""
    base = prepared.base
    if base.row is None:
        return find_table(commit.conn, *prepared.request.ident.stored) is not None
    check = commit.locked_check
    return is_touched(commit.conn, base.row.table_id, base.position) if check is None else check.is_touched


def _has_landed(commit: Commit, tables: Sequence[LockedTable], digest: str) -> bool:
    """Return True if the requests have been committed before.

    Updates without a snapshot, and dropped tables, leave no trace; such replays are found by the request's digest.
    Raises: CommitFailed: it is another request that holds something of an earlier one
    """
    landed = {table.prepared.request.ident: _is_committed(commit, table) for table in tables}
    if not any(landed.values()):
        return False
    if all(landed.values()) or has_transaction(commit.conn, digest):
        return True
    done, missing = (next(ident for ident, is_there in landed.items() if is_there is wanted) for wanted in (True, False))
    raise CommitFailed(
        f"What the request asks of {done} was committed before, and what it asks of {missing} was not part of that; "
        "nothing was done. Load the tables and commit what is missing."
    )


def _is_committed(commit: Commit, table: LockedTable) -> bool:
    request, row = table.prepared.request, table.prepared.base.row
    if row is not None:
        return is_committed(request, row, table.committed_ids)
    row = find_table(commit.conn, *request.ident.stored)
    ids = [snapshot.snapshot_id for snapshot in request.list_added()]
    return row is not None and is_committed(request, row, read_client_snapshots(commit.conn, row.table_id, ids) if ids else {})
