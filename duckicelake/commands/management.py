"""Principals, roles, grants, dropped objects, records and functions from the command line: in the lake's Postgres, without the REST API.

The command line calls this. Anyone who may write to the lake's Postgres may use these commands, and who may read it the lists and `events
tail`. Each change and its audit entry are one transaction. The object store is only read, by `undrop`. `events tail` prints one CloudEvent
as JSON a line; functions are bound in a process of their own.
"""

import json
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Event
from urllib.parse import unquote
from uuid import UUID

from duckicelake.catalog import access_rules
from duckicelake.catalog.access_rules import GrantText, Lake, NewSecret
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
from duckicelake.catalog.events import MOST_EVENTS, parse_cursor, read_events
from duckicelake.catalog.functions import list_functions as list_names
from duckicelake.catalog.functions import load_function, summarize_function
from duckicelake.catalog.records.client_reports import MOST_REPORTS, encode_report, summarize_reports
from duckicelake.catalog.records.client_reports import list_reports as read_reports
from duckicelake.catalog.records.reads import MOST_READS, WantedReads, encode_read
from duckicelake.catalog.records.reads import list_reads as read_page
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse, close_warehouse, open_warehouse
from duckicelake.commands.embedded import join_running
from duckicelake.commands.facts import choose_lake
from duckicelake.commands.signals import stopping_on_signals
from duckicelake.config import Settings, SettingsError
from duckicelake.embedded.home import open_home
from duckicelake.errors import BadRequest
from duckicelake.lake.connect import close_lake, open_lake
from duckicelake.store_settings import read_store_settings

AUDIT_PRINCIPAL = "command line"
"""The principal in the audit log for the command line; no principal can have a name with a space."""

Lines = Sequence[str]


def manage(settings: Settings, warehouse: str | None, operation: str, *texts: str) -> Lines:
    """Run the operation that has that name in the management API, straight in Postgres, and return the lines to print.

    Raises: CatalogError: the operation failed and changed nothing
    """
    if operation == "grant" and texts[1].startswith("route:") and texts[1][len("route:") :].partition("/")[0] not in settings.routes:
        raise SettingsError(
            f"The settings have no such route: {texts[1][:100]!r}. They have: {', '.join(sorted(settings.routes)) or 'none'}."
        )
    audit_context = AuditContext(f"cli-{secrets.token_hex(6)}", AUDIT_PRINCIPAL, operation)
    with stopping_on_signals():
        chosen = choose_lake(join_running(settings, open_home(settings.home)), warehouse)
        lake = open_lake(chosen.name, chosen.postgres_dsn.get_secret_value(), chosen.metadata_schema, 1)
        try:
            return OPERATIONS[operation](access_rules.with_asker(lake, audit_context, name_objects(operation, texts)), *texts)
        finally:
            close_lake(lake)


def name_objects(operation: str, texts: Sequence[str]) -> Sequence[str]:
    """Return the objects of an operation for the audit log. Raises: BadRequest."""
    if operation in ("grant", "revoke"):
        return access_rules.list_audit_objects(read_given(*texts))
    names = texts[:1] if operation == "addPrincipal" else texts
    return [f"role:{name}" if number == 0 and operation in OF_ROLES else name for number, name in enumerate(names)]


def read_given(privileges: str, on: str, to: str) -> GrantText:
    """Return a grant that is given as three arguments."""
    return GrantText(privileges.split(","), on, to)


def add_principal(lake: Lake, name: str, without: str = "") -> Lines:
    """Add a principal, with a secret unless `without` is given."""
    return format_secret(access_rules.add_principal(lake, name, has_secret=not without))


def rotate_principal(lake: Lake, name: str) -> Lines:
    """Replace a principal's secret."""
    return format_secret(access_rules.rotate_principal(lake, name))


def remove_principal(lake: Lake, name: str) -> Lines:
    """Remove a principal."""
    access_rules.remove_grantee(lake, name, is_role=False)
    return ()


def add_role(lake: Lake, name: str) -> Lines:
    """Add a role."""
    access_rules.add_role(lake, name)
    return ()


def remove_role(lake: Lake, name: str) -> Lines:
    """Remove a role."""
    access_rules.remove_grantee(lake, name, is_role=True)
    return ()


def add_member(lake: Lake, role: str, principal: str) -> Lines:
    """Add a principal to a role."""
    access_rules.change_member(lake, role, principal, joins=True)
    return ()


def remove_member(lake: Lake, role: str, principal: str) -> Lines:
    """Remove a principal from a role."""
    access_rules.change_member(lake, role, principal, joins=False)
    return ()


def grant(lake: Lake, privileges: str, on: str, to: str) -> Lines:
    """Grant privileges on an object."""
    access_rules.change_grants(lake, read_given(privileges, on, to), gives=True)
    return ()


