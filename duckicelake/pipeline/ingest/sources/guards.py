"""Rows of a database that are looked at where they lie: what must be true of each, and what is told of those of which it is not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.sources.reading import RAW, WRONG

_SHOWN = 200


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """What must be true of a value, as SQL; what is said of a row where it is not, and what to do where such a row stops the run."""

    holds: str
    reason: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """A table or query of a database with checks of each row: `table` stands behind FROM, and has WRONG and RAW too.

    `columns` are those it has in the end; `checks` are by column, where there are any.
    """

    table: str
    columns: StructType
    checks: Mapping[str, Sequence[ValueCheck]] = field(repr=False)

    def list_reasons(self, column: str) -> list[str]:
        """What is said of rows that are bad for this column, if they are for no other that was looked at before."""
        return [check.reason for check in self.checks.get(column, ())]

    def convert(self, rows: DataFrame) -> DataFrame:
        """The rows as they are read, under their types."""
        return rows

    def sift(self, rows: DataFrame, name: str) -> DataFrame:
        """Rows that are held, without what is told of bad ones, if none is. Raises: BadRequest: some are no reason to take the others"""
        found = rows.where(F.col(WRONG).isNotNull()).groupBy(WRONG).agg(F.count("*").alias("n"), F.first(RAW).alias("example")).collect()
        told = {row[WRONG]: row for row in found}
        every = [check for checks in self.checks.values() for check in checks]
        stopping = next((check for check in every if check.remedy and check.reason in told), None)
        if stopping is not None:
            row = told[stopping.reason]
            raise BadRequest(
                f"{name}: {stopping.reason}, and {row['n']} rows have none, such as {row['example'][:_SHOWN]}. {stopping.remedy}"
            )
        return rows if told else rows.drop(WRONG, RAW)


def quote_name(name: str) -> str:
    """A name in a database's SQL; Spark's is `target.quote`."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A text in a database's SQL."""
    return "'" + text.replace("'", "''") + "'"
