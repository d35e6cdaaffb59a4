"""Handlers of `listDropped` and `undrop`. `catalog.dropped.undrop` opens the transactions on worker threads.

The undrop of a table first waits on the event loop for the turns of the names that it has and gets; that of a namespace waits for none.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query

from duckicelake.access.sessions import Session
from duckicelake.catalog.dropped.undrop import (
    DroppedObject,
    UndropNamespace,
    Undropped,
    UndropTable,
    get_undropped,
    list_dropped,
    undrop_namespace,
    undrop_table,
)
from duckicelake.catalog.idempotency import RequestContext
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, NoSuchNamespace
from duckicelake.iceberg.json_reader import as_object, decode_json, find_long, find_text, get_list
from duckicelake.iceberg.requests.bodies import check_name
from duckicelake.rest.auth.permissions import (
    CREATE,
    MANAGE,
    PermissionRule,
    check_creates_namespace,
    check_manages_warehouse,
    check_rule,
)
from duckicelake.rest.changes_in_turn import RequestedChange, change_in_turn
from duckicelake.rest.context import ServerContext, Target
from duckicelake.rest.openapi import UNDROP
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import decode_page_token, encode_page_token
from duckicelake.rest.request_bodies import Body, Key, describe_body, parse_levels
from duckicelake.rest.response_bodies import DroppedEntry, ListDroppedResponse, UndropResponse

WHAT = "request to undrop"
PLACE = re.compile(r"(\d{1,18}) (\d{1,18})", re.ASCII)
MOST_LISTED = 1000
LIST_READS = 20
"""How many times a list reads on for a caller who sees few of the entries; the page is then shorter."""


class UndropRoutes:
    """Handlers of `listDropped` and `undrop`."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {"listDropped": OperationHandler(self.list_dropped), "undrop": OperationHandler(self.undrop, body=describe_body(UNDROP))}

    def list_dropped(
        self,
        target: Target,
        page_token: Annotated[str, Query(alias="pageToken", description="Where the previous page ended; empty: the first page.")] = "",
        page_size: Annotated[int, Query(alias="pageSize", ge=1, le=MOST_LISTED, description="At most so many.")] = MOST_LISTED,
    ) -> ListDroppedResponse:
        """List the dropped tables and namespaces that the caller may bring back, the newest drop first."""
        warehouse = self._context.get_lake(target.prefix).warehouse
        before, shown = parse_place(page_token), list[DroppedObject]()
        for _ in range(LIST_READS):
            found = list_dropped(warehouse, before, page_size + 1)
            shown += [item for item in found if may_undrop(target.session, item)]
            if len(found) <= page_size or len(shown) > page_size:
                break
            before = found[-1].place
        else:
            return {"dropped": [encode_entry(item) for item in shown], "next-page-token": format_place(before)}
        token = format_place(shown[page_size - 1].place) if len(shown) > page_size else None
        return {"dropped": [encode_entry(item) for item in shown[:page_size]], "next-page-token": token}

    async def undrop(self, target: Target, body: Body, key: Key) -> UndropResponse:
        """Bring a dropped table or namespace back, with its history, uuid, properties, refs and grants."""
        warehouse, session = self._context.get_lake(target.prefix).warehouse, target.session
        asked = decode_undrop(body)
        if isinstance(asked, UndropNamespace):
            check_manages_warehouse(session)
            idents, change = [], build_change(warehouse, key, asked, lambda w: undrop_namespace(w, asked))
        else:
            wanted = check_undrops_table(session, asked)
            idents = [ident for ident in (asked.ident, asked.target) if ident is not None]
            change = build_change(warehouse, key, asked, lambda w: undrop_table(w, wanted))
        return encode_undropped(await change_in_turn(self._context, idents, change))


Request = UndropTable | UndropNamespace


def build_change(
    warehouse: Warehouse, key: RequestContext, asked: Request, act: Callable[[Warehouse], Undropped]
) -> RequestedChange[Undropped]:
    """Return a request as a change whose repetitions are answered from what it brought back."""
    return RequestedChange(warehouse, key.about(*asked.objects), act, lambda w, uuid: get_undropped(w, uuid, asked))


