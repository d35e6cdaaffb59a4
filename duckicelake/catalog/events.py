"""The events of a lake, and the thread that sends them to the webhook: a CloudEvent for each object that a lake snapshot changed, in order.

The REST route and the command line call `read_events`. An event is derived from DuckLake's own record of the snapshot, so commits of
DuckDB are events like those of Iceberg clients; the audit log adds who asked for it. Ids and order are the same at every reading.

`app` starts one thread for each lake; `gateway.webhook` makes the requests. Each request is sent within one transaction of the thread's own
connection: lock, cursor, events, request, cursor, COMMIT. A server that is killed anywhere leaves the cursor as it
was, so the events are sent again; the lock ends with the connection. Requests to the API do not wait.
"""

import logging
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from enum import Enum
from threading import Event as Signal
from threading import Thread
from typing import Any

import psycopg

from duckicelake.access.grants import format_name
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CatalogError
from duckicelake.lake.changes import DATA_KINDS, REWRITE_KINDS, TABLE_KINDS, parse_changes, quote_names
from duckicelake.lake.connect import Lake, reading, writing_on_new_connection
from duckicelake.lake.events import (
    OutboxBounds,
    OutboxRow,
    find_webhook_cursor,
    locking_webhook,
    read_bounds,
    read_outbox,
    write_webhook_cursor,
)
from duckicelake.translate.namespaces import Levels, to_levels

