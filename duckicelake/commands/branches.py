"""`duckicelake branch`: branches of a whole lake, written straight to its Postgres. A running server serves a new branch at once.

`cli_branches` calls it, on a connection with autocommit: `lake.branches` begins the transactions. The object store is not touched.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg

from duckicelake.commands.facts import choose_lake
from duckicelake.commands.prepare import connect_postgres
from duckicelake.config import LakeSettings, Settings
from duckicelake.errors import BadRequest, Forbidden
from duckicelake.lake.branches import protection
from duckicelake.lake.branches.create import BranchRequest, create_branch
from duckicelake.lake.branches.delete import collect_garbage, delete_branch
from duckicelake.lake.branches.registry import MAIN, list_branches, rename_branch
from duckicelake.lake.branches.reset import reset_branch
from duckicelake.lake.connect import mapped_errors
from duckicelake.lake.install import format_search_path, has_settings


def parse_at(text: str | None) -> int | datetime | None:
    """Return the snapshot id or the time of a text; a time without a zone is in UTC. Raises: BadRequest."""
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequest(f"--at {text!r} is neither a snapshot id nor a time like 2026-03-01T12:00:00+00:00.") from error
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def create(settings: Settings, warehouse: str | None, name: str, parent: str, at: str | None) -> Sequence[str]:
    """Create a branch and return what to print: how clients reach it."""
    lake, request = choose_lake(settings, warehouse), BranchRequest(name, parent, parse_at(at))
    with connecting(lake) as conn:
        branch = create_branch(conn, lake.metadata_schema, request)
    return (
        f"branch {branch.name} begins at snapshot {branch.fork_snapshot_id} of {request.parent}",
        f"  Iceberg clients: warehouse {lake.name}@{branch.name}",
        f"  DuckDB: METADATA_SCHEMA '{branch.schema_name}', its data in {branch.data_path}",
    )


def create_tag(settings: Settings, warehouse: str | None, name: str, parent: str, at: str | None) -> Sequence[str]:
    """Create a tag and return what to print: how clients read it."""
    lake, request = choose_lake(settings, warehouse), BranchRequest(name, parent, parse_at(at), is_tag=True)
    with connecting(lake) as conn:
        tag = create_branch(conn, lake.metadata_schema, request)
    return (
        f"tag {tag.name} is snapshot {tag.fork_snapshot_id} of {request.parent}, which no expiry removes",
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
        protection.protect(conn, is_on=is_on)
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
