"""`duckicelake events tail`: the events of a lake, read from its Postgres without the REST API.

Anyone who may read the lake's Postgres may use it. Each line is one CloudEvent as JSON; a cursor goes to the caller after each page.
"""

import json
from collections.abc import Iterator
from threading import Event

from duckicelake.catalog.events.feed import MOST_EVENTS, parse_cursor, read_events
from duckicelake.catalog.warehouse import close_warehouse, open_warehouse
from duckicelake.commands.embedded import join_running
from duckicelake.commands.facts import choose_lake
from duckicelake.commands.signals import stopping_on_signals
from duckicelake.config import Settings
from duckicelake.embedded.home import open_home
from duckicelake.store_settings import read_store_settings

PAUSE_S = 1.0


def tail(settings: Settings, warehouse: str | None, after: str | None, *, follows: bool) -> Iterator[str]:
    """Yield the events after a cursor as lines; `follows`: wait for further ones until the command is stopped."""
    with stopping_on_signals():
        lake = choose_lake(join_running(settings, open_home(settings.home)), warehouse)
        opened = open_warehouse(lake.name, lake.postgres_dsn.get_secret_value(), lake.metadata_schema, read_store_settings(lake))
        try:
            cursor = None if after is None else parse_cursor(after)
            while True:
                page = read_events(opened, cursor, MOST_EVENTS)
                yield from (json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in page.events)
                cursor = parse_cursor(page.cursor)
                if page.is_last and not follows:
                    return
                if page.is_last:
                    Event().wait(PAUSE_S)
        finally:
            close_warehouse(opened)
