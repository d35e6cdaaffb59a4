"""What a run works with, and what its steps read of a table."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import datetime

import psycopg
from pyspark.sql import SparkSession

from duckicelake.pipeline.jars import Progress
from duckicelake.pipeline.maintain import survey
from duckicelake.pipeline.maintain.ducklake import DuckLake
from duckicelake.pipeline.maintain.planning import TableFacts
from duckicelake.pipeline.maintain.policy import Policy
from duckicelake.pipeline.maintain.survey import TableName
from duckicelake.pipeline.rest import Rest


@dataclass(frozen=True, slots=True)
class MaintainContext:
    """What a run works with.

    Spark is opened when there is something for it to do. `sweep` removes what nothing names in the tables' own locations, of what
    was last written before that time, but for the tables named by schema and name, and says what it was.
    """

    connect: Callable[[], Rest]
    open_postgres: Callable[[], psycopg.Connection]
    lake: DuckLake
    open_spark: Callable[[], AbstractContextManager[SparkSession]]
    catalog: str
    sweep: Callable[[datetime, Collection[tuple[str, str]]], Sequence[str]]
    progress: Progress
    pause: Callable[[float], None]

    def read_facts(self, name: TableName, policy: Policy) -> TableFacts:
        """What DuckLake's catalog says of a table."""
        try:
            return self._read_once(name, policy)
        except psycopg.errors.UndefinedTable:
            # DuckLake drops a table of inlined rows when it is empty and of an earlier shape.
            return self._read_once(name, policy)

    def _read_once(self, name: TableName, policy: Policy) -> TableFacts:
        with closing(self.open_postgres()) as conn:
            return survey.read_facts(conn, name.table_id, policy)