MOST_EVENTS = 1000
LARGEST_ID = 2**63 - 1
CURSOR = re.compile(r"(-1|[0-9]{1,19})(?:\.([0-9]{1,7}))?")
Event = Mapping[str, Any]
FUNCTION_KINDS = frozenset({"created_scalar_macro", "created_table_macro", "dropped_scalar_macro", "dropped_table_macro"})


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order, and the cursor that the next page follows. `is_last`: the page reaches the newest event."""

    events: Sequence[Event]
    cursor: str
    is_last: bool


@dataclass(frozen=True, slots=True)
class EventCursor:
    """The part that was read: all up to a lake snapshot, or (`number`) up to that event of it."""

    snapshot_id: int
    number: int | None = None

    @property
    def text(self) -> str:
        """The cursor as clients keep it."""
        return str(self.snapshot_id) if self.number is None else f"{self.snapshot_id}.{self.number}"

    @property
    def complete(self) -> int:
        """The last lake snapshot of which everything was read."""
        return self.snapshot_id if self.number is None else self.snapshot_id - 1

    @property
    def events_read(self) -> int:
        """The number of events of the next lake snapshot that were read."""
        return 0 if self.number is None else self.number + 1


OLDEST = EventCursor(-1)


LONGEST_TEXT = 4096
"""The author and the message of a lake snapshot are in each of its events, so they are cut after so many characters."""


class EventsLost(BadRequest):
    """Events that follow a cursor cannot be read any more; reading may go on after the lake snapshot `next_after`."""

    def __init__(self, next_after: int, message: str) -> None:
        super().__init__(message)
        self.next_after = next_after


def parse_cursor(text: str) -> EventCursor:
    """Return the cursor that a text holds. Raises: BadRequest."""
    found = CURSOR.fullmatch(text)
    if found is None or int(found[1]) > LARGEST_ID:
        raise BadRequest(f"{text[:50]!r} is no cursor: send the one of the last page, a lake snapshot or the id of an event.")
    return EventCursor(int(found[1]), None if found[2] is None else int(found[2]))


def read_events(warehouse: Warehouse, after: EventCursor | None, most: int) -> EventPage:
    """Return the events that follow a cursor, at most `most`; None: from the oldest on.

    Raises: EventsLost: events after the cursor have been deleted, or the lake has not got as far as the cursor. BadRequest: no cursor
    """
    with reading(warehouse.lake) as conn:
        return read_event_page(conn, warehouse.name, after, most)


def read_event_page(conn: psycopg.Connection, name: str, after: EventCursor | None, most: int) -> EventPage:
    """Return the events of the lake of that name in an open transaction. Raises: EventsLost: as `read_events`. BadRequest."""
    cursor = after or OLDEST
    rows = read_outbox(conn, cursor.complete, most + cursor.events_read)
    # Read after the rows: what another transaction deletes in between must not be missing without a word.
    bounds = read_bounds(conn)
    if after is not None:
        _check_cursor(after, bounds)
    found = [(row.snapshot_id, number, event) for row in rows for number, event in enumerate(build_events(row, f"/v1/{name}"))]
    if cursor.number is not None and (cursor.snapshot_id, cursor.number) not in [(place[0], place[1]) for place in found]:
        message = f"The lake has no event {cursor.text}, so this is no cursor of it. Go on after {cursor.snapshot_id}."
        raise EventsLost(cursor.snapshot_id, message)
    left = found[cursor.events_read :]
    shown = left[:most]
    if len(left) > most:
        end = EventCursor(shown[-1][0], shown[-1][1]) if left[most][0] == shown[-1][0] else EventCursor(shown[-1][0])
        return EventPage([event for _, _, event in shown], end.text, is_last=False)
    end = EventCursor(rows[-1].snapshot_id) if rows else cursor
    return EventPage([event for _, _, event in shown], end.text, is_last=end.snapshot_id >= bounds.newest)


def _check_cursor(after: EventCursor, bounds: OutboxBounds) -> None:
    """Raise EventsLost if events that follow a cursor cannot be read."""
    if after.complete < bounds.pruned:
        raise EventsLost(
            bounds.pruned,
            f"Events up to {bounds.pruned} have been deleted, because they expired longer ago than audit_days; the cursor {after.text} is "
            f"before that. Read the lake's state again, and go on after {bounds.pruned}.",
        )
    if after.snapshot_id > max(bounds.newest, bounds.pruned):
        raise EventsLost(
            bounds.newest,
            f"The cursor {after.text} is after the newest lake snapshot {bounds.newest}: Postgres was restored to an earlier state, or the "
            f"cursor is another lake's. Read the lake's state again, and go on after {bounds.newest}.",
        )


def build_events(row: OutboxRow, source: str) -> Iterator[Event]:
    """Yield the events of a lake snapshot, one for each object that it changed."""
    for number, (changed, kinds) in enumerate(group_changes(row)):
        data: dict[str, Any] = {
            "kind": changed.kind,
            "namespace": list(changed.namespace),
            "name": changed.name,
            "uuid": changed.uuid,
            "lake-snapshot-id": row.snapshot_id,
            "changes": kinds,
            "author": None if row.author is None else row.author[:LONGEST_TEXT],
            "message": None if row.commit_message is None else row.commit_message[:LONGEST_TEXT],
            "principal": row.principal,
            "operation": row.operation,
            "request-id": row.request_id,
        }
        yield {
            "specversion": "1.0",
            "id": f"{row.snapshot_id}.{number}",
            "source": source,
            "type": f"duckicelake.{changed.kind}.{get_verb(kinds, changed, row.snapshot_id)}",
            "subject": format_name(changed.namespace if changed.name is None else (*changed.namespace, changed.name)),
            "time": row.snapshot_time.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            "data": {key: value for key, value in data.items() if value is not None},
        }


@dataclass(frozen=True, slots=True)
class ChangedObject:
    """An object that a lake snapshot changed: a table, view, namespace or function, by its name then. `uuid` None: functions have none.

    `previous_end`: where a table's row before this one ended.
    """

    kind: str
    namespace: Levels
    name: str | None
    uuid: str | None
    previous_end: int | None = None


def group_changes(row: OutboxRow) -> Sequence[tuple[ChangedObject, list[str]]]:
    """Return the objects that a lake snapshot changed, each with its kinds of change, in the order of the record."""
    found: dict[ChangedObject, list[str]] = {}
    for change in parse_changes(row.changes_made):
        changed = get_object(row, change.kind, change.value)
        kinds = found.setdefault(changed, [])
        if change.kind not in kinds:
            kinds.append(change.kind)
    return list(found.items())


def get_object(row: OutboxRow, kind: str, value: str) -> ChangedObject:
    """Return the object that an entry of `changes_made` names: by its id, or by its name in quotes."""
    if kind in FUNCTION_KINDS:
        return to_named("function", value)
    what = "schema" if kind.endswith("_schema") else "view" if kind in ("created_view", "dropped_view") else "table"
    candidates = [item for item in row.objects if item["kind"] == what]
    if value.isdecimal():
        candidates = [item for item in row.objects if item["id"] == int(value) and (item["kind"] == what or kind in TABLE_KINDS)]
        # The row that begins here is the object after the change, and the one that ends here the dropped object.
        candidates.sort(key=lambda item: item["begin"], reverse=True)
    else:
        candidates = [item for item in candidates if item["begin"] == row.snapshot_id and is_named(item, value)]
    return to_changed(candidates[0]) if candidates else to_named("namespace" if what == "schema" else what, value)


def is_named(item: Mapping[str, Any], value: str) -> bool:
    """Return True if an entry's quoted name is that of an object."""
    levels = to_levels(item["namespace"])
    stored = (item["namespace"],) if item["kind"] == "schema" else (item["namespace"], item["name"])
    nested = levels if item["kind"] == "schema" else (*levels, item["name"])
    return value in (quote_names(*stored), quote_names(*nested))


def to_changed(item: Mapping[str, Any]) -> ChangedObject:
    """Return an object of the outbox."""
    kind = "namespace" if item["kind"] == "schema" else item["kind"]
    return ChangedObject(kind, to_levels(item["namespace"]), item.get("name"), item["uuid"], item.get("previous_end"))


def to_named(kind: str, value: str) -> ChangedObject:
    """Return an object of which only the entry is left: its quoted names, or its id in the place of a name."""
    names = [part.replace('""', '"') for part in value.strip('"').split('"."')]
    if kind == "namespace":
        return ChangedObject(kind, tuple(level for name in names for level in to_levels(name)), None, None)
    return ChangedObject(kind, tuple(level for name in names[:-1] for level in to_levels(name)), names[-1], None)


