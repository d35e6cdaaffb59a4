"""Merges and reverts over REST: each is one transaction, and a repeated request with the same key gets the same answer.

Runs on a thread of the pool.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from duckicelake.catalog.idempotency import RequestContext, run_once
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CommitStateUnknown, LakeBusy, MergeConflicts
from duckicelake.lake.branches.merge import MergeRequest, check_plan, describe_conflict, describe_result, merge_locked, plan_merge, preview
from duckicelake.lake.branches.merge_rules import build_resolution
from duckicelake.lake.branches.registry import MAIN
from duckicelake.lake.branches.revert import RevertRequest, describe_revert, revert_locked
from duckicelake.lake.branches.revert import preview_revert as try_revert
from duckicelake.lake.connect import connecting, reading
from duckicelake.lake.install import LOCK_PAUSE_S
from duckicelake.lake.writing.idempotency import find_outcome, note_answer
from duckicelake.lake.writing.transaction import committing

__all__ = ["MergeRequest", "RevertRequest", "build_resolution", "merge", "preview_merge", "preview_revert", "revert"]

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
    """Merge a branch into the lake and return what was done.

    Raises: MergeConflicts: something stands against it, as JSON; nothing was written. LakeBusy: others held its locks all the time
    """
    return _run(warehouse, asked, lambda opened: _merge_once(opened, request))


def _run(warehouse: Warehouse, asked: RequestContext, apply: Callable[[Warehouse], dict[str, Any]]) -> dict[str, Any]:
    try:
        return run_once(warehouse, asked, lambda opened: _try_often(opened, apply), lambda opened, _: _repeat(opened, asked))
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
    """Revert a lake snapshot of the lake or of a branch, and return what was done. Raises: what `merge` raises; NotFound, BadRequest."""
    return _run(warehouse, asked, lambda opened: _revert_once(opened, request))


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
        commit.note(result.snapshot_id)
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
