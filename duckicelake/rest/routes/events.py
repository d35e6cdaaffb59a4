"""Handler of `listEvents`: what lake snapshots changed, page by page. Runs on a worker thread; `catalog.events` reads Postgres."""

from typing import Annotated

from fastapi import Query

from duckicelake.catalog.events.feed import MOST_EVENTS, parse_cursor, read_events
from duckicelake.errors import NotServed
from duckicelake.rest.context import ServerContext, Target
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.response_bodies import ListEventsResponse

FEW_EVENTS = 100
LONGEST_CURSOR = 40


class EventRoutes:
    """Handler of `listEvents`."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {"listEvents": OperationHandler(self.list_events)}

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
