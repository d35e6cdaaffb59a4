"""Handlers of server-side scan planning.

They run on worker threads. `catalog.scanning.scans` publishes the table, as a load does, and reads manifests from the object store. A plan
may contain keys of STS.
"""

import json
from typing import Annotated, Any

from fastapi import Depends, Path, Request, Response

from duckicelake.catalog.records.reads import ReadAnswer
from duckicelake.catalog.scanning.scans import PlannedScan, check_plan, fetch_plan, fetch_tasks, plan_scan
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.scan_tasks import parse_plan_task, parse_scan_request
from duckicelake.rest.auth.audit import note_answer
from duckicelake.rest.auth.delegation import describe_read, encode_credentials, find_credentials
from duckicelake.rest.context import ServerContext
from duckicelake.rest.openapi import FETCH_TASKS, PLAN_SCAN
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import Levels, Prefix, TableName, decode_segment
from duckicelake.rest.request_bodies import Body, describe_body
from duckicelake.rest.response_bodies import CompletedPlanningResult, FetchScanTasksResult

COMPLETED = b'{"status":"completed","plan-id":'
FRESH = {"Cache-Control": "no-store"}
"""A plan may hold credentials, so no cache may store it."""
PLAN_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"model": CompletedPlanningResult, "description": "The plan, or its first part."}}
TASKS_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"model": FetchScanTasksResult, "description": "Tasks of a part of a plan."}}


async def read_plan_id(plan_id: Annotated[str, Path(description="The plan's id.")]) -> str:
    """Return the plan id of the path."""
    return decode_segment(plan_id, "plan id")


PlanId = Annotated[str, Depends(read_plan_id)]


class ScanRoutes:
    """Handlers of the scan planning operations."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "planTableScan": OperationHandler(self.plan_scan, responses=PLAN_RESPONSES, body=describe_body(PLAN_SCAN)),
            "fetchPlanningResult": OperationHandler(self.fetch_plan, responses=PLAN_RESPONSES),
            "cancelPlanning": OperationHandler(self.cancel_plan, status=204),
            "fetchScanTasks": OperationHandler(self.fetch_tasks, responses=TASKS_RESPONSES, body=describe_body(FETCH_TASKS)),
        }

    def plan_scan(self, request: Request, prefix: Prefix, levels: Levels, name: TableName, body: Body) -> Response:
        """Plan a scan of a table. The response has all file scan tasks, or the first part with plan tasks for the rest."""
        warehouse, ident = self._context.get_lake(prefix).warehouse, Ident(levels, name)
        planned = plan_scan(warehouse, ident, parse_scan_request(decode_json(body)))
        return answer_plan(request, warehouse, ident, planned)

    def fetch_plan(self, request: Request, prefix: Prefix, levels: Levels, name: TableName, plan_id: PlanId) -> Response:
        """Return a plan again, with refreshed credentials."""
        warehouse, ident = self._context.get_lake(prefix).warehouse, Ident(levels, name)
        return answer_plan(request, warehouse, ident, fetch_plan(warehouse, ident, plan_id))

    def cancel_plan(self, prefix: Prefix, levels: Levels, name: TableName, plan_id: PlanId) -> Response:
        """Accept the cancellation of a plan. The server keeps no state of plans, so only the plan id is checked."""
        check_plan(self._context.get_lake(prefix).warehouse, Ident(levels, name), plan_id)
        return Response(status_code=204)

    def fetch_tasks(self, request: Request, prefix: Prefix, levels: Levels, name: TableName, body: Body) -> Response:
        """Return the file scan tasks of a plan task."""
        planned = fetch_tasks(self._context.get_lake(prefix).warehouse, Ident(levels, name), parse_plan_task(decode_json(body)))
        note_answer(request.scope, ReadAnswer(planned.loaded.snapshot_id))
        return Response(b"".join([b"{", *list_tasks(planned), b"}"]), media_type="application/json")


def answer_plan(request: Request, warehouse: Warehouse, ident: Ident, planned: PlannedScan) -> Response:
    """Return the response of a plan, with credentials if the client requests them."""
    keys = find_credentials(request.scope, warehouse, ident, planned.loaded)
    note_answer(request.scope, describe_read(request.scope, ident, planned.loaded, keys))
    more = b"" if keys is None else encode_credentials(keys)
    parts = [COMPLETED, json.dumps(planned.plan_id).encode(), b",", *list_tasks(planned), more, b"}"]
    return Response(b"".join(parts), headers=FRESH, media_type="application/json")


def list_tasks(planned: PlannedScan) -> list[bytes]:
    """Return the response's members with tasks and delete files. Clients ignore delete files that no task references."""
    tasks = b'"plan-tasks":%b,' % json.dumps(planned.plan_tasks).encode() if planned.plan_tasks else b""
    deletes = [b'"delete-files":[', b",".join(planned.deletes), b"],"] if planned.deletes else []
    return [tasks, *deletes, b'"file-scan-tasks":[', b",".join(planned.tasks), b"]"]
