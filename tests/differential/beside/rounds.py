"""Rounds of `maintain` on the lake of a history, whose steps are played within them."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.lake_access import MaintainContext
from duckicelake.pipeline.maintain.planning import StepKind, StepResult
from duckicelake.pipeline.maintain.policy import MaintainOptions, MaintainPolicies
from tests.differential.checks.manifests import list_snapshots
from tests.differential.checks.rows import check_lake_snapshots, check_snapshots
from tests.differential.checks.snapshots import check_refs
from tests.differential.generator.model import Lake, Moment
from tests.differential.generator.steps import History
from tests.differential.replay import Past, read_head, read_snapshots
from tests.differential.sessions import Sessions
from tests.pipeline.maintain.keeper import DEAD, grow_branch, make_desk, make_eager
from tests.support.readers import DuckLakeReader, PyIcebergReader, Served
from tests.support.spark import Spark, letting_go

EAGER = {"snapshot-age": "0s", "file-age": "0s", "orphan-age": "1h", "min-files": 2, "delete-ratio": 0.01}
"""Whatever there is to do is done at once."""
PYICEBERG_WRITES = 2
"""The highest version of tables."""


def make_eager_desk(served: Served, spark: Spark) -> MaintainContext:
    """What a round works with: the shared Spark, and no pity on orphans."""
    desk = make_eager(make_desk(served, lambda _: None))
    return replace(desk, open_spark=lambda: nullcontext(spark.session), catalog=spark.add(served.rest_catalog()))


@dataclass(slots=True)
class Stage:
    """A history under way, and what everybody must see meanwhile."""

    served: Served
    sessions: Sessions
    history: History
    reader: PyIcebergReader
    writer: DuckLakeReader
    steps: Iterator[Moment]
    moments: list[Moment] = field(default_factory=list[Moment])
    said: list[str] = field(default_factory=list[str])
    left: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    # The job flushed inlined rows: DuckDB 1.5.5 breaks over tables that another session flushed after their columns changed.
    is_flushed: bool = False

    def go_on(self) -> bool:
        """Play a step, with all snapshots that it makes; False when there is none left."""
        if self.is_flushed:
            self.sessions.attach_again(self.writer, self.served.lake)
            self.is_flushed = False
        before = len(self.moments)
        for moment in self.steps:
            self.moments.append(moment)
            if moment.lake_snapshot_id >= read_head(self.writer.conn):
                break
        return len(self.moments) > before

    def leave(self) -> None:
        """What a run of `ingest` leaves that dies on its branch of a table, and one that was staged and never shown: no row of either."""
        for table in self.read_past().head.tables.values():
            published = self.reader.catalog.load_table(table.ident)
            # Only where the model knows that refs may keep more.
            if not published.current_snapshot() or not table.has_had_refs or published.format_version > PYICEBERG_WRITES:
                continue
            self.left[table.table_id] = table.ident
            grow_branch(published, DEAD)
            published.append(published.schema().as_arrow().empty_table(), branch=None)

    def look(self, past: Past) -> None:
        """PyIceberg shows every table at every snapshot, head and refs included, as the model says."""
        for table in past.head.tables.values():
            published = self.reader.catalog.load_table(table.ident)
            if table.table_id not in self.history.vector_tables:
                kept = past.lake_snapshot_ids - past.list_beside(table.table_id) - past.list_moved(table.table_id)
                shown = [snapshot.snapshot_id for snapshot in list_snapshots(published) if snapshot.snapshot_id in kept]
                check_snapshots(past, table, self.reader, past.list_known(shown))
            check_refs(past, table, self.reader)

    def read_past(self) -> Past:
        """What was so far, with what maintenance did since the last step."""
        head = read_head(self.writer.conn)
        last = self.moments[-1] if self.moments else Moment(0, Lake())
        added = range(last.lake_snapshot_id + 1, head + 1)
        later = [Moment(lake_snapshot_id, last.lake, is_maintenance=True) for lake_snapshot_id in added]
        return Past([*self.moments, *later], read_snapshots(self.writer.conn))

    def check(self) -> None:
        """Both sides show the model's rows at every snapshot that is not expired, and nothing is left of dead runs."""
        past = self.read_past()
        if not past.all_moments:
            return
        with self.sessions.on_lake(self.served.lake) as duckdb:
            check_lake_snapshots(past, duckdb, self.history.vector_tables)
        self.look(past)
        for table in past.head.tables.values():
            if self.left.get(table.table_id) == table.ident:
                assert DEAD not in self.reader.catalog.load_table(table.ident).refs(), table.ident

    def hear(self, text: str) -> None:
        """The job says what it does next: a step comes before."""
        self.said.append(text)
        try:
            self.go_on()
            self.look(self.read_past())
        except Exception as error:
            # The job would take it for its own.
            raise AssertionError(f"before «{text}»: {error}") from error
        self.is_flushed = text.startswith(StepKind.flush)


def run_round(desk: MaintainContext, policy: dict[str, Any], hear: Callable[[str], None]) -> Sequence[StepResult]:
    """One round; its steps."""
    options = MaintainOptions(policies=MaintainPolicies(EAGER | policy))
    with letting_go():
        try:
            return maintain(replace(desk, progress=hear), options).steps
        finally:
            gc.collect()
