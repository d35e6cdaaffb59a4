"""The log of a branch, and the difference between two. Runs on a thread of the pool."""

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.lake.branches.diff import Diff, read_diff
from duckicelake.lake.branches.documents import describe_diff, describe_entry
from duckicelake.lake.branches.log import NEWEST, LogEntry, read_log
from duckicelake.lake.branches.refs import get_ref_schema
from duckicelake.lake.connect import reading

__all__ = ["NEWEST", "describe_diff", "describe_entry", "diff_refs", "list_log"]


def list_log(warehouse: Warehouse, ref: str, limit: int, before: int = NEWEST) -> list[LogEntry]:
    """Return lake snapshots of the lake (`main`) or of a branch, newest first. Raises: NotFound: there is no such branch."""
    with reading(warehouse.lake) as conn:
        return read_log(conn, get_ref_schema(conn, warehouse.lake.metadata_schema, ref), limit, before)


def diff_refs(warehouse: Warehouse, old: str, new: str) -> Diff:
    """Return what `new` has that `old` has not, and the reverse. Raises: NotFound: there is no such branch."""
    with reading(warehouse.lake) as conn:
        return read_diff(conn, *(get_ref_schema(conn, warehouse.lake.metadata_schema, name) for name in (old, new)))
