"""Commits: one or several tables changed in one transaction, if the requirements of the requests hold.

`rest/routes/table_commits.py` calls this on worker threads, and `is_contended` on the event loop. The steps are the modules
`prepare`, `lock`, `plan` and `write`; if a table changes between the first two, the commit prepares the requests again.
"""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from duckicelake.catalog.commits.lock import BaseChanged, Locked, locking
from duckicelake.catalog.commits.plan import plan
from duckicelake.catalog.commits.prepare import (
    Prepared,
    find_landed,
    find_published,
    is_newest,
    prepare_from_cache,
    prepare_request,
    remove_written,
)
from duckicelake.catalog.commits.requests import CommitBatch, GroupMember, TableCommit, build_group, build_transaction
from duckicelake.catalog.commits.unreadable import hide_columns, is_hiding
from duckicelake.catalog.commits.write import Committed, load_committed, show, writing
from duckicelake.catalog.incoming.client_manifests import ClientManifests
from duckicelake.catalog.table_changes import load_committed_table
from duckicelake.catalog.tables import Ident, LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import (
    AlreadyExists,
    BadRequest,
    CommitFailed,
    CommitGaveUp,
    CommitStateUnknown,
    Forbidden,
    LakeBusy,
    LakeMoved,
    NoSuchNamespace,
    NoSuchTable,
    Unprocessable,
    Unsupported,
)
from duckicelake.lake.connect import reading
from duckicelake.lake.writing.idempotency import RequestRepeated, has_transaction
from duckicelake.lake.writing.waiting_sessions import LockYielded

COMMIT_TRIES = 60
"""More than fit into `COMMIT_S` where others commit to the table in a loop: that is the limit then."""
COMMIT_S = 20.0
"""After so long no try is begun that waits for the lock again, which may take `LOCK_WAIT_S`: clients give up after a minute."""
WAYS_GIVEN = 6
READ_TRIES = 3
REFUSALS = (
    *(AlreadyExists, BadRequest, CommitFailed, Forbidden, NoSuchNamespace, NoSuchTable, RequestRepeated, Unprocessable, Unsupported),
)
"""Raised only before COMMIT, so nothing in the lake names what was written for the request."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """The number of tries of a commit when others are first. `is_first_of_many`: its caller tries again if all are lost.

    `trusts_cache`: no other server has changed the table since this one did, although another one has done so recently.
    """

    count: int = COMMIT_TRIES
    is_first_of_many: bool = False
    trusts_cache: bool = False


ALL_ATTEMPTS = Attempts()
WITHOUT_TURN = Attempts(4, is_first_of_many=True)
"""A commit races other servers so often before it takes turns with them."""
KEPT_TURN = Attempts(trusts_cache=True)


class RacesLost(Exception):
    """Others were first with all attempts that are not the last ones; nothing was done."""


@dataclass(slots=True)
class PreparedOnce:
    """A prepared request for one use: what takes it commits it, or removes the files written for it.

    So no other try names removed files. `manifests` were read for it, and serve every try.
    """

    manifests: ClientManifests | None
    _untaken: Prepared | None

    def take(self) -> Prepared | None:
        """Return the prepared request, None if it was taken before."""
        prepared, self._untaken = self._untaken, None
        return prepared


class GroupUnknown(Exception):
    """It is unknown what became of a group, or it cannot be shown. `refusals` are the errors of the members that were left out."""

    def __init__(self, error: CommitStateUnknown, refusals: Mapping[int, CommitFailed]) -> None:
        super().__init__(error.message)
        self.error = error
        self.refusals = refusals


def commit_prepared(
    warehouse: Warehouse, request: TableCommit, offered: PreparedOnce | None = None, attempts: Attempts = ALL_ATTEMPTS
) -> LoadedTable:
    """Change or create one table and return its new state. `offered` is used if its base is still the newest one known.

    Raises: CommitFailed: a requirement does not hold. BadRequest: the request contradicts itself, or DuckLake cannot hold it.
    NoSuchTable, NoSuchNamespace, AlreadyExists. CommitStateUnknown: the outcome is unknown, or the new state cannot be published.
    RacesLost: `attempts` are used up
    """
    try:
        committed = _commit(warehouse, CommitBatch([request]), offered, attempts)
    except Unsupported:
        if not is_hiding(request):
            raise
        return _hide_columns(warehouse, request)
    return load_committed(warehouse, request.ident, committed)


def _hide_columns(warehouse: Warehouse, request: TableCommit) -> LoadedTable:
    """Do what `hide_columns` does. Raises: CommitGaveUp: others held the lake's lock, or maintenance went on; nothing was done."""
    try:
        return hide_columns(warehouse, request)
    except (LakeBusy, LakeMoved) as error:
        raise CommitGaveUp(error.message) from error


