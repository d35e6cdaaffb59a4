"""Branches of a lake: made, listed and deleted for REST. Runs on a thread of the pool, on a connection of its own."""

from dataclasses import replace
from datetime import UTC, datetime

import psycopg

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NotFound
from duckicelake.lake.audit_log import DONE, AuditContext, AuditLine, log_line, write_line
from duckicelake.lake.branches.create import BranchRequest, check_name, create_branch
from duckicelake.lake.branches.delete import delete_branch
from duckicelake.lake.branches.registry import MAIN, Branch, find_branch, list_branches
from duckicelake.lake.connect import connecting, reading

__all__ = ["MAIN", "Branch", "BranchRequest", "check_branch_name", "format_branch", "list_made", "make", "remove"]


def check_branch_name(warehouse: Warehouse, name: str) -> None:
    """Raise BadRequest unless a branch may have that name."""
    check_name(name, warehouse.lake.metadata_schema)


def list_made(warehouse: Warehouse) -> list[tuple[Branch, str | None]]:
    """Return the branches without the tags, oldest first, each with the name of what it was made from; None: that is deleted."""
    with reading(warehouse.lake) as conn:
        branches = list_branches(conn)
    names = {branch.schema_name: branch.name for branch in branches} | {warehouse.lake.metadata_schema: MAIN}
    return [(branch, names.get(branch.parent)) for branch in branches if not branch.is_tag]


def make(warehouse: Warehouse, request: BranchRequest, audit_context: AuditContext) -> Branch:
    """Make a branch. Raises: what `create_branch` raises; Forbidden: the server's Postgres role may not create schemas."""
    with connecting(warehouse.lake) as conn:
        branch = create_branch(conn, warehouse.lake.metadata_schema, request)
        _write_audit_line(conn, audit_context, branch.name)
    return branch


def remove(warehouse: Warehouse, name: str, audit_context: AuditContext) -> None:
    """Delete a branch. Raises: NotFound: there is none of exactly that name."""
    with connecting(warehouse.lake) as conn:
        found = find_branch(conn, name)
        if found is None or found.name != name:
            raise NotFound(f"Branch does not exist: {name[:64]!r}.")
        delete_branch(conn, warehouse.lake.metadata_schema, name)
        _write_audit_line(conn, audit_context, name)


def _write_audit_line(conn: psycopg.Connection, audit_context: AuditContext, name: str) -> None:
    about = replace(audit_context, objects=(format_branch(name),))
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
