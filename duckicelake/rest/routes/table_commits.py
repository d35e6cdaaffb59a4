"""Commits to one table and to several: they wait for their turn on the event loop, and are committed in threads.

`layers.fast_paths` calls `update_table`, with its arguments by position; FastAPI's route for it is there for its description.

A commit passes through three functions: `parse_commit` (no I/O), `prepare_commit` (before the turn and without the lake's lock: reads
Postgres and the client's manifests, and may write objects), and `commit_alone` (in the turn). A commit that requires a branch to be as it
was, and comes while another one moves that branch, is prepared when the other one is done: nearly always it is refused then, before its
manifests are read. Requests that change only properties are not prepared: one turn commits all of them that wait in a row.
"""

from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TypeVar

from fastapi import Response
from starlette.concurrency import run_in_threadpool

from duckicelake.access.policy import TABLE
from duckicelake.catalog.commits import commit
from duckicelake.catalog.commits.commit import Attempts, PreparedOnce
from duckicelake.catalog.commits.requests import GroupMember, TableCommit, to_request
from duckicelake.catalog.idempotency import RequestContext, reopen, run_once
from duckicelake.catalog.table_changes import load_committed_table
from duckicelake.catalog.tables import Ident, LoadedTable, with_client_ids
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CatalogError, CommitGaveUp, CommitStateUnknown
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.requests.bodies import add_to_summaries, parse_commit_table, parse_transaction
from duckicelake.iceberg.requests.requirements import AssertRefSnapshotId, is_create
from duckicelake.iceberg.requests.updates import SetSnapshotRef
from duckicelake.rest.auth.delegation import note_signing
from duckicelake.rest.auth.permissions import check_commit, check_moved
from duckicelake.rest.cached_response import ResponseCache
from duckicelake.rest.changes_in_turn import PARSED_BYTES, RequestedChange, change_in_turn
from duckicelake.rest.context import RequestTarget, ServerContext, Target
from duckicelake.rest.openapi import TABLE_COMMIT, TRANSACTION
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import Levels, TableName
from duckicelake.rest.request_bodies import Body, Key, check_identifier, describe_body
from duckicelake.rest.routes.tables import (
    COMMITTED,
    MultipartBodyResponse,
    add_objects,
    list_commit_result,
    list_etag_parts,
    renew_cached_load,
    to_ident,
    to_levels,
)
from duckicelake.rest.turns import TableKey, Turns, TurnTimeout, Waiter

