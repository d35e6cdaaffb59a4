"""Handlers for the branches and tags of a lake: listed for every account with any right, changed with a right on branches of that name."""

from typing import Annotated

from fastapi import Path, Request, Response

from duckicelake.access.grants import Rights
from duckicelake.catalog.repositories import branches
from duckicelake.catalog.repositories.branches import MAIN, Branch, BranchRequest
from duckicelake.catalog.warehouse import is_snapshot_id
from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import as_object, decode_json, find_text, get_text
from duckicelake.rest.auth.audit import describe_request
from duckicelake.rest.auth.permissions import check_branch, check_manages_warehouse, check_sees_branches
from duckicelake.rest.context import OpenLake, ServerContext, Target
from duckicelake.rest.openapi import BRANCH, NEW_NAME
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import decode_segment
from duckicelake.rest.request_bodies import Body, describe_body
from duckicelake.rest.response_bodies import BranchesResponse, BranchResponse, TagsResponse

WHAT, RENAME = "request to make a branch", "request to rename a branch"
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
        return {"branches": [describe_branch(lake, branch, parent) for branch, parent in branches.list_made(lake.warehouse)]}

    def create_branch(self, request: Request, target: Target, body: Body) -> BranchResponse:
        """Make a branch of the lake or of another branch."""
        return self._create(request, target, body, is_tag=False)

    def delete_branch(self, request: Request, target: Target, name: BranchName) -> Response:
        """Delete a branch; the clean-up of the lake removes the files that only the branch had."""
        return self._delete(request, target, decode_segment(name, "branch"), is_tag=False)

    def rename_branch(self, request: Request, target: Target, name: BranchName, body: Body) -> BranchResponse:
        """Give a branch another name; its metadata schema and its folders stay. Needs `drop` on the old name, `create` on the new."""
        old, new = decode_segment(name, "branch"), get_text(as_object(decode_json(body), RENAME), "name", RENAME)
        lake = self._context.get_repository(target.prefix)
        check_branch(target.session, old, Rights.DROP)
        branches.check_branch_name(lake.warehouse, new)
        check_branch(target.session, new, Rights.CREATE)
        return describe_branch(lake, *branches.rename(lake.warehouse, old, new, describe_request(request.scope)))

    def reset_branch(self, request: Request, target: Target, name: BranchName) -> BranchResponse:
        """Let a branch forget what it changed; it shows the newest snapshot of the lake then. Needs `drop` and `create`."""
        decoded_name = decode_segment(name, "branch")
        lake = self._context.get_repository(target.prefix)
        for right in (Rights.DROP, Rights.CREATE):
            check_branch(target.session, decoded_name, right)
        return describe_branch(lake, *branches.reset(lake.warehouse, decoded_name, describe_request(request.scope)))

    def list_tags(self, target: Target) -> TagsResponse:
        """List the tags of the lake, oldest first; those that servers made for snapshots only for managers of the warehouse."""
        check_sees_branches(target.session)
        lake = self._context.get_repository(target.prefix)
        tags = branches.list_made(lake.warehouse, is_tag=True)
        is_manager = target.session.may_choose_locations
        return {"tags": [describe_branch(lake, tag, parent) for tag, parent in tags if is_manager or not tag.is_automatic]}

    def create_tag(self, request: Request, target: Target, body: Body) -> BranchResponse:
        """Make a tag of the lake or of a branch: a snapshot that stays readable by its name."""
        return self._create(request, target, body, is_tag=True)

    def delete_tag(self, request: Request, target: Target, name: TagName) -> Response:
        """Delete a tag; its snapshot may expire then."""
        return self._delete(request, target, decode_segment(name, "tag"), is_tag=True)

    def _create(self, request: Request, target: Target, body: bytes, *, is_tag: bool) -> BranchResponse:
        node = as_object(decode_json(body), WHAT)
        name, parent = get_text(node, "name", WHAT), find_text(node, "from", WHAT) or MAIN
        try:
            at = branches.parse_at(node.get("at"))
        except ValueError as error:
            raise BadRequest(f"Cannot parse {WHAT}: at is neither a snapshot id nor a time like 2026-03-01T12:00:00+00:00.") from error
        lake = self._context.get_repository(target.prefix)
        branches.check_branch_name(lake.warehouse, name)
        check_branch(target.session, name, Rights.CREATE)
        if at is not None or is_snapshot_id(parent):
            # Older snapshots are shown by the grants of today: what was moved out of a namespace since is in it again there.
            check_manages_warehouse(target.session)
        made = branches.make(lake.warehouse, BranchRequest(name, parent, at, is_tag), describe_request(request.scope))
        return describe_branch(lake, made, parent)

    def _delete(self, request: Request, target: Target, name: str, *, is_tag: bool) -> Response:
        lake = self._context.get_repository(target.prefix)
        check_branch(target.session, name, Rights.DROP)
        branches.remove(lake.warehouse, name, describe_request(request.scope), is_tag=is_tag)
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
