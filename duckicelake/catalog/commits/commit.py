"""Commits: one or several tables changed in one transaction, if they still are as their requirements say."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from uuid import UUID

import psycopg

from duckicelake.catalog.commits.plan import plan_table
from duckicelake.catalog.commits.prepare import (
    CommitBase,
    TableCommit,
    build_watched,
    find_landed,
    find_published,
    get_cached_base,
    is_committed,
    is_newest,
    read_base,
    with_known_ids_under_lock,
)
from duckicelake.catalog.commits.property_group import GroupMember, choose_members, join_members, without_requirements
from duckicelake.catalog.commits.publish_in_commit import PlannedCommit, numbered_in_commit, written_in_one_statement
from duckicelake.catalog.id_allocation import IdAllocator, to_lake_steps
from duckicelake.catalog.table_changes import load_committed_table
from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, BadRequest, CatalogError, CommitFailed, LakeBusy, LakeMoved, NoSuchNamespace, NoSuchTable
from duckicelake.iceberg.requests.bodies import CommitTable
from duckicelake.iceberg.requests.requirements import is_create
from duckicelake.iceberg.requests.updates import AssignUuid
from duckicelake.lake.connect import reading
from duckicelake.lake.read import find_table
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.idempotency import has_transaction, note_transaction
from duckicelake.lake.writing.transaction import Commit, WatchedTable, committing
from duckicelake.lake.writing.waiting_sessions import LockYielded
from duckicelake.translate.locations import to_folder_uri
from duckicelake.translate.namespaces import fold_name, to_schema_name
from duckicelake.translate.to_ducklake.commits import list_added

COMMIT_TRIES = 13
COMMIT_S = 20.0
"""After so long no try is begun that waits for the lock again, which may take `LOCK_WAIT_S`: clients give up after a minute."""
WAYS_GIVEN = 6
READ_TRIES = 3


@dataclass(frozen=True, slots=True)
class CommitResult:
    """A commit that is in the lake: when it is about one table, the uuid of that, and the table where the commit has shown it."""

    shown: LoadedTable | None = None
    table_uuid: UUID | None = None
    refusals: Mapping[int, CommitFailed] = field(default_factory=dict[int, CommitFailed])


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """The requests that one transaction commits: one for one table or several, or a group of requests that change properties of one table.

    `digest` identifies a request for several tables.
    """

    requests: Sequence[TableCommit]
    digest: str = ""
    members: Sequence[GroupMember] = ()


class _BaseChanged(Exception):
    """A table changed between reading it and locking the lake."""


def commit_table(warehouse: Warehouse, ident: Ident, asked: CommitTable) -> LoadedTable:
    """Change or create one table and return its new state.

    Raises: CommitFailed: a requirement does not hold. BadRequest: the request contradicts itself, or DuckLake cannot hold it.
    NoSuchTable, NoSuchNamespace, AlreadyExists. CommitStateUnknown: the outcome is unknown, or the new state cannot be published
    """
    return commit_prepared(warehouse, TableCommit(ident, asked))


def commit_prepared(warehouse: Warehouse, request: TableCommit, base: CommitBase | None = None) -> LoadedTable:
    """Do what `commit_table` does, from the base that `prepare` returned if it is still the newest one known."""
    done = _commit(warehouse, CommitBatch([request]), base)
    return done.shown or load_committed_table(warehouse, request.ident, done.table_uuid)


def prepare(warehouse: Warehouse, request: TableCommit) -> CommitBase:
    """Return the base of a request, with the client's manifests read. Nothing is locked, and the base may be outdated at once.

    Raises: CommitFailed: a requirement does not hold of the table as it is now, and the request has not landed. What `commit_table` raises
    """
    return _read_bases(warehouse, [request], recalls=True)[0]


def discard_prepared(warehouse: Warehouse, base: CommitBase) -> None:
    """Remove the data files that were written for a request that is not committed."""
    _remove_copies(warehouse, [base])


def commit_group(warehouse: Warehouse, ident: Ident, members: Sequence[GroupMember]) -> list[LoadedTable | CommitFailed]:
    """Commit requests that change only properties of one table in one transaction, and return the result of each.

    Raises what `commit_table` raises. Unless it is CommitStateUnknown, nothing was done, and each may be committed alone
    """
    batch = CommitBatch([without_requirements(join_members(ident, members))], members=members)
    done = _commit(warehouse, batch)
    if len(done.refusals) == len(members):
        return [done.refusals[number] for number in range(len(members))]
    shown = done.shown or load_committed_table(warehouse, ident, done.table_uuid)
    return [done.refusals.get(number) or shown for number in range(len(members))]


def load_landed(warehouse: Warehouse, request: TableCommit) -> LoadedTable | None:
    """Return the table if the request has landed before, None if it has not."""
    table = find_landed(warehouse, request)
    return None if table is None else load_committed_table(warehouse, request.ident, table.table_uuid)


def commit_tables(warehouse: Warehouse, requests: Sequence[TableCommit]) -> None:
    """Change or make several tables, all or none; none at all is nothing to do. Raises what `commit_table` raises."""
    check_named_once(requests)
    digest = compute_batch_digest(requests)
    try:
        if requests:
            _commit(warehouse, CommitBatch(requests, digest))
    except (AlreadyExists, BadRequest, CommitFailed, NoSuchNamespace, NoSuchTable):
        # A replay may find its tables dropped or replaced.
        with reading(warehouse.lake) as conn:
            if not digest or not is_batch_committed(conn, requests, digest):
                raise


def _commit(warehouse: Warehouse, batch: CommitBatch, prepared: CommitBase | None = None) -> CommitResult:
    bases: Sequence[CommitBase] = () if prepared is None else [prepared]
    if prepared is not None and not is_newest(warehouse, prepared):
        batch, bases = _give_up_bases(warehouse, batch, bases), ()
    until = time.monotonic() + COMMIT_S
    for number in range(COMMIT_TRIES):
        try:
            bases = bases or _read_bases(warehouse, batch.requests, recalls=number == 0 and not is_contended(warehouse, batch.requests))
            yields = number < WAYS_GIVEN and time.monotonic() < until
            return _commit_once(warehouse, batch, bases, yields=yields)
        except _BaseChanged:
            note_race(warehouse, batch.requests)
            # A cached base was never checked for a replay, so read the table again before refusing.
            is_over = time.monotonic() > until and not any(base.is_cached for base in bases)
            batch, bases = _give_up_bases(warehouse, batch, bases), ()
            if is_over:
                break
        except LockYielded:
            pass
        except (BadRequest, CommitFailed):
            _remove_copies(warehouse, bases)
            raise
        except LakeBusy as error:
            _remove_copies(warehouse, bases)
            raise CommitFailed(error.message) from error
    raise CommitFailed("The table was changed again and again while this commit was being made; nothing was done. Try again.")


def note_race(warehouse: Warehouse, requests: Sequence[TableCommit]) -> None:
    """Remember that another process has changed the table of a request."""
    if len(requests) == 1:
        warehouse.caches.note_race((to_schema_name(requests[0].ident.namespace), requests[0].ident.name))


def is_contended(warehouse: Warehouse, requests: Sequence[TableCommit]) -> bool:
    """Return True if another process has recently changed the table of a request, so that a cached base is outdated."""
    return len(requests) == 1 and warehouse.caches.is_contended((to_schema_name(requests[0].ident.namespace), requests[0].ident.name))


def _give_up_bases(warehouse: Warehouse, batch: CommitBatch, bases: Sequence[CommitBase]) -> CommitBatch:
    """Remove what was written for outdated bases, and return the batch with the manifests that were read for them."""
    _remove_copies(warehouse, bases)
    requests = [replace(request, incoming=base.incoming) for request, base in zip(batch.requests, bases, strict=True)]
    return replace(batch, requests=requests)


def _remove_copies(warehouse: Warehouse, bases: Sequence[CommitBase]) -> None:
    """Remove what was written for a commit that is not done; what is left then is found by those who look for orphans."""
    copies = [uri for base in bases for uri in base.copies]
    if copies:
        with suppress(CatalogError):
            warehouse.objects.delete_many(copies)


def _read_bases(warehouse: Warehouse, requests: Sequence[TableCommit], *, recalls: bool) -> list[CommitBase]:
    """Return what each request builds on, what is remembered of it if it is only one."""
    recalled = get_cached_base(warehouse, requests[0]) if recalls and len(requests) == 1 else None
    if recalled is not None:
        return [recalled]
    known = find_published(warehouse, requests[0]) if len(requests) == 1 else None
    bases = [_read_base(warehouse, request, refuses=len(requests) == 1) for request in requests]
    if known is not None and bases[0].published is not None and bases[0].published is not known:
        # A commit that has its turn loses no race, and still meets the other server.
        note_race(warehouse, requests)
    return bases


def _read_base(warehouse: Warehouse, request: TableCommit, *, refuses: bool = False) -> CommitBase:
    """Read the base of a request, again after a concurrent change; the lake is not locked yet."""
    for _ in range(READ_TRIES - 1):
        with suppress(LakeMoved):
            return read_base(warehouse, request, refuses=refuses)
    return read_base(warehouse, request, refuses=refuses)


def _commit_once(warehouse: Warehouse, batch: CommitBatch, bases: Sequence[CommitBase], *, yields: bool) -> CommitResult:
    refusals: Mapping[int, CommitFailed] = {}
    with ExitStack() as held:
        with committing(warehouse.lake, _build_watched(batch, bases), yields=yields) as commit:
            if batch.members:
                chosen = choose_members(bases[0].ident, batch.members, with_known_ids_under_lock(commit, batch.requests, bases)[0])
                commit, refusals = replace(commit, audit_contexts=chosen.audit_contexts), chosen.refusals
                batch = replace(batch, requests=[chosen.request])
            requests = batch.requests
            planned = _plan(commit, batch, bases)
            if yields and commit.locked_check is not None and commit.locked_check.has_waiting_session:
                raise LockYielded
            done = held.enter_context(written_in_one_statement(warehouse, commit, bases[0], planned))
            made = done.numbered
            if not done.is_written:
                write_steps(commit, planned.steps, planned.notes)
                if planned.steps or planned.notes:
                    note_batch(commit, requests, batch.digest)
            table_uuid = _find_uuid(commit, requests, bases)
            # A session that started to wait after our check would lose this race; yield to it on the next attempt.
            if yields and (commit.has_waiting_session if done.has_waiting_session is None else done.has_waiting_session):
                raise LockYielded
            if not done.is_written:
                made = held.enter_context(numbered_in_commit(warehouse, commit.conn, bases[0], planned)) if len(bases) == 1 else None
        return CommitResult(None if made is None else made.publish(warehouse), table_uuid, refusals)


def _build_watched(batch: CommitBatch, bases: Sequence[CommitBase]) -> WatchedTable | None:
    """Return the table that is watched under the lock, with the ids that any member of a group names."""
    return build_watched([join_members(bases[0].ident, batch.members)] if batch.members else batch.requests, bases)


def _find_uuid(commit: Commit, requests: Sequence[TableCommit], bases: Sequence[CommitBase]) -> UUID | None:
    """Return the uuid of the table that the commit is about, when it is one; of a new one it is noted with the request's key here."""
    if len(bases) != 1:
        return None
    if bases[0].table is not None:
        return bases[0].table.table_uuid
    made = find_table(commit.conn, to_schema_name(requests[0].ident.namespace), requests[0].ident.name)
    if made is not None:
        commit.write_object(made.table_uuid)
    return None if made is None else made.table_uuid


