"""`duckicelake dropped list` and `duckicelake undrop`: written to the lake's Postgres, without the REST API.

Anyone who may write to the lake's Postgres may use these commands. An undrop and its audit entry are one transaction.
"""

import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import unquote
from uuid import UUID

from duckicelake.catalog.audit_log import AuditContext
from duckicelake.catalog.dropped.undrop import (
    DroppedObject,
    UndropNamespace,
    UndropTable,
    check_levels,
    list_dropped,
    undrop_namespace,
    undrop_table,
)
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse, close_warehouse, open_warehouse
from duckicelake.commands.embedded import join_running
from duckicelake.commands.facts import choose_lake
from duckicelake.commands.management import AUDIT_PRINCIPAL
from duckicelake.commands.signals import stopping_on_signals
from duckicelake.config import Settings
from duckicelake.embedded.home import open_home
from duckicelake.errors import BadRequest
from duckicelake.store_settings import read_store_settings

Levels = tuple[str, ...]


def list_lines(settings: Settings, warehouse: str | None, most: int) -> Sequence[str]:
    """Return a line for each dropped table and namespace, the newest drop first."""
    with _opening(settings, warehouse, "listDropped", ()) as opened:
        return [format_line(item) for item in list_dropped(opened, None, most)]


def format_line(item: DroppedObject) -> str:
    """Return an entry as a line: what, the name as `undrop` takes it, uuid, when, and what is in the way."""
    kind = "namespace" if item.name is None else "table"
    at = "at an expired time" if item.dropped_ms is None else f"{datetime.fromtimestamp(item.dropped_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    end = "" if item.obstacle is None else f"; cannot come back: {item.obstacle}"
    return f"{kind} {item.text} {item.uuid}: dropped {at}, by lake snapshot {item.lake_snapshot_id}{end}"


@dataclass(frozen=True, slots=True)
class UndropChoice:
    """The options of `undrop`: which of several dropped objects, its new name, and whether a table's namespace comes back with it."""

    uuid: str | None = None
    lake_snapshot_id: int | None = None
    new_name: str | None = None
    with_namespace: bool = False


def undrop(settings: Settings, warehouse: str | None, name: str, choice: UndropChoice) -> Sequence[str]:
    """Bring back what `table:a.b.t` or `namespace:a.b` names, perhaps under another name, and return the lines to print."""
    kind, levels = parse_object(name)
    target = None if choice.new_name is None else parse_levels(choice.new_name)
    uuid = parse_uuid(choice.uuid)
    if kind == "namespace":
        wanted = UndropNamespace(levels, uuid, target, choice.lake_snapshot_id)
        with _opening(settings, warehouse, "undrop", wanted.objects) as opened:
            done = undrop_namespace(opened, wanted)
        tables = f", with its tables {', '.join(done.tables)}" if done.tables else ""
        left = [f"table {table.text} stays dropped: {table.obstacle}" for table in done.left]
        return (f"namespace {done.text} is back{tables}", *left)
    asked = UndropTable(
        to_ident(levels),
        uuid,
        None if target is None else to_ident(target),
        choice.with_namespace,
        may_manage_all=True,
        lake_snapshot_id=choice.lake_snapshot_id,
    )
    with _opening(settings, warehouse, "undrop", asked.objects) as opened:
        return (f"table {undrop_table(opened, asked).text} is back",)


def parse_object(text: str) -> tuple[str, Levels]:
    """Return the kind and the levels of `table:a.b.t` or `namespace:a.b`. Raises: BadRequest."""
    kind, _, name = text.partition(":")
    if kind not in ("table", "namespace") or not name:
        raise BadRequest(f"{text[:100]!r} names nothing that can come back; write `table:a.b.t` or `namespace:a.b`.")
    return kind, parse_levels(name)


def parse_levels(text: str) -> Levels:
    """Return the levels of a name; a dot within a level is written %2E. Raises: BadRequest."""
    levels = tuple(unquote(level) for level in text.split("."))
    if not all(levels):
        raise BadRequest(f"{text[:100]!r} has an empty level; write a dot within a name as %2E.")
    check_levels(levels)
    return levels


def to_ident(levels: Levels) -> Ident:
    """Return levels as a table's name. Raises: BadRequest."""
    if len(levels) == 1:
        raise BadRequest(f"{levels[0][:100]!r} has no namespace; write `a.{levels[0][:100]}`.")
    return Ident(levels[:-1], levels[-1])


def parse_uuid(text: str | None) -> UUID | None:
    """Return the uuid of an option. Raises: BadRequest."""
    try:
        return None if text is None else UUID(text)
    except ValueError as error:
        raise BadRequest(f"--uuid {text[:100] if text else text!r} is no UUID.") from error


@contextmanager
def _opening(settings: Settings, name: str | None, operation: str, objects: Sequence[str]) -> Generator[Warehouse]:
    """Yield the warehouse of a lake, whose audit log names the command line."""
    with stopping_on_signals():
        lake = choose_lake(join_running(settings, open_home(settings.home)), name)
        opened = open_warehouse(lake.name, lake.postgres_dsn.get_secret_value(), lake.metadata_schema, read_store_settings(lake))
        audit_context = AuditContext(f"cli-{secrets.token_hex(6)}", AUDIT_PRINCIPAL, operation, tuple(objects))
        try:
            yield replace(opened, lake=replace(opened.lake, audit_context=audit_context))
        finally:
            close_warehouse(opened)