def may_undrop(session: Session, item: DroppedObject) -> bool:
    """Return True if the session may bring a dropped object back, and so may know of it."""
    if session.may_choose_locations:
        return True
    return item.name is not None and item.has_namespace and MANAGE in session.rights_on(item.namespace)


def check_undrops_table(session: Session, asked: UndropTable) -> UndropTable:
    """Return the request with what its caller manages.

    Law: an undrop gives nobody a right on the table that it did not have before the drop, unless its principal manages the namespace,
    and that is the one that the table was dropped from; the catalog checks the latter by uuid.
    Raises: Forbidden: a right is missing. NoSuchNamespace: the namespace is hidden
    """
    if session.may_choose_locations:
        return replace(asked, may_manage_all=True)
    check_rule(session, PermissionRule(MANAGE, NoSuchNamespace), asked.ident.namespace)
    if asked.with_namespace:
        check_creates_namespace(session, asked.ident.namespace)
    if asked.target is not None:
        check_rule(session, PermissionRule(CREATE, NoSuchNamespace), asked.target.namespace)
    return asked


def decode_undrop(body: bytes) -> Request:
    """Return the request that a body describes: with a name a table's, else a namespace's. Raises: BadRequest."""
    node = as_object(decode_json(body), WHAT)
    levels, name = parse_levels(get_list(node, "namespace", WHAT)), find_text(node, "name", WHAT)
    uuid, dropped_by = parse_uuid(find_text(node, "uuid", WHAT)), find_long(node, "lake-snapshot-id", WHAT)
    to = node.get("to")
    target = None if to is None else as_object(to, f"'to' of {WHAT}")
    to_levels = None if target is None else parse_levels(get_list(target, "namespace", WHAT))
    to_name = None if target is None else find_text(target, "name", WHAT)
    if name is None:
        if to_name is not None:
            raise BadRequest(f"Cannot read {WHAT}: 'to' has a name and the request has none; a namespace comes back as a namespace.")
        return UndropNamespace(levels, uuid, to_levels, dropped_by)
    ident = Ident(levels, check_name(name, "table"))
    renamed = None if to_levels is None else Ident(to_levels, check_name(to_name or name, "table"))
    return UndropTable(ident, uuid, renamed, read_flag(node, "with-namespace"), lake_snapshot_id=dropped_by)


def parse_uuid(text: str | None) -> UUID | None:
    """Return the uuid that a text holds. Raises: BadRequest."""
    try:
        return None if text is None else UUID(text)
    except ValueError as error:
        raise BadRequest(f"Cannot read {WHAT}: 'uuid' is no UUID.") from error


def read_flag(node: Mapping[str, Any], name: str) -> bool:
    """Return a boolean member; absent or null: false. Raises: BadRequest."""
    found = node.get(name)
    if found is not None and not isinstance(found, bool):
        raise BadRequest(f"Cannot read {WHAT}: {name!r} is neither true nor false")
    return bool(found)


def parse_place(token: str) -> tuple[int, int] | None:
    """Return the place in the list that a page token holds. Raises: BadRequest."""
    if not token:
        return None
    parts = decode_page_token(token)
    match = PLACE.fullmatch(" ".join(parts))
    if match is None:
        raise BadRequest("The pageToken is not one that this catalog gave out.")
    return int(match[1]), int(match[2])


def format_place(place: tuple[int, int] | None) -> str | None:
    """Return the page token of a place in the list."""
    return None if place is None else encode_page_token((str(place[0]), str(place[1])))


def encode_entry(item: DroppedObject) -> DroppedEntry:
    """Return an entry of the list."""
    return {
        "type": "namespace" if item.name is None else "table",
        "namespace": list(item.namespace),
        "name": item.name,
        "uuid": str(item.uuid),
        "dropped-at-ms": item.dropped_ms,
        "lake-snapshot-id": item.lake_snapshot_id,
        "obstacle": item.obstacle,
    }


def encode_undropped(done: Undropped) -> UndropResponse:
    """Return the answer of an undrop."""
    return {
        "type": "namespace" if done.name is None else "table",
        "namespace": list(done.namespace),
        "name": done.name,
        "uuid": str(done.uuid),
        "tables": list(done.tables),
        "left-out": [{"name": table.name, "obstacle": table.obstacle} for table in done.left],
    }
