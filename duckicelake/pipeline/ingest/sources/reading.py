"""What a run takes rows from: files, or one look into a database; and what the ledger says of each."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.options import Format
from duckicelake.pipeline.ingest.sources.shapes import ColumnSet

RAW = "__duckicelake_raw"
"""The column in which Spark leaves a line that it could not read."""

WRONG = "__duckicelake_wrong"
"""The column in which a database says what is wrong with a row; RAW has it then as it is there. Neither is there if no row is bad."""

FILE, ROW = "__duckicelake_file", "__duckicelake_row"
"""The columns that say where a row comes from: its source's URI, and its number there if known, else `build_row_position`."""

Same = TypeVar("Same")


class NoSource(BadRequest):
    """There is no such path, or nothing of the pattern."""


class SourceMoved(BadRequest):
    """A file changed or vanished while it was read: somebody is writing it."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a run takes, as the ledger has it: a file as it was listed, or a database with the greatest value that was read.

    `uri` is how Spark names it beside its rows.
    """

    uri: str
    size_bytes: int | None = None
    modified_ms: int | None = None
    etag: str | None = None
    watermark_column: str | None = None
    watermark: str | None = None

    @property
    def path(self) -> str:
        return unquote(self.uri)


class Reading(Protocol):
    """How the rows of a run are read."""

    @property
    def spark(self) -> SparkSession: ...

    @property
    def form(self) -> Format: ...

    @property
    def options(self) -> Mapping[str, Any]: ...

    @property
    def path_columns(self) -> Sequence[str]: ...

    @property
    def files(self) -> Sequence[Taken]:
        """What is taken; of a database nothing until its rows are held."""
        ...

    def describe(self) -> str:
        """What is taken, in words."""
        ...

    def read_columns(self, *, looks_at_values: bool = True) -> StructType:
        """What the source says of its columns, or what its values look like."""
        ...

    def list_column_sets(self, columns: StructType) -> Sequence[ColumnSet]:
        """What each file has of the columns that it is read by."""
        ...

    def read(self, columns: StructType) -> DataFrame:
        """The rows, with FILE and ROW, and RAW where they are text."""
        ...

    def count(self) -> Mapping[str, int] | None:
        """How many rows each file says that it has, None when that is not known without reading them."""
        ...

    def holding(self) -> AbstractContextManager["Reading"]:
        """The same with rows that do not change within the block, however often they are read."""
        ...

    def check_still(self) -> None:
        """Raises: SourceMoved: the source is not what it was when it was listed."""
        ...


def build_row_position() -> Column:
    """Of a file that Spark reads: which block of it, and numbers that grow by one from each row of that to the next, as it reads them."""
    return F.struct(F.col("_metadata.file_block_start").alias("block"), F.monotonically_increasing_id().alias("id"))


@contextmanager
def holding_unchanged(reading: Same) -> Generator[Same]:
    """A block for what does not change by itself."""
    yield reading
