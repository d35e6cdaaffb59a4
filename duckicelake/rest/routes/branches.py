"""Handlers for the branches of a lake: listed for whoever has any right, made and deleted with a right on branches of that name."""

from typing import Annotated

from fastapi import Path, Request, Response

from duckicelake.access.grants import Rights
from duckicelake.catalog.repositories import branches
from duckicelake.catalog.repositories.branches import MAIN, Branch, BranchRequest
from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import as_object, decode_json, find_text, get_text
from duckicelake.rest.auth.audit import describe_request
from duckicelake.rest.auth.permissions import check_branch, check_manages_warehouse, check_sees_branches
from duckicelake.rest.context import OpenLake, ServerContext, Target
from duckicelake.rest.openapi import BRANCH
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import decode_segment
from duckicelake.rest.request_bodies import Body, describe_body
from duckicelake.rest.response_bodies import BranchesResponse, BranchResponse

WHAT = "request to make a branch"
BranchName = Annotated[str, Path(alias="branch", description="The branch's name.")]


class BranchRoutes:
    """Handlers of the operations on branches as wholes."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "listBranches": OperationHandler(self.list_branches),
            "createBranch": OperationHandler(self.create_branch, body=describe_body(BRANCH)),
            "deleteBranch": OperationHandler(self.delete_branch, status=204),
        }

    def list_branches(self, target: Target) -> BranchesResponse:
        """List the branches of the lake, oldest first."""
        check_sees_branches(target.session)
        lake = self._context.get_repository(target.prefix)
        return {"branches": [describe_branch(lake, branch, parent) for branch, parent in branches.list_made(lake.warehouse)]}

    def create_branch(self, request: Request, target: Target, body: Body) -> BranchResponse:
        """Make a branch of the lake or of another branch."""
        node = as_object(decode_json(body), WHAT)
        name, parent = get_text(node, "name", WHAT), find_text(node, "from", WHAT) or MAIN
        try:
            at = branches.parse_at(node.get("at"))
        except ValueError as error:
            raise BadRequest(f"Cannot parse {WHAT}: at is neither a snapshot id nor a time like 2026-03-01T12:00:00+00:00.") from error
        lake = self._context.get_repository(target.prefix)
        branches.check_branch_name(lake.warehouse, name)
        check_branch(target.session, name, Rights.CREATE)
        if at is not None:
            # Older snapshots are shown by the grants of today: what was moved out of a namespace since is in it again there.
            check_manages_warehouse(target.session)
        made = branches.make(lake.warehouse, BranchRequest(name, parent, at), describe_request(request.scope))
        return describe_branch(lake, made, parent)

    def delete_branch(self, request: Request, target: Target, name: BranchName) -> Response:
        """Delete a branch; the clean-up of the lake removes the files that only the branch had."""
        decoded_name = decode_segment(name, "branch")
        lake = self._context.get_repository(target.prefix)
        check_branch(target.session, decoded_name, Rights.DROP)
        branches.remove(lake.warehouse, decoded_name, describe_request(request.scope))
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