def prepare(warehouse: Warehouse, request: TableCommit) -> PreparedOnce:
    """Return a request with the client's manifests read. Nothing is locked, and its base may be outdated at once.

    Raises: CommitFailed: a requirement does not hold of the table as it is now, and the request has not landed. What `commit_prepared`
    raises
    """
    [prepared] = _prepare_all(warehouse, [request], [None], from_cache=True)
    return PreparedOnce(prepared.manifests, prepared)


def discard_untaken(warehouse: Warehouse, offered: PreparedOnce | None) -> None:
    """Remove the data files and delete files that were written for a request that no try has taken."""
    prepared = None if offered is None else offered.take()
    if prepared is not None:
        _discard(warehouse, [prepared])


def commit_group(
    warehouse: Warehouse, ident: Ident, members: Sequence[GroupMember], attempts: Attempts = ALL_ATTEMPTS
) -> list[LoadedTable | CommitFailed | CommitStateUnknown]:
    """Commit requests that change only properties of one table in one transaction, and return the result of each.

    A member whose requirements do not hold is refused even if the outcome of the others is unknown: it was no part of their transaction.
    Raises: RacesLost. What `commit_prepared` raises but for CommitStateUnknown: nothing was done, and each may be committed alone
    """
    refusals: Mapping[int, CommitFailed] = {}
    result: LoadedTable | CommitStateUnknown | None = None
    try:
        committed = _commit(warehouse, build_group(ident, members), attempts=attempts)
        refusals = committed.refusals
        if len(refusals) < len(members):
            result = load_committed(warehouse, ident, committed)
    except GroupUnknown as error:
        refusals, result = error.refusals, error.error
    except CommitStateUnknown as error:
        result = error
    return [refusals.get(number) or _not_none(result) for number in range(len(members))]


def _not_none(result: LoadedTable | CommitStateUnknown | None) -> LoadedTable | CommitStateUnknown:
    assert result is not None, "a group of which every member was refused has no other result"
    return result


def load_landed(warehouse: Warehouse, request: TableCommit) -> LoadedTable | None:
    """Return the table if the request has landed before, None if it has not."""
    table = find_landed(warehouse, request)
    return None if table is None else load_committed_table(warehouse, request.ident, table.table_uuid)


def commit_tables(warehouse: Warehouse, requests: Sequence[TableCommit]) -> None:
    """Change or make several tables, all or none; none at all is nothing to do. Raises what `commit_prepared` raises."""
    batch = build_transaction(requests)
    try:
        if requests:
            _commit(warehouse, batch)
    except (AlreadyExists, BadRequest, CommitFailed, NoSuchNamespace, NoSuchTable):
        # A replay may find its tables dropped or replaced.
        with reading(warehouse.lake) as conn:
            if not batch.digest or not any(request.list_added() for request in requests) or not has_transaction(conn, batch.digest):
                raise


def have_landed(warehouse: Warehouse, requests: Sequence[TableCommit]) -> bool:
    """Return True if a request for several tables has been committed before. One without snapshots is to be done again."""
    batch = build_transaction(requests)
    if not any(request.list_added() for request in requests):
        return False
    with reading(warehouse.lake) as conn:
        if batch.digest and has_transaction(conn, batch.digest):
            return True
    return all(find_landed(warehouse, request) is not None for request in requests)


def _commit(warehouse: Warehouse, batch: CommitBatch, offered: PreparedOnce | None = None, attempts: Attempts = ALL_ATTEMPTS) -> Committed:
    """Commit a batch, prepared again as often as a table changes meanwhile, and tried again when DuckDB goes first."""
    first = None if offered is None else offered.take()
    prepared: Sequence[Prepared] = () if first is None else [first]
    manifests: Sequence[ClientManifests | None] = [None] * len(batch.requests) if offered is None else [offered.manifests]
    if first is not None and not is_newest(warehouse, first):
        prepared, manifests = (), _give_up(warehouse, prepared)
    until = time.monotonic() + COMMIT_S
    for number in range(attempts.count):
        try:
            from_cache = number == 0 and (attempts.trusts_cache or not is_contended(warehouse, batch.requests))
            prepared = prepared or _prepare_all(warehouse, batch.requests, manifests, from_cache=from_cache)
            yields = number < WAYS_GIVEN and time.monotonic() < until
            return _commit_once(warehouse, batch, prepared, yields=yields)
        except BaseChanged:
            note_race(warehouse, batch.requests)
            # A cached base was never checked for a replay, so read the table again before refusing.
            is_over = time.monotonic() > until and not any(each.is_cached for each in prepared)
            prepared, manifests = (), _give_up(warehouse, prepared)
            if is_over:
                break
        except LockYielded:
            pass
        except REFUSALS:
            _discard(warehouse, prepared)
            raise
        except LakeBusy as error:
            _discard(warehouse, prepared)
            raise CommitGaveUp(error.message) from error
    _discard(warehouse, prepared)
    if attempts.is_first_of_many:
        raise RacesLost
    raise CommitGaveUp("The table was changed again and again while this commit was being made; nothing was done. Try again.")