def get_verb(kinds: Sequence[str], changed: ChangedObject, snapshot_id: int) -> str:
    """Return what happened to an object, in one word: of several kinds of change, the one that says most."""
    if any(kind.startswith("dropped_") for kind in kinds):
        return "dropped"
    if any(kind.startswith("created_") for kind in kinds):
        if changed.previous_end is None:
            return "created"
        return "renamed" if changed.previous_end == snapshot_id else "restored"
    if any(kind.startswith("altered_") for kind in kinds):
        return "altered"
    return "rewritten" if all(kind in REWRITE_KINDS for kind in kinds if kind in DATA_KINDS) else "changed"


POLL_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STOP_SECONDS = 5.0

Send = Callable[[Sequence[Event]], str | None]
"""Send events in one request. Return None if the receiver has acknowledged them (2xx), else what went wrong."""


class Sent(Enum):
    """The result of a turn: more may follow what was acknowledged, there was nothing, another server sends, or the receiver refused."""

    MORE = "more"
    NOTHING = "nothing"
    ELSEWHERE = "elsewhere"
    REFUSED = "refused"


@dataclass(slots=True)
class Webhook:
    """Send the events of a lake, in order, each until it is acknowledged. The counts are for metrics.

    `lag`: lake snapshots that the receiver has not acknowledged, as of the last turn.
    """

    lake: Lake
    send: Send
    batch_max: int
    sent_count: int = 0
    failure_count: int = 0
    lag: int = 0
    _log: logging.Logger = field(default_factory=lambda: logging.getLogger("duckicelake.webhook"))
    _stopping: Signal = field(default_factory=Signal)
    _thread: Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the request that is under way, and within seconds."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                with writing_on_new_connection(self.lake) as conn:
                    while not self._stopping.is_set():
                        done = self.send_next(conn)
                        failures = failures + 1 if done is Sent.REFUSED else 0
                        if done is not Sent.MORE:
                            self._stopping.wait(compute_pause(failures))
                continue
            except CatalogError as error:
                self._log.warning("Events of %s cannot be sent: %s", self.lake.name, error.message)
            except Exception:  # noqa: BLE001  the outermost frame of this thread: one fault must not end it
                self._log.exception("Events of %s cannot be sent", self.lake.name)
            failures += 1
            self.failure_count += 1
            self._stopping.wait(compute_pause(failures))

    def send_next(self, conn: psycopg.Connection) -> Sent:
        """Send the next events in one request, move the cursor if the receiver acknowledges them, and commit."""
        with locking_webhook(conn) as is_locked:
            # Read under the lock: another server may have moved the cursor just before.
            text = find_webhook_cursor(conn)
            newest = read_bounds(conn).newest
            if text is not None:
                self.lag = max(0, newest - parse_cursor(text).complete)
            if not is_locked:
                return Sent.ELSEWHERE
            if text is None:
                write_webhook_cursor(conn, EventCursor(newest).text)
                return Sent.NOTHING
            return self._send_after(conn, parse_cursor(text))

    def _send_after(self, conn: psycopg.Connection, cursor: EventCursor) -> Sent:
        try:
            page = read_event_page(conn, self.lake.name, cursor, self.batch_max)
            events, after, is_last = page.events, page.cursor, page.is_last
        except EventsLost as lost:
            self._log.error("Events of %s are lost: %s", self.lake.name, lost.message)
            events, after, is_last = [build_lost(self.lake.name, cursor, lost)], EventCursor(lost.next_after).text, False
        refusal = self.send(events) if events else None
        if refusal is not None:
            self.failure_count += 1
            self._log.warning("The webhook takes no events of %s: %s", self.lake.name, refusal)
            return Sent.REFUSED
        if after != cursor.text:
            write_webhook_cursor(conn, after)
        self.sent_count += len(events)
        # Lake snapshots without events move the cursor alone.
        return Sent.MORE if events or (after != cursor.text and not is_last) else Sent.NOTHING


def compute_pause(failures: int) -> float:
    """Return how long to wait, in seconds: longer after each failure, and not the same for all servers."""
    if not failures:
        return POLL_S
    return random.uniform(0.5, 1.0) * min(FIRST_PAUSE_S * 2 ** min(failures - 1, 20), LONGEST_PAUSE_S)


def build_lost(name: str, cursor: EventCursor, lost: EventsLost) -> Event:
    """Return the event that says that events are missing: its receiver reads the lake's state again."""
    return {
        "specversion": "1.0",
        "id": f"lost.{cursor.text}.{lost.next_after}",
        "source": f"/v1/{name}",
        "type": "duckicelake.events.lost",
        "datacontenttype": "application/json",
        "data": {"after": cursor.text, "until": lost.next_after, "message": lost.message},
    }