Result = TypeVar("Result")
TOO_LATE = "Other changes of the table took so long that this commit was not begun; nothing was done. Try again."


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A commit to one table that its sender may make."""

    target: RequestTarget
    warehouse: Warehouse
    commit: TableCommit
    context: RequestContext
    cache: ResponseCache

    @property
    def may_be_grouped(self) -> bool:
        """True if other requests that change only properties may be committed with this one."""
        return self.context.key is None and self.commit.only_sets_properties

    @property
    def required_refs(self) -> Set[str]:
        """The branches and tags that the request requires to be as they were, if it has manifests that are to be read."""
        requirements = self.commit.requirements if self.commit.list_added() else ()
        return {requirement.ref for requirement in requirements if isinstance(requirement, AssertRefSnapshotId)}

    @property
    def moved_refs(self) -> Set[str]:
        """The branches and tags that the request moves."""
        return {update.name for update in self.commit.updates if isinstance(update, SetSnapshotRef)}

    @property
    def table_key(self) -> TableKey:
        """The table whose turn the request takes."""
        return self.warehouse.name, self.commit.ident.namespace, self.commit.ident.name


class TableCommitRoutes:
    """Handlers of the operations that commit to tables."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._turns: Turns[CommitRequest, Response] = context.turns

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "updateTable": OperationHandler(self.update_table, responses=COMMITTED, body=describe_body(TABLE_COMMIT)),
            "commitTransaction": OperationHandler(self.commit_transaction, status=204, body=describe_body(TRANSACTION)),
        }

    async def update_table(self, target: Target, levels: Levels, name: TableName, body: Body, key: Key) -> Response:
        """Commit updates to a table."""
        parts = self._context, target, Ident(levels, name), body, key
        request = parse_commit(*parts) if len(body) <= PARSED_BYTES else await run_in_threadpool(parse_commit, *parts)
        with self._turns.place(request.table_key):
            if request.may_be_grouped:
                return await self._commit_in_group(request)
            if request.context.key is not None:
                await run_in_threadpool(reopen, request.warehouse, request.context.key)
            return await self._commit_in_turn(request)

    async def _commit_in_turn(self, request: CommitRequest) -> Response:
        """Commit a request alone in its turn, prepared before the turn if it adds snapshots."""
        turns, table_key, prepared = self._turns, request.table_key, None
        try:
            waited_s = await turns.wait_for_refs(table_key, request.required_refs)
            prepared = await run_in_threadpool(prepare_commit, request) if request.commit.list_added() else None
            began = monotonic()
            async with turns.turn([table_key], waited_s):
                self._context.metrics.observe_commit_wait(waited_s + monotonic() - began)
                with turns.moving_refs(table_key, request.moved_refs):
                    return await self._race(request, partial(commit_alone, request, prepared))
        except TurnTimeout:
            return await run_in_threadpool(answer_late, request, prepared)

    async def _commit_in_group(self, request: CommitRequest) -> Response:
        """Commit a request with those that wait right behind it, or return what another request's turn has answered it."""
        turns, key, began = self._turns, request.table_key, monotonic()
        try:
            answer = await turns.wait(key, request)
        except TurnTimeout:
            return await run_in_threadpool(answer_late, request)
        self._context.metrics.observe_commit_wait(monotonic() - began)
        if isinstance(answer, CatalogError):
            raise answer
        if answer is not None:
            return answer
        try:
            return await self._commit_gathered(request, turns.gather(key))
        finally:
            turns.release(key)

    async def _commit_gathered(self, request: CommitRequest, waiters: Sequence[Waiter[CommitRequest, Response]]) -> Response:
        """Commit a request with others, answer those, and return the response to the request."""
        try:
            requests = [request, *(waiter.request for waiter in waiters if waiter.request is not None)]
            first, *others = await self._race(request, partial(commit_each, requests))
        except BaseException:
            # The thread goes on, or failed with an unknown outcome.
            answer_all(waiters, [CommitStateUnknown("The server failed while it committed; look before trying again.")] * len(waiters))
            raise
        self._turns.grouped_count += len(waiters) + 1 if waiters else 0
        answer_all(waiters, others)
        if isinstance(first, CatalogError):
            raise first
        return first

    async def _race(self, request: CommitRequest, act: Callable[[Attempts], Result]) -> Result:
        """Return what a commit returns that is tried so often, in the turn between servers if another one is in its way."""
        server_turns = self._context.get_lake(request.target.prefix).server_turns
        if server_turns is None:
            return await run_in_threadpool(act, commit.ALL_ATTEMPTS)
        if not commit.is_contended(request.warehouse, [request.commit]):
            with suppress(commit.RacesLost):
                return await run_in_threadpool(act, commit.WITHOUT_TURN)
        async with server_turns.turn(str(request.commit.ident)) as is_kept:
            return await run_in_threadpool(act, commit.KEPT_TURN if is_kept else commit.ALL_ATTEMPTS)

    async def commit_transaction(self, target: Target, body: Body, key: Key) -> Response:
        """Commit updates to several tables, all or none."""
        requests = await run_in_threadpool(parse_transaction_commits, target, body, key)
        idents = [request.ident for request in requests]
        change = RequestedChange(
            self._context.get_warehouse(target),
            add_objects(key, *idents),
            lambda w: commit.commit_tables(w, requests),
            lambda _, __: None,
            lambda w: commit.have_landed(w, requests),
            is_commit=True,
        )
        await change_in_turn(self._context, idents, change)
        return Response(status_code=204)


def answer_all(waiters: Sequence[Waiter[CommitRequest, Response]], answers: Sequence[Response | CatalogError]) -> None:
    """Give the requests that another one's turn has committed their answers."""
    for waiter, answer in zip(waiters, answers, strict=True):
        if not waiter.turn.done():
            waiter.turn.set_result(answer)


def parse_commit(context: ServerContext, target: RequestTarget, ident: Ident, body: bytes, key: RequestContext) -> CommitRequest:
    """Return the commit that a body asks for. Raises: BadRequest, Forbidden, NoSuchTable, NoSuchWarehouse."""
    asked = add_to_summaries(parse_commit_table(decode_json(body)), key.summary)
    if asked.identifier is not None and to_ident(asked.identifier) != ident:
        raise BadRequest(f"The body names the table {to_ident(asked.identifier)}, and the path {ident}; send one of them.")
    check_commit(target.session, ident.namespace, ident.name, creates=is_create(asked.requirements))
    return CommitRequest(target, context.get_warehouse(target), to_request(ident, asked, checks_types=key.checks_types), key, context.cache)


