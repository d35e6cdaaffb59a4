"""Commits: one or several tables changed in one transaction, if they still are as their requirements say."""

import time
from collections.abc import Sequence

from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.catalog.writing.bases import Ask, Base, has_landed, read_base
from duckicelake.catalog.writing.ids import Ids, to_lake_steps
from duckicelake.catalog.writing.plans import plan
from duckicelake.catalog.writing.tables import load_committed
from duckicelake.errors import CommitFailed, LakeBusy
from duckicelake.iceberg.requests.bodies import CommitTable
from duckicelake.lake.writing.apply import apply
from duckicelake.lake.writing.transaction import Commit, committing

COMMIT_TRIES = 10
WAYS_GIVEN = 3


class _Moved(Exception):
    """A table changed between reading it and locking the lake."""


class _GivenWay(Exception):
    """DuckDB is to commit first: it gives up after ten lost races."""


def commit_table(warehouse: Warehouse, ident: Ident, asked: CommitTable) -> LoadedTable:
    """Change or make one table, and return it as it is then.

    Raises: CommitFailed: a requirement does not hold. BadRequest: the request contradicts itself, or DuckLake cannot hold it.
    NoSuchTable, NoSuchNamespace, AlreadyExists. CommitStateUnknown: nobody knows whether it landed, or it did and cannot be shown
    """
    _commit(warehouse, [Ask(ident, asked)])
    return load_committed(warehouse, ident)


def commit_tables(warehouse: Warehouse, asks: Sequence[Ask]) -> None:
    """Change or make several tables, all or none. Raises what `commit_table` raises."""
    _commit(warehouse, asks)


def _commit(warehouse: Warehouse, asks: Sequence[Ask]) -> None:
    bases: Sequence[Base] = ()
    for number in range(COMMIT_TRIES):
        bases = bases or [read_base(warehouse, ask) for ask in asks]
        try:
            with committing(warehouse.lake) as commit:
                _apply(commit, asks, bases)
                if number < WAYS_GIVEN and commit.is_in_the_way:
                    raise _GivenWay
        except _Moved:
            bases = ()
            continue
        except _GivenWay:
            continue
        except LakeBusy as error:
            raise CommitFailed(error.message) from error
        return
    raise CommitFailed("The table was changed again and again while this commit was being made; nothing was done. Try again.")


def _apply(commit: Commit, asks: Sequence[Ask], bases: Sequence[Base]) -> None:
    """Write the commit, unless it has landed before; what was read before the lock must still be true."""
    if any(has_landed(commit, ask, base) for ask, base in zip(asks, bases, strict=True)):
        return
    if any(base.is_outdated(commit) for base in bases):
        raise _Moved
    ids = Ids(commit.head.next_catalog_id, commit.head.next_file_id)
    now_ms = time.time_ns() // 1_000_000
    tables = [plan(commit, ask, base, ids, now_ms) for ask, base in zip(asks, bases, strict=True)]
    steps = to_lake_steps(commit.head, ids, [table.steps for table in tables if table.steps])
    apply(commit, steps, [note for table in tables for note in table.notes])
