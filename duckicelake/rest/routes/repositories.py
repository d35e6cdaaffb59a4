"""Handlers for a lake with its branches: the log of a branch, and the difference between two. They need `manage` on the warehouse."""

from typing import Annotated, Any

from fastapi import Path, Query

from duckicelake.catalog.repositories import history
from duckicelake.rest.context import ServerContext, Target
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import decode_segment
from duckicelake.rest.response_bodies import LogResponse

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
        return {"logRef": OperationHandler(self.log), "diffRefs": OperationHandler(self.diff)}

    def log(self, target: Target, ref: RefName, limit: Limit = 100, before: Before = history.NEWEST) -> LogResponse:
        """List the lake snapshots of the lake or of a branch, newest first, with what each did to which table."""
        warehouse = self._context.get_lake(target.prefix).warehouse
        found = history.list_log(warehouse, decode_segment(ref, "ref"), limit, before)
        return {"entries": [history.describe_entry(entry) for entry in found]}

    def diff(self, target: Target, old: From, new: To) -> dict[str, Any]:
        """Compare the newest states of two refs: namespaces, tables and views, and for each table its columns, files and rows."""
        return history.describe_diff(history.diff_refs(self._context.get_lake(target.prefix).warehouse, old, new))
