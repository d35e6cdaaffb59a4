"""A lake with its branches and tags, as REST shows it: made, listed, renamed, reset, deleted and merged; their logs and differences.

`rest` calls this on worker threads. Lists, logs and differences are read in one transaction; branches are made and deleted on a connection
outside the pool, on which a revert is also tried for its preview, and rolled back. A merge is planned in a read transaction. Each change is
one transaction, with its line of the audit log and the key of its request: a repeated request gets the same answer. A collection of garbage
is one for each member, and another one for line and key. `commands.branches` calls `lake.branches` itself, without lines. The store is
not touched.
"""

import json
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from duckicelake.catalog.idempotency import RequestContext, run_once
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, CommitStateUnknown, LakeBusy, MergeConflicts, NoSuchRef, ServiceUnavailable
from duckicelake.lake.audit_log import DONE, AuditLine, log_line, write_line
from duckicelake.lake.branches.create import BranchRequest, create_branch, create_prepared, parse_at, prepare_creation
from duckicelake.lake.branches.delete import collect_garbage, delete_found, delete_left_snapshots, note_reader, release_tag
from duckicelake.lake.branches.diff import Diff, read_diff
from duckicelake.lake.branches.log import NEWEST, LogEntry, describe_diff, describe_entry, read_log
from duckicelake.lake.branches.merge import MergeRequest, check_plan, describe_conflict, describe_result, merge_locked, plan_merge, preview
from duckicelake.lake.branches.merge_rules import build_resolution
from duckicelake.lake.branches.registry import (
    MAIN,
    Branch,
    check_name,
    drop_deleted,
    find_branch,
    get_branch,
    get_ref_schema,
    has_snapshot,
    is_installed,
    list_branches,
    prepare_rename,
    rename_locked,
)
from duckicelake.lake.branches.reset import reset_locked
from duckicelake.lake.branches.revert import RevertRequest, describe_revert, revert_locked
from duckicelake.lake.branches.revert import preview_revert as try_revert
from duckicelake.lake.branches.spare import prepare_spare as make_spare
from duckicelake.lake.branches.spare import remove_spare as drop_spare
from duckicelake.lake.connect import Lake, connecting, in_transaction, reading, writing
from duckicelake.lake.install import LOCK_PAUSE_S
from duckicelake.lake.writing.idempotency import claim_key, find_outcome, note_answer
from duckicelake.lake.writing.transaction import committing

__all__ = [
    "MAIN",
    "NEWEST",
    "Branch",
    "BranchRequest",
    "MergeRequest",
    "RevertRequest",
    "build_resolution",
    "check_branch_name",
    "collect",
    "describe_diff",
    "describe_entry",
    "diff_refs",
    "format_branch",
    "list_log",
    "list_made",
    "make",
    "merge",
    "parse_at",
    "preview_merge",
    "preview_revert",
    "remove",
    "rename",
    "reset",
    "revert",
]


def check_branch_name(warehouse: Warehouse, name: str) -> None:
    """Raise BadRequest unless a branch may have that name."""
    check_name(name, warehouse.lake.metadata_schema)


def list_made(warehouse: Warehouse, *, is_tag: bool = False) -> list[tuple[Branch, str | None]]:
    """Return the branches, or the tags, oldest first, each with the name of what it was made from; None: that is deleted."""
    with reading(warehouse.lake) as conn:
        branches = list_branches(conn)
    names = {branch.schema_name: branch.name for branch in branches} | {warehouse.lake.metadata_schema: MAIN}
    return [(branch, names.get(branch.parent)) for branch in branches if branch.is_tag == is_tag]


def make(warehouse: Warehouse, asked: RequestContext, request: BranchRequest) -> tuple[Branch, str | None]:
    """Make a branch or a tag and return it as `list_made` does; a request with the same key makes it once.

    Raises: what `create_branch` raises; Forbidden: the server's Postgres role may not create schemas
    """
    done = _run(warehouse, asked, lambda opened: _make_once(opened, request))
    return _get_made(warehouse, done, f"{request.name[:64]!r} was made, and has been deleted since.", is_tag=request.is_tag)


def _make_once(warehouse: Warehouse, request: BranchRequest) -> dict[str, Any]:
    lake = warehouse.lake
    with connecting(lake) as conn:
        prepare_creation(conn, lake.metadata_schema, request)
        with in_transaction(conn), _recording(lake, conn) as answer:
            answer |= _identify(create_prepared(conn, lake.metadata_schema, request))
    _log(lake)
    return answer


