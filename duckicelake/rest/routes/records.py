"""Handlers of what is recorded: `listEvents`, `listReads`, `listReports`. They run on worker threads; `catalog` reads Postgres."""

import re
from typing import Annotated

from fastapi import Query

from duckicelake.catalog.events import MOST_EVENTS, parse_cursor, read_events
from duckicelake.catalog.records.client_reports import MOST_REPORTS, encode_report, list_reports, summarize_reports
from duckicelake.catalog.records.reads import MOST_READS, WantedReads, encode_read, list_reads
from duckicelake.catalog.tables import Ident
from duckicelake.errors import BadRequest, NotServed
from duckicelake.rest.context import ServerContext, Target
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import Levels, Prefix, TableName, decode_page_token, encode_page_token
from duckicelake.rest.response_bodies import ListEventsResponse, ListReadsResponse, ListReportsResponse

PLACE = re.compile(r"\d{1,18}", re.ASCII)
LONGEST_NAME = 4096
FEW_EVENTS = 100
LONGEST_CURSOR = 40


class RecordRoutes:
    """Handlers of what is recorded of a lake: its events, who read it, and what clients report."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "listEvents": OperationHandler(self.list_events),
            "listReads": OperationHandler(self.list_reads),
            "listReports": OperationHandler(self.list_reports),
        }

    def list_events(
        self,
        target: Target,
        after: Annotated[str | None, Query(max_length=LONGEST_CURSOR, description="The cursor of the last page, if any.")] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_EVENTS, description="At most so many events.")] = FEW_EVENTS,
    ) -> ListEventsResponse:
        """List what the lake snapshots after a cursor changed, in order, as CloudEvents."""
        lake = self._context.get_lake(target.prefix)
        if lake.repository:
            raise NotServed(f"A branch has no events: its merge makes events on the lake. Ask the lake {lake.repository!r}.")
        page = read_events(lake.warehouse, None if after is None else parse_cursor(after), limit)
        return {"events": [dict(event) for event in page.events], "cursor": page.cursor, "is-last": page.is_last}

    def list_reads(
        self,
        target: Target,
        name: Annotated[
            str | None, Query(alias="object", max_length=LONGEST_NAME, description="Only reads of this table, view or function: a.b.t.")
        ] = None,
        principal: Annotated[str | None, Query(max_length=LONGEST_NAME, description="Only reads of this principal.")] = None,
        page_token: Annotated[str, Query(alias="pageToken", description="Where the previous page ended; empty: the first page.")] = "",
        page_size: Annotated[int, Query(alias="pageSize", ge=1, le=MOST_READS, description="At most so many.")] = FEW_EVENTS,
    ) -> ListReadsResponse:
        """List the audited reads of a lake and its branches, those that were written last first."""
        warehouse = self._context.get_repository(target.prefix).warehouse
        page = list_reads(warehouse, page_size, parse_place(page_token), WantedReads(name, principal))
        token = None if page.before is None else encode_page_token((str(page.before),))
        return {"reads": [dict(encode_read(read)) for read in page.reads], "next-page-token": token}

    def list_reports(
        self,
        prefix: Prefix,
        levels: Levels,
        name: TableName,
        page_token: Annotated[str, Query(alias="pageToken", description="Where the previous page ended; empty: the first page.")] = "",
        page_size: Annotated[int, Query(alias="pageSize", ge=1, le=MOST_REPORTS, description="At most so many.")] = FEW_EVENTS,
    ) -> ListReportsResponse:
        """List what clients reported of their scans of a table and commits to it, the newest first; the first page has sums over all."""
        warehouse, ident, before = self._context.get_lake(prefix).warehouse, Ident(levels, name), parse_place(page_token)
        page = list_reports(warehouse, ident, page_size, before)
        summary = dict(summarize_reports(warehouse, ident)) if before is None else None
        token = None if page.before is None else encode_page_token((str(page.before),))
        return {"summary": summary, "reports": [dict(encode_report(each)) for each in page.reports], "next-page-token": token}


def parse_place(page_token: str) -> int | None:
    """Return the number that a page begins below, None for the first page. Raises: BadRequest."""
    if not page_token:
        return None
    place = decode_page_token(page_token)
    if len(place) != 1 or not PLACE.fullmatch(place[0]):
        raise BadRequest("The pageToken is not one that this catalog gave out.")
    return int(place[0])
