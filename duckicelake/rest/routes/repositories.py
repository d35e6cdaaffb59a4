"""Handlers for a lake with its branches and tags: logs, differences, merges, reverts and garbage collection, and the branches.

These need `manage` on the warehouse; for a merge, `write` on `branch:` and the name that it changes is enough. Branches are listed for
every account with any right, and changed with a right on branches of that name.

They run on worker threads. `catalog.repositories` begins the transactions in Postgres, where branches are schemas; the object store is not
touched. The rows of a difference are read in another process, which `rest.diff_process` awaits on the event loop.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from duckicelake.access.grants import Rights
from duckicelake.catalog import repositories
from duckicelake.catalog.idempotency import RequestContext
from duckicelake.catalog.repositories import Branch, BranchRequest
from duckicelake.catalog.warehouse import is_snapshot_id
from duckicelake.errors import BadRequest, Forbidden, MergeConflicts
from duckicelake.iceberg.json_reader import as_object, decode_json, find_text, find_text_map, get_flag, get_long, get_text
from duckicelake.rest.auth.permissions import check_branch, check_manages_warehouse, check_merge, check_sees_branches
from duckicelake.rest.context import OpenLake, ServerContext, Target
from duckicelake.rest.diff_process import read_unless_left
from duckicelake.rest.errors import get_status_and_type
from duckicelake.rest.openapi import BRANCH, MERGE, NEW_NAME, REVERT
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import decode_segment
from duckicelake.rest.request_bodies import Body, Key, describe_body
from duckicelake.rest.response_bodies import BranchesResponse, BranchResponse, LogResponse, TagsResponse

MERGE_REQUEST, REVERT_WHAT = "request to merge", "request to revert"
RefName = Annotated[str, Path(alias="ref", description="`main` is the lake itself; other names are branches.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many lake snapshots.")]
Before = Annotated[int, Query(description="Only lake snapshots with a smaller id.")]
From = Annotated[str, Query(alias="from", description="The ref to compare with.")]
To = Annotated[str, Query(alias="to", description="The ref that is compared.")]
Rows = Annotated[
    int | None, Query(ge=1, le=10_000, description="At most so many added, and as many deleted, rows of each table; missing: no rows.")
]


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
            "collectGarbage": OperationHandler(self.collect_garbage),
        }

    def log(self, target: Target, ref: RefName, limit: Limit = 100, before: Before = repositories.NEWEST) -> LogResponse:
        """List the lake snapshots of the lake or of a branch, newest first, with what each did to which table."""
        warehouse = self._context.get_lake(target.prefix).warehouse
        found = repositories.list_log(warehouse, decode_segment(ref, "ref"), limit, before)
        return {"entries": [repositories.describe_entry(entry) for entry in found]}

    async def diff(self, request: Request, target: Target, old: From, new: To, rows: Rows = None) -> Response:
        """Compare the newest states of two refs: namespaces, tables and views, and for each table its columns, files and rows."""
        if rows is None:
            found = await run_in_threadpool(repositories.diff_refs, self._context.get_lake(target.prefix).warehouse, old, new)
            return JSONResponse(repositories.describe_diff(found))
        diff_process = self._context.get_repository(target.prefix).diff_process
        assert diff_process is not None
        return Response(await read_unless_left(request, diff_process.read((old, new), rows)), media_type="application/json")

    def merge(self, target: Target, body: Body, key: Key) -> Response:
        """Merge a branch into what it was made of as one lake snapshot, or the reverse. A conflict writes nothing; 409 lists them."""
        request, is_dry_run = parse_merge(body)
        check_merge(target.session, request.into)
        warehouse = self._context.get_lake(target.prefix).warehouse
        asked = key.about(*map(repositories.format_branch, request.branches))
        return _answer(
            lambda: repositories.preview_merge(warehouse, request) if is_dry_run else repositories.merge(warehouse, asked, request)
        )

    def revert(self, target: Target, body: Body, key: Key) -> Response:
        """Take back what one lake snapshot of the lake or of a branch changed, as a new one; a conflict is answered as that of a merge."""
        node = as_object(decode_json(body), REVERT_WHAT)
        ref, message = _get_ref(node, "ref", REVERT_WHAT), find_text(node, "message", REVERT_WHAT)
        request = repositories.RevertRequest(get_long(node, "snapshot-id", REVERT_WHAT), ref, message=message)
        is_dry_run = node.get("dry-run") is not None and get_flag(node, "dry-run", REVERT_WHAT)
        if ref == repositories.MAIN and target.session.read_only:
            raise Forbidden(target.session.read_only)
        warehouse = self._context.get_lake(target.prefix).warehouse
        asked = key.about(repositories.format_branch(ref))
        return _answer(
            lambda: repositories.preview_revert(warehouse, request) if is_dry_run else repositories.revert(warehouse, asked, request)
        )

    def collect_garbage(self, target: Target, key: Key) -> dict[str, int]:
        """Schedule the files that the lake and its branches kept for each other and that none of them needs any longer."""
        warehouse = self._context.get_lake(target.prefix).warehouse
        return {"scheduled": repositories.collect(warehouse, key.about(repositories.format_branch(repositories.MAIN)))}


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
    return repositories.MAIN if ref is None else ref


def parse_merge(body: bytes) -> tuple[repositories.MergeRequest, bool]:
    """Return the merge that a body asks for, and True if it is only to be planned. Raises: BadRequest."""
    node = as_object(decode_json(body), MERGE_REQUEST)
    resolution = repositories.build_resolution(
        find_text(node, "on-conflict", MERGE_REQUEST) or "cancel", find_text_map(node, "except", MERGE_REQUEST) or {}
    )
    request = repositories.MergeRequest(
        get_text(node, "from", MERGE_REQUEST),
        _get_ref(node, "into", MERGE_REQUEST),
        find_text(node, "strategy", MERGE_REQUEST) or "auto",
        resolution,
        message=find_text(node, "message", MERGE_REQUEST),
    )
    return request, node.get("dry-run") is not None and get_flag(node, "dry-run", MERGE_REQUEST)


MAKING, RENAME = "request to make a branch", "request to rename a branch"
BranchName = Annotated[str, Path(alias="branch", description="The branch's name.")]
TagName = Annotated[str, Path(alias="tag", description="The tag's name.")]


class BranchRoutes:
    """Handlers of the operations on branches and tags as wholes."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "listBranches": OperationHandler(self.list_branches),
            "createBranch": OperationHandler(self.create_branch, body=describe_body(BRANCH)),
            "deleteBranch": OperationHandler(self.delete_branch, status=204),
            "renameBranch": OperationHandler(self.rename_branch, body=describe_body(NEW_NAME)),
            "resetBranch": OperationHandler(self.reset_branch),
            "listTags": OperationHandler(self.list_tags),
            "createTag": OperationHandler(self.create_tag, body=describe_body(BRANCH)),
            "deleteTag": OperationHandler(self.delete_tag, status=204),
        }

    def list_branches(self, target: Target) -> BranchesResponse:
        """List the branches of the lake, oldest first."""
        check_sees_branches(target.session)
        lake = self._context.get_repository(target.prefix)
        return {"branches": [describe_branch(lake, branch, parent) for branch, parent in repositories.list_made(lake.warehouse)]}

    def create_branch(self, target: Target, body: Body, key: Key) -> BranchResponse:
        """Make a branch of the lake or of another branch."""
        return self._create(target, body, key, is_tag=False)

    def delete_branch(self, target: Target, name: BranchName, key: Key) -> Response:
        """Delete a branch; the clean-up of the lake removes the files that only the branch had."""
        return self._delete(target, decode_segment(name, "branch"), key, is_tag=False)

    def rename_branch(self, target: Target, name: BranchName, body: Body, key: Key) -> BranchResponse:
        """Give a branch another name; its metadata schema and its folders stay. Needs `drop` on the old name, `create` on the new."""
        old, new = decode_segment(name, "branch"), get_text(as_object(decode_json(body), RENAME), "name", RENAME)
        lake = self._context.get_repository(target.prefix)
        check_branch(target.session, old, Rights.DROP)
        repositories.check_branch_name(lake.warehouse, new)
        check_branch(target.session, new, Rights.CREATE)
        asked = key.about(*map(repositories.format_branch, (old, new)))
        return describe_branch(lake, *repositories.rename(lake.warehouse, asked, old, new))

    def reset_branch(self, target: Target, name: BranchName, key: Key) -> BranchResponse:
        """Let a branch forget what it changed; it shows the newest snapshot of the lake then. Needs `drop` and `create`."""
        decoded_name = decode_segment(name, "branch")
        lake = self._context.get_repository(target.prefix)
        for right in (Rights.DROP, Rights.CREATE):
            check_branch(target.session, decoded_name, right)
        asked = key.about(repositories.format_branch(decoded_name))
        return describe_branch(lake, *repositories.reset(lake.warehouse, asked, decoded_name))

    def list_tags(self, target: Target) -> TagsResponse:
        """List the tags of the lake, oldest first; those that servers made for snapshots only for managers of the warehouse."""
        check_sees_branches(target.session)
        lake = self._context.get_repository(target.prefix)
        tags = repositories.list_made(lake.warehouse, is_tag=True)
        is_manager = target.session.may_choose_locations
        return {"tags": [describe_branch(lake, tag, parent) for tag, parent in tags if is_manager or not tag.is_automatic]}

    def create_tag(self, target: Target, body: Body, key: Key) -> BranchResponse:
        """Make a tag of the lake or of a branch: a snapshot that stays readable by its name."""
        return self._create(target, body, key, is_tag=True)

    def delete_tag(self, target: Target, name: TagName, key: Key) -> Response:
        """Delete a tag; its snapshot may expire then."""
        return self._delete(target, decode_segment(name, "tag"), key, is_tag=True)

    def _create(self, target: Target, body: bytes, key: RequestContext, *, is_tag: bool) -> BranchResponse:
        node = as_object(decode_json(body), MAKING)
        name, parent = get_text(node, "name", MAKING), _get_ref(node, "from", MAKING)
        try:
            at = repositories.parse_at(node.get("at"))
        except ValueError as error:
            raise BadRequest(f"Cannot parse {MAKING}: at is neither a number nor a text.") from error
        lake = self._context.get_repository(target.prefix)
        repositories.check_branch_name(lake.warehouse, name)
        check_branch(target.session, name, Rights.CREATE)
        if isinstance(at, int | datetime) or is_snapshot_id(parent):
            # Older snapshots are shown by the grants of today: what was moved out of a namespace since is in it again there.
            check_manages_warehouse(target.session)
        asked = key.about(repositories.format_branch(name))
        made = repositories.make(lake.warehouse, asked, BranchRequest(name, parent, at, is_tag))
        if self._context.branches is not None:
            self._context.branches.note_made(lake)
        return describe_branch(lake, *made)

    def _delete(self, target: Target, name: str, key: RequestContext, *, is_tag: bool) -> Response:
        lake = self._context.get_repository(target.prefix)
        check_branch(target.session, name, Rights.DROP)
        repositories.remove(lake.warehouse, key.about(repositories.format_branch(name)), name, is_tag=is_tag)
        return Response(status_code=204)


def describe_branch(lake: OpenLake, branch: Branch, parent: str | None) -> BranchResponse:
    """Return a branch as the API shows it."""
    return {
        "name": branch.name,
        "from": parent,
        "snapshot-id": branch.fork_snapshot_id,
        "created-at": branch.created_at.isoformat(),
        "warehouse": f"{lake.prefix}@{branch.name}",
        "metadata-schema": branch.schema_name,
    }