def _plan(commit: Commit, batch: CommitBatch, bases: Sequence[CommitBase]) -> PlannedCommit:
    """Return what the commit writes, nothing if it has landed before; what was read must still be true."""
    requests = batch.requests
    bases = with_known_ids_under_lock(commit, requests, bases)
    if any(base.is_cached and base.is_outdated(commit) for base in bases):
        raise _BaseChanged
    landed = [is_committed(commit, request, base) for request, base in zip(requests, bases, strict=True)]
    if any(landed) and is_whole_replay(commit, requests, landed, batch.digest):
        return PlannedCommit((), ())
    if any(base.is_outdated(commit) for base in bases):
        raise _BaseChanged
    _check_uuids(requests)
    ids = IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id)
    now_ms = time.time_ns() // 1_000_000
    tables = [plan_table(commit, request, base, ids, now_ms) for request, base in zip(requests, bases, strict=True)]
    check_separate_locations(bases, [table.location for table in tables])
    steps = to_lake_steps(commit.head, ids, [table.steps for table in tables if table.steps])
    return PlannedCommit(steps, [note for table in tables for note in table.notes])


def _check_uuids(requests: Sequence[TableCommit]) -> None:
    """Raise BadRequest when two tables are to have one uuid."""
    wanted = Counter(uuid for request in requests for uuid in {each.uuid for each in request.body.updates if isinstance(each, AssignUuid)})
    twice = [uuid for uuid, count in wanted.items() if count > 1]
    if twice:
        raise BadRequest(f"Cannot commit: two tables are to have the uuid {twice[0]}; give each its own.")