@contextmanager
def _recording(lake: Lake, conn: psycopg.Connection) -> Generator[dict[str, Any]]:
    """Claim the key of the request in an open transaction, and at the end store the answer with it and write the audit line.

    Yields the answer, which the caller fills. Raises: RequestRepeated.
    """
    answer: dict[str, Any] = {}
    if lake.request is not None:
        claim_key(conn, lake.request)
    yield answer
    if lake.request is not None:
        note_answer(conn, lake.request, json.dumps(answer))
    if lake.audit_context is not None:
        write_line(conn, lake.audit_context, None)


def _log(lake: Lake) -> None:
    """Write the audit line of a change that has committed into the server's log."""
    if lake.audit_context is not None:
        log_line(AuditLine(lake.audit_context, DONE))


def prepare_spare(warehouse: Warehouse) -> None:
    """Make relations ahead for the next branch of the lake, unless there are some."""
    with connecting(warehouse.lake) as conn:
        make_spare(conn, warehouse.lake.metadata_schema)


def remove_spare(warehouse: Warehouse, idle_s: float = 0.0) -> bool:
    """Remove the relations that were made ahead if no branch has claimed them for so long. Return True if the lake has none now."""
    with connecting(warehouse.lake) as conn:
        return drop_spare(conn, warehouse.lake.metadata_schema, idle_s)


def remove(warehouse: Warehouse, asked: RequestContext, name: str, *, is_tag: bool = False) -> None:
    """Delete a branch or a tag; a request with the same key deletes it once. Raises: NoSuchRef: there is none of exactly that name."""
    _run(warehouse, asked, lambda opened: _remove_once(opened, name, is_tag=is_tag))


def _remove_once(warehouse: Warehouse, name: str, *, is_tag: bool) -> dict[str, Any]:
    lake = warehouse.lake
    with connecting(lake) as conn:
        with in_transaction(conn), _recording(lake, conn) as answer:
            found = find_branch(conn, name)
            if found is None or found.name != name or found.is_tag != is_tag:
                raise NoSuchRef(f"{'Tag' if is_tag else 'Branch'} does not exist: {name[:64]!r}.")
            number = delete_found(conn, found)
        _log(lake)
        drop_deleted(conn, lake.metadata_schema, number)
    return answer


def rename(warehouse: Warehouse, asked: RequestContext, name: str, new_name: str) -> tuple[Branch, str | None]:
    """Rename a branch and return it as `list_made` does; a request with the same key renames it once.

    Raises: what `rename_branch` raises; LakeBusy: another session held the branch all the time
    """
    done = _run(warehouse, asked, lambda opened: _rename_once(opened, name, new_name))
    return _get_made(warehouse, done, f"The branch {name[:64]!r} was renamed, and has been deleted since.")


def _rename_once(warehouse: Warehouse, name: str, new_name: str) -> dict[str, Any]:
    lake = warehouse.lake
    with connecting(lake) as conn:
        prepare_rename(conn, lake.metadata_schema, new_name)
    with writing(lake) as conn, in_transaction(conn), _recording(lake, conn) as answer:
        answer |= _identify(rename_locked(conn, name, new_name))
    _log(lake)
    return answer


def _identify(branch: Branch) -> dict[str, Any]:
    """Return what is stored of a branch with the key of a request: another one may get its name and metadata schema later."""
    return {"metadata-schema": branch.schema_name, "created-at": branch.created_at.isoformat()}


def _get_made(warehouse: Warehouse, done: Mapping[str, Any], message: str, *, is_tag: bool = False) -> tuple[Branch, str | None]:
    """Return the branch or tag that `_identify` described, as `list_made` does. Raises: NoSuchRef, with this message."""
    made = next((made for made in list_made(warehouse, is_tag=is_tag) if _identify(made[0]) == done), None)
    if made is None:
        raise NoSuchRef(message)
    return made


def reset(warehouse: Warehouse, asked: RequestContext, name: str) -> tuple[Branch, str | None]:
    """Let a branch forget what it changed and return it as `list_made` does; a request with the same key resets it once.

    Raises: what `reset_branch` raises; LakeBusy: others held its locks all the time
    """

    def reset_named(opened: Warehouse) -> dict[str, Any]:
        # The branch that has the name now is meant, also if it is renamed while this request waits.
        with reading(opened.lake) as conn:
            branch = get_branch(conn, name)
        return _try_often(opened, lambda warehouse: _reset_once(warehouse, branch))

    done = _run(warehouse, asked, reset_named)
    return _get_made(warehouse, done, f"The branch {name[:64]!r} was reset, and has been deleted since.")


