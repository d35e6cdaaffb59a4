"""`duckicelake branch` and `tag`: branches of a whole lake, their log and difference, merges and reverts, straight in the lake's Postgres.

`cli_branches` calls it, on a connection with autocommit: `lake.branches` begins the transactions. The log is read with autocommit, a
difference in one read-only transaction. A merge is planned without locks, and is then one transaction under the locks of both sides; a
revert is one transaction under one lock, and a dry run of it is rolled back. A running server serves a new branch at once. The object
store is only read, for the rows of a difference (`branch_rows`). `fill_defaults` uses `connecting`, and `diff_process` `read_difference`.
"""

import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC
from functools import partial

import psycopg

from duckicelake.commands.branch_rows import SessionOpener, add_rows, check_attachable, format_rows, open_session
from duckicelake.commands.facts import choose_lake
from duckicelake.commands.prepare import connect_postgres
from duckicelake.config import LakeSettings, Settings
from duckicelake.embedded.home import Home
from duckicelake.errors import BadRequest, Forbidden
from duckicelake.lake import access_rules
from duckicelake.lake.branches.create import BranchRequest, create_branch, parse_at
from duckicelake.lake.branches.delete import collect_garbage, delete_branch
from duckicelake.lake.branches.diff import ColumnChange, Diff, ObjectChange, RowSources, read_diff, read_differing_files, read_row_sources
from duckicelake.lake.branches.layout import read_format
from duckicelake.lake.branches.log import LogEntry, describe_diff, describe_entry, format_time, read_log
from duckicelake.lake.branches.merge import MergeRequest, MergeResult, check_plan, describe_result, merge_branch, plan_merge, preview
from duckicelake.lake.branches.merge_rules import build_resolution
from duckicelake.lake.branches.registry import MAIN, get_ref_schema, list_branches, rename_branch
from duckicelake.lake.branches.reset import reset_branch
from duckicelake.lake.branches.revert import RevertRequest, describe_revert, preview_revert, revert_snapshot
from duckicelake.lake.connect import BEGIN_READING, mapped_errors
from duckicelake.lake.install import format_search_path, has_settings


def create(settings: Settings, warehouse: str | None, name: str, parent: str, at: str | None) -> Sequence[str]:
    """Create a branch and return what to print: how clients reach it."""
    lake, request = choose_lake(settings, warehouse), BranchRequest(name, parent, parse_at(at))
    with connecting(lake) as conn:
        branch = create_branch(conn, lake.metadata_schema, request)
    return (
        f"branch {branch.name} begins at snapshot {branch.fork_snapshot_id} of {request.origin}",
        f"  Iceberg clients: warehouse {lake.name}@{branch.name}",
        f"  DuckDB: METADATA_SCHEMA '{branch.schema_name}', its data in {branch.data_path}",
    )


def create_tag(settings: Settings, warehouse: str | None, name: str, parent: str, at: str | None) -> Sequence[str]:
    """Create a tag and return what to print: how clients read it."""
    lake, request = choose_lake(settings, warehouse), BranchRequest(name, parent, parse_at(at), is_tag=True)
    with connecting(lake) as conn:
        tag = create_branch(conn, lake.metadata_schema, request)
    return (
        f"tag {tag.name} is snapshot {tag.fork_snapshot_id} of {request.origin}, which no expiry removes",
        f"  Iceberg clients: warehouse {lake.name}@{tag.name}, read-only",
        f"  DuckDB: METADATA_SCHEMA '{tag.schema_name}', READ_ONLY",
    )


def delete(settings: Settings, warehouse: str | None, name: str, *, is_tag: bool = False) -> Sequence[str]:
    """Delete a branch or a tag and return what to print."""
    lake = choose_lake(settings, warehouse)
    with connecting(lake) as conn:
        is_dropped = delete_branch(conn, lake.metadata_schema, name, is_tag=is_tag)
    left = "" if is_dropped else "; a session still uses it, so its schema is dropped when the next branch is made or deleted"
    return (f"{'tag' if is_tag else 'branch'} {name} is deleted{left}",)


def reset(settings: Settings, warehouse: str | None, name: str) -> Sequence[str]:
    """Let a branch begin again, and return what to print."""
    lake = choose_lake(settings, warehouse)
    with connecting(lake) as conn:
        branch = reset_branch(conn, lake.metadata_schema, name)
    return (f"branch {name} has forgotten its changes and begins again at snapshot {branch.fork_snapshot_id} of {MAIN}",)


def collect(settings: Settings, warehouse: str | None) -> Sequence[str]:
    """Schedule files that were kept for other members and that no member needs any more, and return what to print."""
    lake = choose_lake(settings, warehouse)
    with connecting(lake) as conn:
        count = collect_garbage(conn, lake.metadata_schema)
    return (f"{count} files are scheduled for deletion; DuckLake's clean-up of the lake and of each branch removes them",)


