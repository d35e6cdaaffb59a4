"""Every reader shows exactly the model's rows, at head and at every snapshot."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tests.differential.checks.arrow import Dialect, plain_rows
from tests.differential.checks.blur import blur_rows
from tests.differential.generator.kinds import Column
from tests.differential.generator.literals import Rows
from tests.differential.generator.model import Table
from tests.differential.replay import Past
from tests.support.readers import DuckLakeReader, Reader

_SHOWN_ROWS = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reader said, and of what."""

    reader: Reader
    where: str
    rows: pa.Table


def check_rows(expected: Rows, columns: Sequence[Column], answer: Answer) -> None:
    """Fail, naming a few rows, unless a reader's answer is the expected multiset."""
    dialect = Dialect.DUCKLAKE if isinstance(answer.reader, DuckLakeReader) else Dialect.ICEBERG
    got = plain_rows(columns, answer.rows, dialect)
    if answer.reader.blurs_nulls:
        got, expected = blur_rows(columns, got), blur_rows(columns, expected)
    if got != expected:
        missing, extra = list((expected - got).items()), list((got - expected).items())
        counts = f"{sum(expected.values())} rows expected, {sum(got.values())} read"
        where = f"{answer.reader.name}, {answer.where}"
        raise AssertionError(f"{where}: {counts}; missing {missing[:_SHOWN_ROWS]}, extra {extra[:_SHOWN_ROWS]}")


def check_lake_snapshots(past: Past, reader: DuckLakeReader, forgetful: Collection[int]) -> None:
    """DuckDB shows the model's rows of every table at every lake snapshot, and of the `forgetful` ones at head."""
    for moment in past.moments:
        for table in moment.lake.tables.values():
            if moment.lake_snapshot_id == past.all_moments[-1].lake_snapshot_id or table.table_id not in forgetful:
                answer = reader.read(table.ident, moment.lake_snapshot_id)
                check_rows(table.plain_rows(), table.columns, Answer(reader, f"{table.ident} at {moment.lake_snapshot_id}", answer))


def check_head(table: Table, reader: Reader) -> None:
    """A reader shows the table's rows as they are now."""
    check_rows(table.plain_rows(), table.columns, Answer(reader, f"{table.ident} now", reader.read(table.ident)))


def check_snapshots(past: Past, table: Table, reader: Reader, snapshot_ids: Iterable[int]) -> None:
    """A reader shows the table's rows, under the columns of then, at each of these snapshots."""
    for snapshot_id in snapshot_ids:
        then = past.table_at(table.table_id, snapshot_id)
        answer = Answer(reader, f"{table.ident} at snapshot {snapshot_id}", reader.read(table.ident, snapshot_id))
        check_rows(then.plain_rows(), then.columns, answer)


def check_as_duckdb(past: Past, table: Table, readers: tuple[Reader, DuckLakeReader], snapshot_ids: Iterable[int]) -> None:
    """A reader shows what DuckDB shows, at each of these snapshots: where DuckDB itself forgets, all forget alike."""
    reader, duckdb = readers
    for snapshot_id in snapshot_ids:
        then = past.table_at(table.table_id, snapshot_id)
        expected = plain_rows(then.columns, duckdb.read(then.ident, snapshot_id), Dialect.DUCKLAKE)
        answer = Answer(reader, f"{table.ident} at snapshot {snapshot_id}", reader.read(table.ident, snapshot_id))
        check_rows(expected, then.columns, answer)
