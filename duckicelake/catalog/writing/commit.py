"""Commits: one or several tables changed in one transaction, if they still are as their requirements say."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from uuid import UUID

from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.catalog.writing.ahead import Planned, committed_at_once, numbered_ahead
from duckicelake.catalog.writing.bases import Ask, Base, has_landed, look_up_all, read_base, recall_base, watch
from duckicelake.catalog.writing.ids import Ids, to_lake_steps
from duckicelake.catalog.writing.plans import plan
from duckicelake.catalog.writing.tables import load_committed
from duckicelake.catalog.writing.together import (
    check_apart,
    check_named_once,
    digest_together,
    is_known,
    is_whole_replay,
    note_together,
)
from duckicelake.errors import AlreadyExists, BadRequest, CatalogError, CommitFailed, LakeBusy, LakeMoved, NoSuchNamespace, NoSuchTable
from duckicelake.iceberg.requests.bodies import CommitTable
from duckicelake.iceberg.requests.updates import AssignUuid
from duckicelake.lake.connect import reading
from duckicelake.lake.read import find_table
from duckicelake.lake.writing.apply import apply
from duckicelake.lake.writing.pacing import GivenWay
from duckicelake.lake.writing.transaction import Commit, committing
from duckicelake.translate.namespaces import to_schema_name

COMMIT_TRIES = 13
COMMIT_S = 20.0
"""After so long no try is begun that waits for the lock again, which may take `LOCK_WAIT_S`: clients give up after a minute."""
WAYS_GIVEN = 6
READ_TRIES = 3


@dataclass(frozen=True, slots=True)
class Done:
    """A commit that is in the lake: when it is about one table, the uuid of that, and the table where the commit has shown it."""

    shown: LoadedTable | None = None
    table_uuid: UUID | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of one table or several; `digest` tells it from others when it is several."""

    asks: Sequence[Ask]
    digest: str


class _Moved(Exception):
    """A table changed between reading it and locking the lake."""


def commit_table(warehouse: Warehouse, ident: Ident, asked: CommitTable) -> LoadedTable:
    """Change or make one table, and return it as it is then.

    Raises: CommitFailed: a requirement does not hold. BadRequest: the request contradicts itself, or DuckLake cannot hold it.
    NoSuchTable, NoSuchNamespace, AlreadyExists. CommitStateUnknown: nobody knows whether it landed, or it did and cannot be shown
    """
    done = _commit(warehouse, [Ask(ident, asked)])
    return done.shown or load_committed(warehouse, ident, done.table_uuid)


def commit_tables(warehouse: Warehouse, asks: Sequence[Ask]) -> None:
    """Change or make several tables, all or none; none at all is nothing to do. Raises what `commit_table` raises."""
    check_named_once(asks)
    digest = digest_together(asks)
    try:
        if asks:
            _commit(warehouse, asks, digest)
    except (AlreadyExists, BadRequest, CommitFailed, NoSuchNamespace, NoSuchTable):
        # what it changed may be gone or another's since
        with reading(warehouse.lake) as conn:
            if not digest or not is_known(conn, asks, digest):
                raise


def _commit(warehouse: Warehouse, asks: Sequence[Ask], digest: str = "") -> Done:
    bases: Sequence[Base] = ()
    until = time.monotonic() + COMMIT_S
    for number in range(COMMIT_TRIES):
        try:
            bases = bases or _read_bases(warehouse, asks, recalls=number == 0)
            gives_way = number < WAYS_GIVEN and time.monotonic() < until
            return _commit_once(warehouse, Request(asks, digest), bases, gives_way=gives_way)
        except _Moved:
            # of what was remembered nobody has asked yet whether the request landed: no is not to be said by that
            is_over = time.monotonic() > until and not any(base.is_recalled for base in bases)
            _remove_copies(warehouse, bases)
            bases = ()
            if is_over:
                break
        except GivenWay:
            pass
        except (BadRequest, CommitFailed):
            _remove_copies(warehouse, bases)
            raise
        except LakeBusy as error:
            _remove_copies(warehouse, bases)
            raise CommitFailed(error.message) from error
    raise CommitFailed("The table was changed again and again while this commit was being made; nothing was done. Try again.")


