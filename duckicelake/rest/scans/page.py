"""What the OpenAPI page says of scans: bodies and answers."""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from duckicelake.rest.openapi.shapes import FLAG, LONG, NAME, TEXT, TEXTS, JsonSchema, array_of, nullable, object_of, one_of
from duckicelake.rest.response_bodies import StorageCredential

VALUE: JsonSchema = {"anyOf": [{"type": "boolean"}, {"type": "number"}, TEXT]}
TERM: JsonSchema = {"anyOf": [TEXT, object_of({"type": one_of(["transform"]), "transform": TEXT, "term": TEXT})]}
COMPARISON_TYPES = ("lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq", "starts-with", "not-starts-with")
UNARY: JsonSchema = object_of({"type": one_of(["is-null", "not-null", "is-nan", "not-nan"]), "term": TERM})
COMPARISON: JsonSchema = object_of({"type": one_of(COMPARISON_TYPES), "term": TERM, "value": VALUE})
MEMBERSHIP: JsonSchema = object_of({"type": one_of(["in", "not-in"]), "term": TERM, "values": array_of(VALUE)})
PREDICATES = ({"type": "boolean"}, UNARY, COMPARISON, MEMBERSHIP)


def nest_filter(shape: JsonSchema) -> JsonSchema:
    """Return the shape of a filter whose AND, OR and NOT hold what has that shape."""
    joined = object_of({"type": one_of(["and", "or"]), "left": shape, "right": shape})
    return {"anyOf": [*PREDICATES, joined, object_of({"type": one_of(["not"]), "child": shape})]}


FILTER: JsonSchema = nest_filter(nest_filter({"anyOf": list(PREDICATES)}))
"""A filter, shown a few levels deep."""
PLAN_SCAN: JsonSchema = object_of(
    {},
    {
        "snapshot-id": LONG,
        "start-snapshot-id": LONG,
        "end-snapshot-id": LONG,
        "select": TEXTS,
        "filter": FILTER,
        "case-sensitive": FLAG,
        "use-snapshot-schema": FLAG,
        "stats-fields": TEXTS,
        "min-rows-requested": nullable({**LONG, "minimum": 0}),
    },
)
FETCH_TASKS: JsonSchema = object_of({"plan-task": NAME})


class CountMap(TypedDict):
    keys: list[int]
    values: list[int]


class ValueMap(TypedDict):
    keys: list[int]
    values: list[str]


ScannedDataFile = TypedDict(
    "ScannedDataFile",
    {
        "spec-id": int,
        "content": Literal["data"],
        "file-path": str,
        "file-format": str,
        "partition": list[bool | int | float | str | None],
        "file-size-in-bytes": int,
        "record-count": int,
        "split-offsets": NotRequired[list[int]],
        "sort-order-id": NotRequired[int],
        "first-row-id": NotRequired[int],
        "column-sizes": NotRequired[CountMap],
        "value-counts": NotRequired[CountMap],
        "null-value-counts": NotRequired[CountMap],
        "nan-value-counts": NotRequired[CountMap],
        "lower-bounds": NotRequired[ValueMap],
        "upper-bounds": NotRequired[ValueMap],
    },
)
ScannedDeleteFile = TypedDict(
    "ScannedDeleteFile",
    {
        "spec-id": int,
        "content": Literal["position-deletes", "equality-deletes"],
        "file-path": str,
        "file-format": str,
        "partition": list[bool | int | float | str | None],
        "file-size-in-bytes": int,
        "record-count": int,
        "split-offsets": NotRequired[list[int]],
        "sort-order-id": NotRequired[int],
        "equality-ids": NotRequired[list[int]],
        "referenced-data-file": NotRequired[str],
        "content-offset": NotRequired[int],
        "content-size-in-bytes": NotRequired[int],
    },
)
FileScanTask = TypedDict(
    "FileScanTask",
    {"data-file": ScannedDataFile, "delete-file-references": NotRequired[list[int]], "residual-filter": bool | dict[str, Any]},
)
CompletedPlanningResult = TypedDict(
    "CompletedPlanningResult",
    {
        "status": Literal["completed"],
        "plan-id": str,
        "plan-tasks": NotRequired[list[str]],
        "delete-files": NotRequired[list[ScannedDeleteFile]],
        "file-scan-tasks": list[FileScanTask],
        "storage-credentials": NotRequired[list[StorageCredential]],
    },
)
FetchScanTasksResult = TypedDict(
    "FetchScanTasksResult",
    {
        "plan-tasks": NotRequired[list[str]],
        "delete-files": NotRequired[list[ScannedDeleteFile]],
        "file-scan-tasks": list[FileScanTask],
    },
)
Responses = Mapping[int | str, dict[str, Any]]
PLAN_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"model": CompletedPlanningResult, "description": "The plan, or its first part."}}
TASKS_RESPONSES: dict[int | str, dict[str, Any]] = {200: {"model": FetchScanTasksResult, "description": "Tasks of a part of a plan."}}
