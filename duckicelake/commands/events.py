"""`duckicelake events tail`, `reads list`, `reports list` and `reports summary`, from the lake's Postgres without the REST API.

Anyone who may read the lake's Postgres may use them. Each line is one event (CloudEvents), read or report as JSON.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from threading import Event

from duckicelake.catalog.events.feed import MOST_EVENTS, parse_cursor, read_events
from duckicelake.catalog.records.client_reports import MOST_REPORTS, ClientReport, encode_report, summarize_reports
from duckicelake.catalog.records.client_reports import list_reports as read_reports
from duckicelake.catalog.records.reads import MOST_READS, WantedReads, encode_read
from duckicelake.catalog.records.reads import list_reads as read_page
from duckicelake.catalog.warehouse import Warehouse, close_warehouse, open_warehouse
from duckicelake.commands.embedded import join_running
from duckicelake.commands.facts import choose_lake
from duckicelake.commands.signals import stopping_on_signals
from duckicelake.commands.undrop import parse_levels, to_ident
from duckicelake.config import Settings
from duckicelake.embedded.home import open_home
from duckicelake.store_settings import read_store_settings

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
    for each in _read_reports(settings, warehouse, name)[:most]:
        yield json.dumps(encode_report(each), ensure_ascii=False, separators=(",", ":"))


def summarize(settings: Settings, warehouse: str | None, name: str) -> str:
    """Return sums over the reports on a table."""
    return json.dumps(summarize_reports(_read_reports(settings, warehouse, name)), ensure_ascii=False, indent=2)


def _read_reports(settings: Settings, warehouse: str | None, name: str) -> Sequence[ClientReport]:
    with opening(settings, warehouse) as opened:
        return read_reports(opened, to_ident(parse_levels(name)), MOST_REPORTS)


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
