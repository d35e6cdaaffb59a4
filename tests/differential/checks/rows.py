"""Every reader shows exactly the model's rows, at head and at every snapshot."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tests.differential.checks.arrow import Dialect, plain_rows
from tests.differential.checks.blur import blur_rows
from tests.differential.generator.kinds import Column
from tests.differential.generator.literals import Rows
from tests.differential.generator.model import Table
from tests.differential.replay import Past, find_doubled
from tests.support.readers import DuckLakeReader, Reader, quote_ident

_SHOWN_ROWS = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reader said, and of what; `is_of_clients` when Iceberg clients have written to the table."""

    reader: Reader
    where: str
    rows: pa.Table
    is_of_clients: bool = False


def check_rows(expected: Rows, columns: Sequence[Column], answer: Answer) -> None:
    """Fail, naming a few rows, unless a reader's answer is the expected multiset."""
    dialect = Dialect.ICEBERG
    if isinstance(answer.reader, DuckLakeReader):
        dialect = Dialect.WIDENED if answer.is_of_clients else Dialect.DUCKLAKE
    got = plain_rows(columns, answer.rows, dialect)
    if answer.reader.blurs_nulls:
        got, expected = blur_rows(columns, got), blur_rows(columns, expected)
    if got != expected:
        missing, extra = list((expected - got).items()), list((got - expected).items())
        counts = f"{sum(expected.values())} rows expected, {sum(got.values())} read"
        where = f"{answer.reader.name}, {answer.where}"
        raise AssertionError(f"{where}: {counts}; missing {missing[:_SHOWN_ROWS]}, extra {extra[:_SHOWN_ROWS]}")


def check_lake_snapshots(past: Past, reader: DuckLakeReader, forgetful: Collection[int]) -> None:
    """DuckDB shows the model's rows of every table at every lake snapshot that did something to it, and at head.

    Of the `forgetful` ones, and of those with files that DuckDB reads twice, at head alone. One table after the other: when
    it goes back and forth between tables, DuckDB 1.5.5 shows columns of an earlier state.
    """
    doubled = find_doubled(reader.conn)
    head = past.all_moments[-1].lake_snapshot_id
    _look_up_tables(past, reader)
    for key in sorted({key for moment in past.moments for key in moment.lake.tables}):
        before: Table | None = None
        for moment in past.moments:
            table = moment.lake.tables.get(key)
            is_changed = moment.is_maintenance or key in moment.touched or table != before
            before = table
            if table is None:
                continue
            is_right = key not in forgetful and table.ident not in doubled and moment.is_known
            if moment.lake_snapshot_id == head or (is_changed and is_right):
                answer = reader.read(table.ident, moment.lake_snapshot_id)
                where = f"{table.ident} at {moment.lake_snapshot_id}"
                check_rows(table.plain_rows(), table.columns, Answer(reader, where, answer, table.may_be_wide))


def _look_up_tables(past: Past, reader: DuckLakeReader) -> None:
    """Let the session keep the tables of each lake snapshot before it reads rows: else inlined rows may bring it wrong ones."""
    for moment in past.moments:
        table = next(iter(moment.lake.tables.values()), None)
        if table is not None and moment.is_known:
            reader.conn.execute(f"DESCRIBE FROM lake.{quote_ident(table.ident)} AT (VERSION => {moment.lake_snapshot_id})")


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
        dialect = Dialect.WIDENED if then.may_be_wide else Dialect.DUCKLAKE
        expected = plain_rows(then.columns, duckdb.read(then.ident, snapshot_id), dialect)
        answer = Answer(reader, f"{table.ident} at snapshot {snapshot_id}", reader.read(table.ident, snapshot_id))
        check_rows(expected, then.columns, answer)
