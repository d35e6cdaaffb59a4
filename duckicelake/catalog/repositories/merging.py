"""Merges of branches over REST: each is one transaction, and a repeated request with the same key gets the same answer.

Runs on a thread of the pool.
"""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

from duckicelake.catalog.idempotency import RequestContext, run_once
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CommitStateUnknown
from duckicelake.lake.branches.merge import (
    MergeRequest,
    check_plan,
    describe_conflict,
    describe_result,
    find_merged,
    merge_locked,
    plan_merge,
    preview,
)
from duckicelake.lake.branches.merge_rules import build_resolution
from duckicelake.lake.connect import reading
from duckicelake.lake.writing.transaction import committing

__all__ = ["MergeRequest", "build_resolution", "describe_conflict", "merge", "preview_merge"]


def preview_merge(warehouse: Warehouse, request: MergeRequest) -> dict[str, Any]:
    """Return what a merge would do. Raises: MergeConflicts: something stands against it."""
    with reading(warehouse.lake) as conn:
        planned = plan_merge(conn, warehouse.lake.metadata_schema, request)
        check_plan(planned, request)
        return describe_result(preview(planned))


def merge(warehouse: Warehouse, asked: RequestContext, request: MergeRequest) -> dict[str, Any]:
    """Merge a branch into the lake and return what was done. Raises: MergeConflicts: something stands against it; nothing was written."""
    keyed = replace(request, key=None if asked.key is None else str(asked.key.key))
    return run_once(warehouse, asked, lambda opened: _merge(opened, keyed), lambda opened, _: _repeat(opened, asked))


def _merge(warehouse: Warehouse, request: MergeRequest) -> dict[str, Any]:
    schema = warehouse.lake.metadata_schema
    with reading(warehouse.lake) as conn:
        planned = plan_merge(conn, schema, request)
        check_plan(planned, request)
        if planned.has_nothing:
            return describe_result(preview(planned))
    with committing(warehouse.lake) as commit:
        result = merge_locked(commit.conn, schema, request, planned)
        commit.note(result.snapshot_id)
    return describe_result(result)


def _repeat(warehouse: Warehouse, asked: RequestContext) -> dict[str, Any]:
    key: UUID | None = None if asked.key is None else asked.key.key
    with reading(warehouse.lake) as conn:
        text = find_merged(conn, str(key))
    if text is None:
        raise CommitStateUnknown("The merge landed, and its lake snapshot has expired since; read the log of the lake.")
    found: dict[str, Any] = json.loads(text)["merge"]
    return found
