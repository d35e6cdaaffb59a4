"""Handlers for a lake with its branches: logs, differences, merges and reverts. They need `manage`, merges a right to merge at least."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import Path, Query, Response
from fastapi.responses import JSONResponse

from duckicelake.catalog.repositories import branches, history, merging
from duckicelake.errors import Forbidden, MergeConflicts
from duckicelake.iceberg.json_reader import as_object, decode_json, find_text, find_text_map, get_flag, get_long, get_text
from duckicelake.rest.auth.permissions import check_merge
from duckicelake.rest.context import ServerContext, Target
from duckicelake.rest.errors import get_status_and_type
from duckicelake.rest.openapi import MERGE, REVERT
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import decode_segment
from duckicelake.rest.request_bodies import Body, Key, describe_body
from duckicelake.rest.response_bodies import LogResponse

WHAT, REVERT_WHAT = "request to merge", "request to revert"
RefName = Annotated[str, Path(alias="ref", description="`main` is the lake itself; other names are branches.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many lake snapshots.")]
Before = Annotated[int, Query(description="Only lake snapshots with a smaller id.")]
From = Annotated[str, Query(alias="from", description="The ref to compare with.")]
To = Annotated[str, Query(alias="to", description="The ref that is compared.")]


class RepositoryRoutes:
    """Handlers of the operations on branches of a lake."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        merge = OperationHandler(self.merge, body=describe_body(MERGE))
        revert = OperationHandler(self.revert, body=describe_body(REVERT))
        return {
            "logRef": OperationHandler(self.log),
            "diffRefs": OperationHandler(self.diff),
            "mergeBranch": merge,
            "revertSnapshot": revert,
        }

    def log(self, target: Target, ref: RefName, limit: Limit = 100, before: Before = history.NEWEST) -> LogResponse:
        """List the lake snapshots of the lake or of a branch, newest first, with what each did to which table."""
        warehouse = self._context.get_lake(target.prefix).warehouse
        found = history.list_log(warehouse, decode_segment(ref, "ref"), limit, before)
        return {"entries": [history.describe_entry(entry) for entry in found]}

    def diff(self, target: Target, old: From, new: To) -> dict[str, Any]:
        """Compare the newest states of two refs: namespaces, tables and views, and for each table its columns, files and rows."""
        return history.describe_diff(history.diff_refs(self._context.get_lake(target.prefix).warehouse, old, new))

    def merge(self, target: Target, body: Body, key: Key) -> Response:
        """Merge a branch into the lake as one lake snapshot. A conflict writes nothing, and the answer 409 lists all of them."""
        request, is_dry_run = parse_merge(body)
        check_merge(target.session, request.into)
        warehouse = self._context.get_lake(target.prefix).warehouse
        asked = key.about(branches.format_branch(request.name))
        return _answer(lambda: merging.preview_merge(warehouse, request) if is_dry_run else merging.merge(warehouse, asked, request))

    def revert(self, target: Target, body: Body, key: Key) -> Response:
        """Take back what one lake snapshot of the lake or of a branch changed, as a new one; a conflict is answered as that of a merge."""
        node = as_object(decode_json(body), REVERT_WHAT)
        ref, message = _get_ref(node, "ref", REVERT_WHAT), find_text(node, "message", REVERT_WHAT)
        request = merging.RevertRequest(get_long(node, "snapshot-id", REVERT_WHAT), ref, message=message)
        is_dry_run = node.get("dry-run") is not None and get_flag(node, "dry-run", REVERT_WHAT)
        if ref == branches.MAIN and target.session.read_only:
            raise Forbidden(target.session.read_only)
        warehouse = self._context.get_lake(target.prefix).warehouse
        asked = key.about(branches.format_branch(ref))
        return _answer(lambda: merging.preview_revert(warehouse, request) if is_dry_run else merging.revert(warehouse, asked, request))


def _answer(apply: Callable[[], dict[str, Any]]) -> Response:
    try:
        return JSONResponse(apply())
    except MergeConflicts as error:
        status, kind = get_status_and_type(MergeConflicts)
        described = {"message": error.message, "type": kind, "code": status}
        return JSONResponse({"error": described, "conflicts": error.conflicts}, status_code=status)


def _get_ref(node: Mapping[str, Any], key: str, what: str) -> str:
    """Return the branch that a body names; a missing name is the lake's, and an empty one names no branch."""
    ref = find_text(node, key, what)
    return branches.MAIN if ref is None else ref


def parse_merge(body: bytes) -> tuple[merging.MergeRequest, bool]:
    """Return the merge that a body asks for, and True if it is only to be planned. Raises: BadRequest."""
    node = as_object(decode_json(body), WHAT)
    resolution = merging.build_resolution(find_text(node, "on-conflict", WHAT) or "cancel", find_text_map(node, "except", WHAT) or {})
    request = merging.MergeRequest(
        get_text(node, "from", WHAT),
        _get_ref(node, "into", WHAT),
        find_text(node, "strategy", WHAT) or "auto",
        resolution,
        message=find_text(node, "message", WHAT),
    )
    return request, node.get("dry-run") is not None and get_flag(node, "dry-run", WHAT)
