"""`duckicelake branch merge` and `branch revert`, straight in the lake's Postgres; or they say what would be done.

`cli_branches` calls it. A merge is planned without locks, and is then one transaction under the locks of both sides. A revert is one
transaction under one lock, and a dry run of it is rolled back.
"""

import json
from collections.abc import Iterable, Sequence

import psycopg

from duckicelake.commands.branches import connecting
from duckicelake.commands.facts import choose_lake
from duckicelake.config import Settings
from duckicelake.lake.branches.merge import MergeRequest, MergeResult, check_plan, describe_result, merge_branch, plan_merge, preview
from duckicelake.lake.branches.merge_rules import build_resolution
from duckicelake.lake.branches.registry import MAIN
from duckicelake.lake.branches.revert import RevertRequest, describe_revert, preview_revert, revert_snapshot


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
    if result.into != MAIN:
        return _format_rebase(result, lines, dry_run=dry_run)
    if not lines:
        return (f"branch {result.branch} has changed nothing, so there is nothing to merge",)
    if dry_run:
        return (f"branch {result.branch} can be merged:", *lines)
    done = f"branch {result.branch} is merged as snapshot {result.snapshot_id}, from which it goes on"
    return (done, *lines)


def _format_rebase(result: MergeResult, lines: Sequence[str], *, dry_run: bool) -> Sequence[str]:
    if dry_run:
        return (f"{MAIN} can be merged into branch {result.into}, with the branch's own changes on top:", *lines)
    if result.snapshot_id is None:
        return (f"branch {result.into} has the newest snapshot of {MAIN} already",)
    return (
        f"{MAIN} is merged into branch {result.into}, which has snapshot {result.snapshot_id}, its own changes on top:",
        *lines,
    )