def check_named_once(requests: Sequence[TableCommit]) -> None:
    """Raise BadRequest when a request names one table twice: DuckDB folds case."""
    seen: dict[tuple[str, str], TableCommit] = {}
    for request in requests:
        folded = fold_name(to_schema_name(request.ident.namespace)), fold_name(request.ident.name)
        other = seen.setdefault(folded, request)
        if other is not request:
            raise BadRequest(
                f"Cannot commit: {other.ident} and {request.ident} are one table, as DuckDB folds case; "
                "put all its updates into one change."
            )


def check_separate_locations(bases: Sequence[CommitBase], locations: Sequence[str]) -> None:
    """Raise BadRequest when a table comes to a location within another's of the same request, or around it, or to the same."""
    if len(bases) < 2:
        return
    stays = [base.metadata is not None and base.metadata.location == location for base, location in zip(bases, locations, strict=True)]
    # what begins with a folder's name stands right behind it
    folders = sorted((to_folder_uri(location), stayed, location) for location, stayed in zip(locations, stays, strict=True))
    for (outer, first_stays, first), (inner, second_stays, second) in zip(folders, folders[1:], strict=False):
        if inner.startswith(outer) and not (first_stays and second_stays):
            raise BadRequest(
                f"The location {second!r} lies in another table's of the same request, or is the same: {first!r}. Choose another."
            )