def rename(settings: Settings, warehouse: str | None, name: str, new_name: str) -> Sequence[str]:
    """Rename a branch and return what to print."""
    lake = choose_lake(settings, warehouse)
    with connecting(lake) as conn:
        branch = rename_branch(conn, lake.metadata_schema, name, new_name)
    return (
        f"branch {name} is called {branch.name} now",
        f"  Iceberg clients: warehouse {lake.name}@{branch.name}",
        f"  DuckDB: METADATA_SCHEMA '{branch.schema_name}', as before",
    )


def list_lines(settings: Settings, warehouse: str | None, *, is_tag: bool = False) -> Sequence[str]:
    """Return a line for each branch of the lake, or for each tag."""
    lake = choose_lake(settings, warehouse)
    with connecting(lake) as conn:
        branches = list_branches(conn)
    names = {branch.schema_name: branch.name for branch in branches} | {lake.metadata_schema: MAIN}
    return [
        f"{branch.name}: from {names.get(branch.parent, 'a deleted branch')} at snapshot {branch.fork_snapshot_id}, "
        f"made {branch.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, METADATA_SCHEMA '{branch.schema_name}'"
        for branch in branches
        if branch.is_tag == is_tag
    ]


def protect(settings: Settings, warehouse: str | None, name: str, *, is_on: bool) -> Sequence[str]:
    """Turn the protection of a lake on or off, and return what to print. Raises: BadRequest: it is a branch."""
    if name != MAIN:
        raise BadRequest(f"Only {MAIN!r}, the lake itself, is protected; rights on `branch:{name}` say who changes a branch.")
    lake = choose_lake(settings, warehouse)
    with connecting(lake) as conn:
        access_rules.protect(conn, is_on=is_on)
    if not is_on:
        return (f"{lake.name} may be changed by every account that has the right to",)
    return (f"{lake.name} is protected: over REST, servers with require_auth change it by merges alone",)


@contextmanager
def connecting(lake: LakeSettings) -> Generator[psycopg.Connection]:
    """Yield a connection to a prepared lake. Raises: BadRequest: it is not prepared. Forbidden: the role may not create schemas."""
    with connect_postgres(lake) as conn:
        conn.execute(format_search_path(lake.metadata_schema))
        if not has_settings(conn):
            raise BadRequest(f"Lake {lake.name!r} is not prepared; run `duckicelake init`.")
        try:
            with mapped_errors(lake.name):
                yield conn
        except Forbidden as error:
            raise Forbidden(
                f"Lake {lake.name!r}: the Postgres role may not do this: it must own the lake's tables and may need CREATE on the database."
            ) from error


def log(settings: Settings, warehouse: str | None, name: str, limit: int, *, as_json: bool) -> Sequence[str]:
    """Return the log of the lake or of a branch, newest first, as lines or as one JSON document."""
    lake = choose_lake(settings, warehouse)
    with connecting(lake) as conn:
        entries = read_log(conn, get_ref_schema(conn, lake.metadata_schema, name), limit)
    if as_json:
        return (json.dumps([describe_entry(each) for each in entries], indent=2),)
    return [line for entry in entries for line in format_entry(entry)]


def diff(
    settings: Settings, warehouse: str | None, refs: tuple[str, str], rows: tuple[Home, int] | None, *, as_json: bool
) -> Sequence[str]:
    """Return what the second ref has that the first has not, and the reverse, as lines or as one JSON document.

    `rows`: the home of the DuckDB that reads rows, and how many of a table at most; None: no rows are read.
    """
    lake, (old, new) = choose_lake(settings, warehouse), refs
    found = read_difference(lake, refs, None if rows is None else (partial(open_session, rows[0]), rows[1]))
    if as_json:
        return (json.dumps(describe_diff(found), indent=2),)
    lines = [*format_changes("namespace", found.namespaces), *format_changes("table", found.tables), *format_changes("view", found.views)]
    return lines or (f"{old} and {new} are the same",)


def read_difference(lake: LakeSettings, refs: tuple[str, str], rows: tuple[SessionOpener, int] | None) -> Diff:
    """Return what the second ref has that the first has not, and the reverse. `rows`: what opens a DuckDB for each try, and the limit.

    Raises: NotFound: there is no such branch. Unsupported: rows are asked for, and DuckDB cannot attach the lake
    """
    with connecting(lake) as conn:
        # Both sides are read as of one moment.
        conn.execute(BEGIN_READING)
        schemas = [get_ref_schema(conn, lake.metadata_schema, name) for name in refs]
        found = read_diff(conn, *schemas)
        if rows is not None:
            check_attachable(lake, read_format(conn, schemas[0]).version)
        sources = None if rows is None else read_row_sources(conn, *schemas)
        conn.rollback()
        if rows is None or sources is None:
            return found
        return add_rows(lake, rows[0], found, (sources, lambda: _is_current(conn, sources)), rows[1])


