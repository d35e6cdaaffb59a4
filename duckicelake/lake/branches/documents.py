"""The log and the difference of branches as JSON, the same over REST and on the command line. Pure.

`merge` and `revert` describe their own results.
"""

from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from duckicelake.lake.branches.diff import ColumnChange, Diff, ObjectChange
from duckicelake.lake.branches.log import LogEntry

Document = dict[str, Any]


def describe_entry(entry: LogEntry) -> Document:
    """Return a lake snapshot of a log."""
    return {
        "snapshot-id": entry.snapshot_id,
        "time": None if entry.time is None else format_time(entry.time),
        "author": entry.author,
        "message": entry.message,
        "operations": [{"operation": each.operation, "object": each.name} for each in entry.operations],
    }


def format_time(time: datetime) -> str:
    """Return a time in UTC as text."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds")


def describe_diff(diff: Diff) -> Document:
    """Return a difference, with the keys that say something."""
    return {
        "namespaces": [describe_change(each) for each in diff.namespaces],
        "tables": [describe_change(each) for each in diff.tables],
        "views": [describe_change(each) for each in diff.views],
    }


def describe_change(change: ObjectChange | ColumnChange) -> Document:
    """Return one change without the values that are empty."""
    named: Mapping[str, Any] = {each.name: getattr(change, each.name) for each in fields(change)}
    shown = {key.replace("_", "-"): value for key, value in named.items() if value not in (None, 0, (), [])}
    if isinstance(change, ObjectChange) and change.columns:
        shown["columns"] = [describe_change(each) for each in change.columns]
    return shown