def _reset_once(warehouse: Warehouse, branch: Branch) -> dict[str, Any]:
    answer, key = _identify(branch), warehouse.lake.request
    with committing(warehouse.lake) as commit:
        reset_locked(commit.conn, warehouse.lake.metadata_schema, branch.schema_name)
        commit.note(None)
        if key is not None:
            note_answer(commit.conn, key, json.dumps(answer))
    return answer


def collect(warehouse: Warehouse, asked: RequestContext) -> int:
    """Schedule files that members kept for each other and that none of them needs; return how many are scheduled on all of them.

    One that was killed has no effect that another one does not have: a request with the same key collects again then.
    """
    return _run(warehouse, asked, _collect_once)["scheduled"]


def _collect_once(warehouse: Warehouse) -> dict[str, Any]:
    lake = warehouse.lake
    with connecting(lake) as conn:
        count = collect_garbage(conn, lake.metadata_schema)
        with in_transaction(conn), _recording(lake, conn) as answer:
            answer["scheduled"] = count
    _log(lake)
    return answer


def format_branch(name: str) -> str:
    """Return a branch as the audit log names it."""
    return f"branch:{name}"


SNAPSHOT_TRIES = 10
"""How often the lake's lock is asked for, half a second each: a client that reads waits, and may ask again."""


def open_snapshot(warehouse: Warehouse, snapshot_id: int) -> Branch | None:
    """Make a tag of a lake snapshot, for as long as a server shows it, and return it. None: the lake has no such snapshot.

    Raises: BadRequest: a flush or merge has put its rows into files with newer ones. Forbidden: the role may not create schemas
            ServiceUnavailable: the lake is not idle for some seconds, or a server of another version shows the snapshot
    """
    lake_schema = warehouse.lake.metadata_schema
    with connecting(warehouse.lake) as conn:
        if not has_snapshot(conn, snapshot_id):
            return None
        delete_left_snapshots(conn, lake_schema)
        left = find_branch(conn, str(snapshot_id))
        # Another version made its tag. A server of that version may show it still, in a rolling restart.
        if left is not None and not is_installed(conn, left) and not release_tag(conn, lake_schema, left, ""):
            raise ServiceUnavailable(f"A server of another version shows snapshot {snapshot_id}; try again later, or make a tag of it.")
        try:
            return create_branch(conn, lake_schema, BranchRequest(str(snapshot_id), at=snapshot_id, is_tag=True), SNAPSHOT_TRIES)
        except AlreadyExists as error:
            # Another server shows it, too.
            found = find_branch(conn, str(snapshot_id))
            if found is None:
                raise ServiceUnavailable(f"The tag of snapshot {snapshot_id} has just been deleted elsewhere; try again.") from error
            return found


def note_shown(warehouse: Warehouse, tag: Branch, server: str) -> bool:
    """Note that a server shows the tag of a snapshot. Return False if the tag has just been deleted."""
    with connecting(warehouse.lake) as conn:
        return note_reader(conn, warehouse.lake.metadata_schema, tag, server)


def close_snapshot(warehouse: Warehouse, tag: Branch, server: str) -> None:
    """Delete the tag of a snapshot that is not shown any more, unless another server shows it or has deleted it."""
    with connecting(warehouse.lake) as conn:
        release_tag(conn, warehouse.lake.metadata_schema, tag, server)


def list_names(warehouse: Warehouse) -> set[str]:
    """Return the name of each branch and tag."""
    with reading(warehouse.lake) as conn:
        return {branch.name for branch in list_branches(conn)}


def list_log(warehouse: Warehouse, ref: str, limit: int, before: int = NEWEST) -> list[LogEntry]:
    """Return lake snapshots of the lake (`main`) or of a branch, newest first. Raises: NoSuchRef: there is no such branch."""
    with reading(warehouse.lake) as conn:
        return read_log(conn, get_ref_schema(conn, warehouse.lake.metadata_schema, ref), limit, before)


def diff_refs(warehouse: Warehouse, old: str, new: str) -> Diff:
    """Return what `new` has that `old` has not, and the reverse. Raises: NoSuchRef: there is no such branch."""
    with reading(warehouse.lake) as conn:
        return read_diff(conn, *(get_ref_schema(conn, warehouse.lake.metadata_schema, name) for name in (old, new)))


RETRY_S = 10.0
"""A merge or revert waits half a second for the locks of both sides, and begins again for so long."""


