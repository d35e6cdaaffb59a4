"""What a client wants planned, as JSON.

Source: Iceberg REST specification, «PlanTableScanRequest», «FetchScanTasksRequest»
"""

from collections.abc import Mapping
from dataclasses import dataclass

from duckicelake.errors import BadRequest
from duckicelake.iceberg.encoding.json_reader import as_object, find_list, find_long, get_flag, get_text, is_text, refuse

WHAT = "scan to plan"


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A scan of a snapshot (None: main's newest), or of what was appended from one to another.

    `filter` is JSON, None: all rows. `start_snapshot_id` does not count, `end_snapshot_id` does.
    """

    snapshot_id: int | None = None
    start_snapshot_id: int | None = None
    end_snapshot_id: int | None = None
    select: tuple[str, ...] = ()
    filter: object = None
    case_sensitive: bool = True
    use_snapshot_schema: bool = False
    stats_fields: tuple[str, ...] = ()
    min_rows: int | None = None


def parse_scan_request(value: object) -> ScanRequest:
    """The scan that JSON spells.

    Raises: BadRequest — malformed, or both of one snapshot and of what lies between two
    """
    node = as_object(value, WHAT)
    request = ScanRequest(
        snapshot_id=find_long(node, "snapshot-id", WHAT),
        start_snapshot_id=find_long(node, "start-snapshot-id", WHAT),
        end_snapshot_id=find_long(node, "end-snapshot-id", WHAT),
        select=_list_texts(node, "select"),
        filter=node.get("filter"),
        case_sensitive=_get_flag_or(node, "case-sensitive", default=True),
        use_snapshot_schema=_get_flag_or(node, "use-snapshot-schema", default=False),
        stats_fields=_list_texts(node, "stats-fields"),
        min_rows=find_long(node, "min-rows-requested", WHAT),
    )
    if (request.start_snapshot_id is None) != (request.end_snapshot_id is None):
        raise BadRequest(f"Cannot read {WHAT}: 'start-snapshot-id' and 'end-snapshot-id' belong together")
    if request.snapshot_id is not None and request.end_snapshot_id is not None:
        raise BadRequest(f"Cannot read {WHAT}: it has 'snapshot-id' and 'end-snapshot-id'; send one of them")
    if request.min_rows is not None and request.min_rows < 0:
        refuse(WHAT, "min-rows-requested", "a number that is not negative")
    return request


def parse_plan_task(value: object) -> str:
    """The plan task that a request to fetch its tasks names. Raises: BadRequest — malformed"""
    what = "request for scan tasks"
    return get_text(as_object(value, what), "plan-task", what)


def _get_flag_or(node: Mapping[str, object], key: str, *, default: bool) -> bool:
    return default if node.get(key) is None else get_flag(node, key, WHAT)


def _list_texts(node: Mapping[str, object], key: str) -> tuple[str, ...]:
    found = find_list(node, key, WHAT) or []
    if not all(is_text(item) for item in found):
        refuse(WHAT, key, "an array of strings")
    return tuple(str(item) for item in found)