def _commit_once(warehouse: Warehouse, batch: CommitBatch, prepared: Sequence[Prepared], *, yields: bool) -> Committed:
    """Lock, plan, write, COMMIT and show."""
    with ExitStack() as held:
        with locking(warehouse, batch, prepared, yields=yields) as locked:
            held.enter_context(_with_refusals(locked))
            written = held.enter_context(writing(warehouse, locked, plan(locked), yields=yields))
        if locked.has_landed:
            _discard(warehouse, prepared)
        return show(warehouse, written, locked)


@contextmanager
def _with_refusals(locked: Locked) -> Generator[None]:
    """Give the errors of the members of a group that were left out to an error about the others."""
    try:
        yield
    except CommitStateUnknown as error:
        if not locked.refusals:
            raise
        raise GroupUnknown(error, locked.refusals) from error


def note_race(warehouse: Warehouse, requests: Sequence[TableCommit]) -> None:
    """Remember that another process has changed the table of a request."""
    if len(requests) == 1:
        warehouse.caches.note_race(requests[0].ident.stored)


def is_contended(warehouse: Warehouse, requests: Sequence[TableCommit]) -> bool:
    """Return True if another process has recently changed the table of a request, so that a cached base is outdated."""
    return len(requests) == 1 and warehouse.caches.is_contended(requests[0].ident.stored)


def _give_up(warehouse: Warehouse, prepared: Sequence[Prepared]) -> Sequence[ClientManifests | None]:
    """Remove what was written for outdated bases, and return the manifests that were read for them, to prepare the requests again."""
    _discard(warehouse, prepared)
    return [each.manifests for each in prepared]


def _discard(warehouse: Warehouse, prepared: Sequence[Prepared]) -> None:
    """Remove what was written for a commit that is not done."""
    remove_written(warehouse, [uri for each in prepared for uri in each.files.written])


def _prepare_all(
    warehouse: Warehouse, requests: Sequence[TableCommit], manifests: Sequence[ClientManifests | None], *, from_cache: bool
) -> list[Prepared]:
    """Prepare each request, from the cache if it is only one. If one is refused, what was written for those before it is removed."""
    if len(requests) != 1:
        several: list[Prepared] = []
        with ExitStack() as undone:
            undone.callback(_discard, warehouse, several)
            for request, read in zip(requests, manifests, strict=True):
                several.append(_prepare(warehouse, request, read, refuses=False))
            undone.pop_all()
        return several
    [request], [read] = requests, manifests
    cached = prepare_from_cache(warehouse, request, read) if from_cache else None
    if cached is not None:
        return [cached]
    known = find_published(warehouse, request)
    prepared = _prepare(warehouse, request, read, refuses=True)
    if known is not None and prepared.base.published is not None and prepared.base.published is not known:
        # A commit that has its turn loses no race, and still meets the other server.
        note_race(warehouse, requests)
    return [prepared]


def _prepare(warehouse: Warehouse, request: TableCommit, manifests: ClientManifests | None, *, refuses: bool) -> Prepared:
    """Prepare a request, again after a concurrent change; the lake is not locked yet.

    Raises: CommitGaveUp: maintenance went on, or others held the lake's lock. Clients take any 5xx for an unknown outcome
    """
    moved: LakeMoved | None = None
    for _ in range(READ_TRIES):
        try:
            return prepare_request(warehouse, request, manifests, refuses=refuses)
        except LakeMoved as error:
            moved = error
        except LakeBusy as error:
            raise CommitGaveUp(error.message) from error
    assert moved is not None
    raise CommitGaveUp(f"{moved.message} Nothing was done; try again.") from moved