def _is_current(conn: psycopg.Connection, sources: RowSources) -> bool:
    """Return True if the files that were to be read are still those that differ at the same snapshots."""
    conn.execute(BEGIN_READING)
    try:
        return read_differing_files(conn, sources.sides) == sources.files
    finally:
        conn.rollback()


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
    details += () if change.rows is None else format_rows(change.rows)
    return [f"{change.change} {kind} {change.name}{renamed}{': ' if counted else ''}{counted}", *details]


def format_column(change: ColumnChange) -> str:
    """Return the line of a column."""
    definitions = " -> ".join(each for each in (change.before, change.after) if each)
    return f"    {change.change} column {change.name}: {definitions}"


def build_request(what: tuple[str, str, str], on_conflict: str, exceptions: Iterable[str], message: str | None) -> MergeRequest:
    """Return the request of options. `what`: the branch, what to merge it into, the strategy. Raises: BadRequest: one is no choice."""
    name, into, strategy = what
    by_name: dict[str, str] = {}
    for text in exceptions:
        named, _, choice = text.rpartition("=")
        by_name[named] = choice
    return MergeRequest(name, into, strategy, build_resolution(on_conflict, by_name), message=message)


def merge(settings: Settings, warehouse: str | None, request: MergeRequest, *, dry_run: bool, as_json: bool) -> Sequence[str]:
    """Merge a branch, or with `dry_run` only plan it, and return what to print.

    Raises: MergeConflicts: something stands against it; nothing was written
    """
    lake = choose_lake(settings, warehouse)
    with connecting(lake) as conn:
        result = _preview(conn, lake.metadata_schema, request) if dry_run else merge_branch(conn, lake.metadata_schema, request)
    return (json.dumps(describe_result(result), indent=2),) if as_json else format_result(result, dry_run=dry_run)


def _preview(conn: psycopg.Connection, lake_schema: str, request: MergeRequest) -> MergeResult:
    planned = plan_merge(conn, lake_schema, request)
    check_plan(planned, request)
    return preview(planned)


def revert(settings: Settings, warehouse: str | None, what: tuple[str, int, str | None], *, dry_run: bool, as_json: bool) -> Sequence[str]:
    """Revert a lake snapshot, or with `dry_run` only try it, and return what to print. `what`: the branch, the snapshot and a message.

    Raises: MergeConflicts: something stands against it; nothing was written
    """
    lake, (name, snapshot_id, message) = choose_lake(settings, warehouse), what
    with connecting(lake) as conn:
        apply = preview_revert if dry_run else revert_snapshot
        result = apply(conn, lake.metadata_schema, RevertRequest(snapshot_id, name, message=message))
    if as_json:
        return (json.dumps(describe_revert(result, is_planned=dry_run), indent=2),)
    done = "can be reverted:" if dry_run else f"is reverted by snapshot {result.snapshot_id}"
    return (f"snapshot {snapshot_id} of {name} {done}", *(f"  {', '.join(words)} {table}" for table, words in result.tables.items()))


def format_result(result: MergeResult, *, dry_run: bool) -> Sequence[str]:
    """Return the lines that say what was or would be merged."""
    lines = [f"  {', '.join(words)} {name}" for name, words in result.tables.items()]
    lines += [f"  {each}" for each in result.others]
    lines += [f"  left out: {each.object_kind} {each.name} ({each.kind}): {each.reason}" for each in result.left_out]
    lines += [f"  taken from the branch: {each.object_kind} {each.name} ({each.kind}): {each.reason}" for each in result.overruled]
    if result.into == result.branch:
        return _format_rebase(result, lines, dry_run=dry_run)
    if not lines:
        return (f"branch {result.branch} has changed nothing, so there is nothing to merge",)
    where = "" if result.into == MAIN else f" into branch {result.into}"
    if dry_run:
        return (f"branch {result.branch} can be merged{where}:", *lines)
    done = f"branch {result.branch} is merged{where} as snapshot {result.snapshot_id}, from which it goes on"
    return (done, *lines)


def _format_rebase(result: MergeResult, lines: Sequence[str], *, dry_run: bool) -> Sequence[str]:
    if dry_run:
        return (f"{result.name} can be merged into branch {result.into}, with the branch's own changes on top:", *lines)
    if result.snapshot_id is None:
        return (f"branch {result.into} has the newest snapshot of {result.name} already",)
    return (
        f"{result.name} is merged into branch {result.into}, which has snapshot {result.snapshot_id}, its own changes on top:",
        *lines,
    )