def _remove_copies(warehouse: Warehouse, bases: Sequence[Base]) -> None:
    """Remove what was written for a commit that is not done; what is left then is found by those who look for orphans."""
    copies = [uri for base in bases for uri in base.copies]
    if copies:
        with suppress(CatalogError):
            warehouse.objects.delete_many(copies)


def _read_bases(warehouse: Warehouse, asks: Sequence[Ask], *, recalls: bool) -> list[Base]:
    """Return what each request builds on, what is remembered of it if it is only one."""
    recalled = recall_base(warehouse, asks[0]) if recalls and len(asks) == 1 else None
    return [_read_base(warehouse, ask) for ask in asks] if recalled is None else [recalled]


def _read_base(warehouse: Warehouse, ask: Ask) -> Base:
    """Read what a request builds on, again when somebody was in the way: the lake is not locked yet."""
    for _ in range(READ_TRIES - 1):
        with suppress(LakeMoved):
            return read_base(warehouse, ask)
    return read_base(warehouse, ask)


def _commit_once(warehouse: Warehouse, request: Request, bases: Sequence[Base], *, gives_way: bool) -> Done:
    asks = request.asks
    with ExitStack() as held:
        with committing(warehouse.lake, watch(asks, bases), gives_way=gives_way) as commit:
            planned = _plan(commit, request, bases)
            if gives_way and commit.opening is not None and commit.opening.is_in_the_way:
                raise GivenWay
            done = held.enter_context(committed_at_once(warehouse, commit, bases[0], planned))
            made = done.ahead
            if not done.is_written:
                apply(commit, planned.steps, planned.notes)
                if planned.steps or planned.notes:
                    note_together(commit, asks, request.digest)
            table_uuid = _find_uuid(commit, asks, bases)
            # whoever began to wait since then would lose, and is let pass next time, too
            if gives_way and (commit.is_in_the_way if done.is_in_the_way is None else done.is_in_the_way):
                raise GivenWay
            if not done.is_written:
                made = held.enter_context(numbered_ahead(warehouse, commit.conn, bases[0], planned)) if len(bases) == 1 else None
        return Done(None if made is None else made.show(warehouse), table_uuid)


def _find_uuid(commit: Commit, asks: Sequence[Ask], bases: Sequence[Base]) -> UUID | None:
    """Return the uuid of the table that the commit is about, when it is one; of a new one it is noted with the request's key here."""
    if len(bases) != 1:
        return None
    if bases[0].table is not None:
        return bases[0].table.table_uuid
    made = find_table(commit.conn, to_schema_name(asks[0].ident.namespace), asks[0].ident.name)
    if made is not None:
        commit.remember(made.table_uuid)
    return None if made is None else made.table_uuid


def _plan(commit: Commit, request: Request, bases: Sequence[Base]) -> Planned:
    """Return what the commit writes, nothing if it has landed before; what was read must still be true."""
    asks = request.asks
    bases = look_up_all(commit, asks, bases)
    if any(base.is_recalled and base.is_outdated(commit) for base in bases):
        raise _Moved
    landed = [has_landed(commit, ask, base) for ask, base in zip(asks, bases, strict=True)]
    if any(landed) and is_whole_replay(commit, asks, landed, request.digest):
        return Planned((), ())
    if any(base.is_outdated(commit) for base in bases):
        raise _Moved
    _check_uuids(asks)
    ids = Ids(commit.head.next_catalog_id, commit.head.next_file_id)
    now_ms = time.time_ns() // 1_000_000
    tables = [plan(commit, ask, base, ids, now_ms) for ask, base in zip(asks, bases, strict=True)]
    check_apart(bases, [table.location for table in tables])
    steps = to_lake_steps(commit.head, ids, [table.steps for table in tables if table.steps])
    return Planned(steps, [note for table in tables for note in table.notes])


def _check_uuids(asks: Sequence[Ask]) -> None:
    """Raise BadRequest when two tables are to have one uuid."""
    wanted = Counter(uuid for ask in asks for uuid in {each.uuid for each in ask.commit.updates if isinstance(each, AssignUuid)})
    twice = [uuid for uuid, count in wanted.items() if count > 1]
    if twice:
        raise BadRequest(f"Cannot commit: two tables are to have the uuid {twice[0]}; give each its own.")