def parse_transaction_commits(target: RequestTarget, body: bytes, key: RequestContext) -> list[TableCommit]:
    """Return the commits that a body asks for. Raises: BadRequest, Forbidden, NoSuchTable."""
    requests: list[TableCommit] = []
    for asked in parse_transaction(decode_json(body)):
        assert asked.identifier is not None
        ident = to_ident(check_identifier(asked.identifier))
        check_commit(target.session, ident.namespace, ident.name, creates=is_create(asked.requirements))
        requests.append(to_request(ident, add_to_summaries(asked, key.summary), checks_types=key.checks_types))
    return requests


def prepare_commit(request: CommitRequest) -> PreparedOnce | None:
    """Return the request with the client's manifests read, or raise why it is refused.

    A request with an idempotency key is refused in its turn alone, because a copy of it may have been committed: None then.
    """
    try:
        return commit.prepare(request.warehouse, request.commit)
    except CatalogError:
        if request.context.key is None:
            raise
        return None


def commit_alone(request: CommitRequest, prepared: PreparedOnce | None, attempts: Attempts) -> Response:
    """Commit one request, and return its response. Raises: RacesLost: none of the attempts was first, and nothing was done."""

    def act(warehouse: Warehouse) -> LoadedTable:
        return commit.commit_prepared(warehouse, request.commit, prepared, attempts)

    try:
        return _answer_once(request, act)
    finally:
        # A request whose key was used before is answered without it.
        commit.discard_untaken(request.warehouse, prepared)


def _answer_once(request: CommitRequest, act: Callable[[Warehouse], LoadedTable]) -> Response:
    """Return the response to a request after `act`, or after a copy of the request that came before."""
    ident = request.commit.ident
    done = run_once(request.warehouse, request.context, act, lambda warehouse, uuid: load_committed_table(warehouse, ident, uuid))
    return build_commit_response(request, done)


def commit_each(requests: Sequence[CommitRequest], attempts: Attempts) -> list[Response | CatalogError]:
    """Commit requests that change only properties of one table together, and return the response to each.

    If the group fails, each is committed alone, so that an error reaches only the request that causes it. An unknown outcome reaches all.
    Raises: RacesLost: none of the attempts was first, and nothing was done
    """
    if len(requests) == 1:
        return [_try_alone(requests[0], attempts)]
    members = [GroupMember(request.commit, request.context.audit_context) for request in requests]
    roots = {request.warehouse.roots for request in requests}
    try:
        if len(roots) > 1:
            return [_try_alone(request) for request in requests]
        done = commit.commit_group(requests[0].warehouse, requests[0].commit.ident, members, attempts)
    except CatalogError:
        return [_try_alone(request) for request in requests]
    return [_try_to_answer(request, table) for request, table in zip(requests, done, strict=True)]


def _try_alone(request: CommitRequest, attempts: Attempts = commit.ALL_ATTEMPTS) -> Response | CatalogError:
    try:
        return commit_alone(request, None, attempts)
    except CatalogError as error:
        return error


def _try_to_answer(request: CommitRequest, done: LoadedTable | CatalogError) -> Response | CatalogError:
    try:
        return done if isinstance(done, CatalogError) else build_commit_response(request, done)
    except CatalogError as error:
        return error


def build_commit_response(request: CommitRequest, done: LoadedTable) -> Response:
    """Return the response to a commit. Raises: CommitStateUnknown: the table was moved to where its sender has no right."""
    check_moved(request.target.session, TABLE, to_levels(done.moved_to))
    done = note_signing(request.warehouse, done)
    renew_cached_load(request.cache, request.target.raw_path, done)
    if request.context.needs_client_ids:
        added = [snapshot.snapshot_id for snapshot in request.commit.list_added()]
        done = with_client_ids(request.warehouse.objects, done, added)
    # Without a client's ids, the ETag equals that of the next load, so the client need not load the table again.
    return MultipartBodyResponse(list_commit_result(done), list_etag_parts(done))


def answer_late(request: CommitRequest, prepared: PreparedOnce | None = None) -> Response:
    """Return the response to a request whose turn did not come, if it has been committed before.

    Raises: CommitGaveUp: it has not; nothing was done
    """

    def refuse(warehouse: Warehouse) -> LoadedTable:
        landed = commit.load_landed(warehouse, request.commit)
        if landed is None:
            raise CommitGaveUp(TOO_LATE)
        return landed

    try:
        return _answer_once(request, refuse)
    finally:
        commit.discard_untaken(request.warehouse, prepared)
