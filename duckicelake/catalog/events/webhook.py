"""The thread that sends the events of a lake to the webhook. `app` starts one for each lake; `gateway.webhook` makes the requests.

Each request is sent within one transaction of its own connection: lock, cursor, events, request, cursor, COMMIT. A server that is killed
anywhere leaves the cursor as it was, so the events are sent again; the lock ends with the connection. Requests to the API do not wait.
"""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from threading import Event as Signal
from threading import Thread

import psycopg

from duckicelake.catalog.events.feed import Event, EventCursor, EventsLost, parse_cursor, read_event_page
from duckicelake.errors import CatalogError
from duckicelake.lake.connect import Lake, writing_on_new_connection
from duckicelake.lake.events.outbox import read_bounds
from duckicelake.lake.events.webhook_cursor import find_webhook_cursor, locking_webhook, write_webhook_cursor

POLL_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STOP_SECONDS = 5.0

Send = Callable[[Sequence[Event]], str | None]
"""Send events in one request. Return None if the receiver has acknowledged them (2xx), else what went wrong."""


class Sent(Enum):
    """The result of a turn: events were acknowledged, there was none, another server sends, or the receiver did not take them."""

    EVENTS = "events"
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
                        if done is not Sent.EVENTS:
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
            events, after = page.events, page.cursor
        except EventsLost as lost:
            self._log.error("Events of %s are lost: %s", self.lake.name, lost.message)
            events, after = [build_lost(self.lake.name, cursor, lost)], EventCursor(lost.next_after).text
        refusal = self.send(events) if events else None
        if refusal is not None:
            self.failure_count += 1
            self._log.warning("The webhook takes no events of %s: %s", self.lake.name, refusal)
            return Sent.REFUSED
        if after != cursor.text:
            write_webhook_cursor(conn, after)
        self.sent_count += len(events)
        return Sent.EVENTS if events else Sent.NOTHING


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
