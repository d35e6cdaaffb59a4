"""`duckicelake branch log` and `branch diff`: what was done on a branch, read straight from its Postgres, as text or as JSON.

`cli_branches` calls it. The log is read with autocommit, a difference in one read-only transaction. Nothing is written.
"""

import json
from collections.abc import Iterable, Sequence

from duckicelake.commands.branches import connecting
from duckicelake.commands.facts import choose_lake
from duckicelake.config import Settings
from duckicelake.lake.branches.diff import ColumnChange, ObjectChange, read_diff
from duckicelake.lake.branches.documents import describe_diff, describe_entry, format_time
from duckicelake.lake.branches.log import LogEntry, read_log
from duckicelake.lake.branches.registry import get_ref_schema
from duckicelake.lake.connect import BEGIN_READING


def log(settings: Settings, warehouse: str | None, name: str, limit: int, *, as_json: bool) -> Sequence[str]:
    """Return the log of the lake or of a branch, newest first, as lines or as one JSON document."""
    lake = choose_lake(settings, warehouse)
    with connecting(lake) as conn:
        entries = read_log(conn, get_ref_schema(conn, lake.metadata_schema, name), limit)
    if as_json:
        return (json.dumps([describe_entry(each) for each in entries], indent=2),)
    return [line for entry in entries for line in format_entry(entry)]


def diff(settings: Settings, warehouse: str | None, old: str, new: str, *, as_json: bool) -> Sequence[str]:
    """Return what `new` has that `old` has not, and the reverse, as lines or as one JSON document."""
    lake = choose_lake(settings, warehouse)
    with connecting(lake) as conn:
        # Both sides are read as of one moment.
        conn.execute(BEGIN_READING)
        found = read_diff(conn, *(get_ref_schema(conn, lake.metadata_schema, name) for name in (old, new)))
        conn.rollback()
    if as_json:
        return (json.dumps(describe_diff(found), indent=2),)
    lines = [*format_changes("namespace", found.namespaces), *format_changes("table", found.tables), *format_changes("view", found.views)]
    return lines or (f"{old} and {new} are the same",)


def format_entry(entry: LogEntry) -> list[str]:
    """Return the lines of one lake snapshot."""
    said = [text for text in (entry.author, entry.message) if text]
    time = "" if entry.time is None else f"  {format_time(entry.time)}"
    return [
        f"{entry.snapshot_id}{time}{'  ' if said else ''}{': '.join(said)}",
        *(f"    {each.operation} {each.name}" for each in entry.operations),
    ]


def format_changes(kind: str, changes: Iterable[ObjectChange]) -> list[str]:
    """Return the lines of the changes of one kind of object."""
    return [line for change in changes for line in format_change(kind, change)]


def format_change(kind: str, change: ObjectChange) -> list[str]:
    """Return the lines of one change: what happened, then its rows and files, then each column."""
    renamed = f" (was {change.old_name})" if change.old_name else ""
    counts = {
        "rows added": change.rows_added,
        "rows deleted": change.rows_deleted,
        "files added": change.files_added,
        "files removed": change.files_removed,
    }
    counted = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    details = [format_column(each) for each in change.columns]
    details += [f"    {each} changed" for each in (*change.properties, *change.layout)]
    return [f"{change.change} {kind} {change.name}{renamed}{': ' if counted else ''}{counted}", *details]


def format_column(change: ColumnChange) -> str:
    """Return the line of a column."""
    definitions = " -> ".join(each for each in (change.before, change.after) if each)
    return f"    {change.change} column {change.name}: {definitions}"