def is_whole_replay(commit: Commit, requests: Sequence[TableCommit], landed: Sequence[bool], digest: str) -> bool:
    """Return True if a request of which a part has been committed was committed as a whole.

    Updates without a snapshot, and dropped tables, leave no trace; such replays are found by the request's digest.
    Raises: CommitFailed: it is another request that holds something of an earlier one
    """
    if all(landed) or has_transaction(commit.conn, digest):
        return True
    done = next(request for request, is_there in zip(requests, landed, strict=True) if is_there)
    missing = next(request for request, is_there in zip(requests, landed, strict=True) if not is_there)
    raise CommitFailed(
        f"What the request asks of {done.ident} was committed before, and what it asks of {missing.ident} was not part of that; "
        "nothing was done. Load the tables and commit what is missing."
    )


def note_batch(commit: Commit, requests: Sequence[TableCommit], digest: str) -> None:
    """Remember a request over several tables, in its own transaction, if a copy of it is to be known."""
    if digest and any(_is_shown_by_table(request) for request in requests):
        note_transaction(commit.conn, digest)


def is_batch_committed(conn: psycopg.Connection, requests: Sequence[TableCommit], digest: str) -> bool:
    """Return True if a request was committed before, even if some of its tables are dropped."""
    return any(list_added(request.body.updates) for request in requests) and has_transaction(conn, digest)


def _is_shown_by_table(request: TableCommit) -> bool:
    """Return True if the table itself shows that the request has been committed."""
    return bool(list_added(request.body.updates)) or is_create(request.body.requirements)


def compute_batch_digest(requests: Sequence[TableCommit]) -> str:
    """Return the digest of the updates of a request over several tables, without its requirements; empty for one table."""
    if len(requests) < 2:
        return ""
    whole = sha256()
    for request in sorted(requests, key=lambda request: (request.ident.namespace, request.ident.name)):
        whole.update(repr((request.ident, request.body.updates)).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()