def revoke(lake: Lake, privileges: str, on: str, to: str) -> Lines:
    """Revoke privileges on an object."""
    access_rules.change_grants(lake, read_given(privileges, on, to), gives=False)
    return ()


def list_principals(lake: Lake) -> Lines:
    """List the principals that are stored in the lake."""
    return [name if has_secret else f"{name} (no secret here)" for name, has_secret in access_rules.read_access_rules(lake).principals]


def list_roles(lake: Lake) -> Lines:
    """List the roles with their members."""
    return [f"{name}: {' '.join(members)}".rstrip() for name, members in access_rules.read_access_rules(lake).roles]


def list_grants(lake: Lake) -> Lines:
    """List the grants."""
    return [f"{','.join(given.privileges)} {given.on} {given.to}" for given in access_rules.read_access_rules(lake).grants]


def format_secret(made: NewSecret) -> Lines:
    """Return the line with a new secret, in the form that clients take as `credential`."""
    return () if made.secret is None else (f"{made.name}:{made.secret}",)


OF_ROLES = frozenset({"addRole", "removeRole", "addMember", "removeMember"})
OPERATIONS: Mapping[str, Callable[..., Lines]] = {
    "addPrincipal": add_principal,
    "rotatePrincipal": rotate_principal,
    "removePrincipal": remove_principal,
    "listPrincipals": list_principals,
    "addRole": add_role,
    "removeRole": remove_role,
    "addMember": add_member,
    "removeMember": remove_member,
    "listRoles": list_roles,
    "grant": grant,
    "revoke": revoke,
    "listGrants": list_grants,
}


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


PAUSE_S = 1.0


def tail(settings: Settings, warehouse: str | None, after: str | None, *, follows: bool) -> Iterator[str]:
    """Yield the events after a cursor as lines; `follows`: wait for further ones until the command is stopped."""
    with opening(settings, warehouse) as opened:
        cursor = None if after is None else parse_cursor(after)
        while True:
            page = read_events(opened, cursor, MOST_EVENTS)
            yield from (json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in page.events)
            cursor = parse_cursor(page.cursor)
            if page.is_last and not follows:
                return
            if page.is_last:
                Event().wait(PAUSE_S)


def list_reads(settings: Settings, warehouse: str | None, most: int, name: str | None, principal: str | None) -> Iterator[str]:
    """Yield audited reads as lines, those that were written last first: all, or those of an object or a principal."""
    with opening(settings, warehouse) as opened:
        before: int | None = None
        while most > 0:
            page = read_page(opened, min(most, MOST_READS), before, WantedReads(name, principal))
            yield from (json.dumps(encode_read(read), ensure_ascii=False, separators=(",", ":")) for read in page.reads)
            before, most = page.before, most - len(page.reads)
            if before is None:
                return


def list_reports(settings: Settings, warehouse: str | None, name: str, most: int) -> Iterator[str]:
    """Yield the reports on a table as lines, the newest first."""
    ident = to_ident(parse_levels(name))
    with opening(settings, warehouse) as opened:
        before: int | None = None
        while most > 0:
            page = read_reports(opened, ident, min(most, MOST_REPORTS), before)
            yield from (json.dumps(encode_report(each), ensure_ascii=False, separators=(",", ":")) for each in page.reports)
            before, most = page.before, most - len(page.reports)
            if before is None:
                return


def summarize(settings: Settings, warehouse: str | None, name: str) -> str:
    """Return sums over the reports on a table."""
    with opening(settings, warehouse) as opened:
        return json.dumps(summarize_reports(opened, to_ident(parse_levels(name))), ensure_ascii=False, indent=2)


def list_functions(settings: Settings, warehouse: str | None, namespace: str) -> Iterator[str]:
    """Yield the functions of a namespace as lines: their definitions, and what is left out and why."""
    with opening(settings, warehouse) as opened:
        for ident in list_names(opened, parse_levels(namespace)):
            found = summarize_function(opened, ident)
            line = {"name": found.name, "definitions": list(found.definition_ids), "left-out": found.left_out}
            yield json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def show_function(settings: Settings, warehouse: str | None, name: str) -> str:
    """Return a function as clients load it. Raises: NoSuchFunction. Unsupported: Iceberg can express nothing of it."""
    with opening(settings, warehouse) as opened:
        return json.dumps(load_function(opened, to_ident(parse_levels(name))), ensure_ascii=False, indent=2)


@contextmanager
def opening(settings: Settings, warehouse: str | None) -> Generator[Warehouse]:
    """Yield the warehouse of a lake."""
    with stopping_on_signals():
        lake = choose_lake(join_running(settings, open_home(settings.home)), warehouse)
        opened = open_warehouse(lake.name, lake.postgres_dsn.get_secret_value(), lake.metadata_schema, read_store_settings(lake))
        try:
            yield opened
        finally:
            close_warehouse(opened)