def preview_merge(warehouse: Warehouse, request: MergeRequest) -> dict[str, Any]:
    """Return what a merge would do. Raises: MergeConflicts: something stands against it."""
    with reading(warehouse.lake) as conn:
        planned = plan_merge(conn, warehouse.lake.metadata_schema, request)
        try:
            check_plan(planned, request)
        except MergeConflicts as error:
            raise describe(error) from error
        return describe_result(preview(planned))


def merge(warehouse: Warehouse, asked: RequestContext, request: MergeRequest) -> dict[str, Any]:
    """Merge a branch with the lake or with its parent branch, either way, and return what was done.

    Raises: MergeConflicts: something stands against it, as JSON; nothing was written. LakeBusy: others held its locks all the time
    """
    return _run(warehouse, asked, lambda opened: _try_often(opened, lambda each: _merge_once(each, request)))


def _run(warehouse: Warehouse, asked: RequestContext, act: Callable[[Warehouse], dict[str, Any]]) -> dict[str, Any]:
    try:
        return run_once(warehouse, asked, act, lambda opened, _: _repeat(opened, asked))
    except MergeConflicts as error:
        # The list of conflicts is stored with the key, as the text of the refusal.
        stored: dict[str, Any] = json.loads(error.message)
        raise MergeConflicts(stored["message"], stored["conflicts"]) from error


def preview_revert(warehouse: Warehouse, request: RevertRequest) -> dict[str, Any]:
    """Return what a revert would do. Raises: MergeConflicts: something stands against it. LakeBusy: others hold the lock."""
    with connecting(warehouse.lake) as conn:
        try:
            return describe_revert(try_revert(conn, warehouse.lake.metadata_schema, request), is_planned=True)
        except MergeConflicts as error:
            raise describe(error) from error


def revert(warehouse: Warehouse, asked: RequestContext, request: RevertRequest) -> dict[str, Any]:
    """Revert a lake snapshot of the lake or of a branch, and return what was done. Raises: what `merge` raises; NoSuchRef, BadRequest."""
    return _run(warehouse, asked, lambda opened: _try_often(opened, lambda each: _revert_once(each, request)))


def _revert_once(warehouse: Warehouse, request: RevertRequest) -> dict[str, Any]:
    key = warehouse.lake.request
    with committing(warehouse.lake) as commit:
        result = revert_locked(commit.conn, warehouse.lake.metadata_schema, request)
        # The audit log of the lake names lake snapshots of the lake alone.
        commit.note(result.snapshot_id if request.ref == MAIN else None)
        if key is not None:
            note_answer(commit.conn, key, json.dumps(describe_revert(result)))
    return describe_revert(result)


def describe(error: MergeConflicts) -> MergeConflicts:
    """Return conflicts as JSON shows them."""
    return MergeConflicts(error.message, [describe_conflict(each) for each in error.conflicts])


def _try_often(warehouse: Warehouse, apply: Callable[[Warehouse], dict[str, Any]]) -> dict[str, Any]:
    give_up = time.monotonic() + RETRY_S
    while True:
        try:
            return apply(warehouse)
        except LakeBusy:
            if time.monotonic() > give_up:
                raise
            time.sleep(LOCK_PAUSE_S)
        except MergeConflicts as error:
            found = describe(error)
            raise MergeConflicts(json.dumps({"message": found.message, "conflicts": found.conflicts})) from error


def _merge_once(warehouse: Warehouse, request: MergeRequest) -> dict[str, Any]:
    schema, key = warehouse.lake.metadata_schema, warehouse.lake.request
    with reading(warehouse.lake) as conn:
        planned = plan_merge(conn, schema, request)
        check_plan(planned, request)
        if planned.has_nothing and key is None:
            return describe_result(preview(planned))
    with committing(warehouse.lake) as commit:
        result = merge_locked(commit.conn, schema, request, planned)
        # The audit log of the lake names lake snapshots of the lake alone.
        commit.note(result.snapshot_id if request.into == MAIN else None)
        if key is not None:
            note_answer(commit.conn, key, json.dumps(describe_result(result)))
    return describe_result(result)


def _repeat(warehouse: Warehouse, asked: RequestContext) -> dict[str, Any]:
    assert asked.key is not None
    with reading(warehouse.lake) as conn:
        outcome = find_outcome(conn, asked.key)
    if outcome is None or outcome.message is None:
        raise CommitStateUnknown("The request with this Idempotency-Key has ended; read the log of the lake for what it did.")
    found: dict[str, Any] = json.loads(outcome.message)
    return found
