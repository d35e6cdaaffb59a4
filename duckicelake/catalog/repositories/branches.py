"""Branches and tags of a lake: made, listed, renamed, reset and deleted for REST.

Runs on a thread of the pool, on a connection of its own."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import psycopg

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, BadRequest, NotFound, ServiceUnavailable
from duckicelake.lake.audit_log import DONE, AuditContext, AuditLine, log_line, write_line
from duckicelake.lake.branches.create import BranchRequest, create_branch
from duckicelake.lake.branches.delete import delete_branch, delete_left_snapshots
from duckicelake.lake.branches.registry import (
    MAIN,
    Branch,
    check_name,
    find_branch,
    has_snapshot,
    is_installed,
    list_branches,
    rename_branch,
)
from duckicelake.lake.branches.reset import reset_branch
from duckicelake.lake.connect import connecting, reading

__all__ = ["MAIN", "Branch", "BranchRequest", "check_branch_name", "format_branch", "list_made", "make", "remove", "rename", "reset"]


def check_branch_name(warehouse: Warehouse, name: str) -> None:
    """Raise BadRequest unless a branch may have that name."""
    check_name(name, warehouse.lake.metadata_schema)


def list_made(warehouse: Warehouse, *, is_tag: bool = False) -> list[tuple[Branch, str | None]]:
    """Return the branches, or the tags, oldest first, each with the name of what it was made from; None: that is deleted."""
    with reading(warehouse.lake) as conn:
        branches = list_branches(conn)
    names = {branch.schema_name: branch.name for branch in branches} | {warehouse.lake.metadata_schema: MAIN}
    return [(branch, names.get(branch.parent)) for branch in branches if branch.is_tag == is_tag]


def make(warehouse: Warehouse, request: BranchRequest, audit_context: AuditContext) -> Branch:
    """Make a branch or a tag. Raises: what `create_branch` raises; Forbidden: the server's Postgres role may not create schemas."""
    with connecting(warehouse.lake) as conn:
        branch = create_branch(conn, warehouse.lake.metadata_schema, request)
        _write_audit_line(conn, audit_context, branch.name)
    return branch


def remove(warehouse: Warehouse, name: str, audit_context: AuditContext, *, is_tag: bool = False) -> None:
    """Delete a branch or a tag. Raises: NotFound: there is none of exactly that name."""
    with connecting(warehouse.lake) as conn:
        found = find_branch(conn, name)
        if found is None or found.name != name or found.is_tag != is_tag:
            raise NotFound(f"{'Tag' if is_tag else 'Branch'} does not exist: {name[:64]!r}.")
        delete_branch(conn, warehouse.lake.metadata_schema, name, is_tag=is_tag)
        _write_audit_line(conn, audit_context, name)


def rename(warehouse: Warehouse, name: str, new_name: str, audit_context: AuditContext) -> tuple[Branch, str | None]:
    """Rename a branch and return it as `list_made` does. Raises: what `rename_branch` raises."""
    with connecting(warehouse.lake) as conn:
        branch = rename_branch(conn, warehouse.lake.metadata_schema, name, new_name)
        _write_audit_line(conn, audit_context, name, new_name)
    return _find_made(warehouse, branch)


def reset(warehouse: Warehouse, name: str, audit_context: AuditContext) -> tuple[Branch, str | None]:
    """Let a branch forget what it changed and return it as `list_made` does. Raises: what `reset_branch` raises."""
    with connecting(warehouse.lake) as conn:
        branch = reset_branch(conn, warehouse.lake.metadata_schema, name)
        _write_audit_line(conn, audit_context, branch.name)
    return _find_made(warehouse, branch)


def _find_made(warehouse: Warehouse, branch: Branch) -> tuple[Branch, str | None]:
    return next((made for made in list_made(warehouse) if made[0].schema_name == branch.schema_name), (branch, None))


def _write_audit_line(conn: psycopg.Connection, audit_context: AuditContext, *names: str) -> None:
    about = replace(audit_context, objects=tuple(map(format_branch, names)))
    write_line(conn, about, None)
    log_line(AuditLine(about, DONE))


def format_branch(name: str) -> str:
    """Return a branch as the audit log names it."""
    return f"branch:{name}"


def parse_at(at: object) -> int | datetime | None:
    """Return a snapshot id or a time (a number, or text); a time without a zone is in UTC. Raises: ValueError."""
    if at is None or (isinstance(at, int) and not isinstance(at, bool)):
        return at
    if not isinstance(at, str):
        raise ValueError("neither a number nor a text")
    if at.isdecimal():
        return int(at)
    time = datetime.fromisoformat(at)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


SNAPSHOT_TRIES = 10
"""How often the lake's lock is asked for, half a second each: a client that reads waits, and may ask again."""


def open_snapshot(warehouse: Warehouse, snapshot_id: int) -> Branch | None:
    """Make a tag of a lake snapshot, for as long as a server shows it, and return it. None: the lake has no such snapshot.

    Raises: BadRequest: a flush or merge has put its rows into files with newer ones. Forbidden: the role may not create schemas
            ServiceUnavailable: the lake is not idle for some seconds
    """
    lake_schema = warehouse.lake.metadata_schema
    with connecting(warehouse.lake) as conn:
        if not has_snapshot(conn, snapshot_id):
            return None
        delete_left_snapshots(conn, lake_schema)
        left = find_branch(conn, str(snapshot_id))
        if left is not None and not is_installed(conn, left):
            delete_branch(conn, lake_schema, left.name, is_tag=True)
        try:
            return create_branch(conn, lake_schema, BranchRequest(str(snapshot_id), at=snapshot_id, is_tag=True), SNAPSHOT_TRIES)
        except AlreadyExists as error:
            # Another server shows it, too; or a session still reads the tag that was deleted last, whose row has the name.
            found = find_branch(conn, str(snapshot_id))
            if found is None:
                raise ServiceUnavailable(f"A session still reads the tag that snapshot {snapshot_id} had; try again later.") from error
            return found


def close_snapshot(warehouse: Warehouse, tag: Branch) -> None:
    """Delete the tag of a snapshot that is not shown any more; nothing is done if another server has done so."""
    with connecting(warehouse.lake) as conn:
        found = find_branch(conn, tag.name)
        if found is not None and found.is_automatic and found.number == tag.number:
            with suppress(BadRequest):
                delete_branch(conn, warehouse.lake.metadata_schema, tag.name, is_tag=True)


def list_names(warehouse: Warehouse) -> set[str]:
    """Return the name of each branch and tag."""
    with reading(warehouse.lake) as conn:
        return {branch.name for branch in list_branches(conn)}
