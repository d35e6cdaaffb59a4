"""Every reader shows exactly the model's rows: at head, at every snapshot, and between snapshots."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation

from tests.differential.arrow import plain_rows
from tests.differential.blur import blur_rows
from tests.differential.generator.kinds import Column, format_iceberg_type
from tests.differential.generator.literals import Rows
from tests.differential.generator.model import Table
from tests.differential.replay import Past
from tests.support.readers import PyIcebergReader, Reader, read_scan

_SHOWN_ROWS = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reader said, and of what."""

    reader: Reader
    where: str
    rows: pa.Table


def check_rows(expected: Rows, columns: Sequence[Column], answer: Answer) -> None:
    """Fail, naming a few rows, unless a reader's answer is the expected multiset."""
    got = plain_rows(columns, answer.rows)
    if answer.reader.blurs_nulls:
        got, expected = blur_rows(columns, got), blur_rows(columns, expected)
    if got != expected:
        missing, extra = list((expected - got).items()), list((got - expected).items())
        counts = f"{sum(expected.values())} rows expected, {sum(got.values())} read"
        where = f"{answer.reader.name}, {answer.where}"
        raise AssertionError(f"{where}: {counts}; missing {missing[:_SHOWN_ROWS]}, extra {extra[:_SHOWN_ROWS]}")


def check_lake_snapshots(past: Past, reader: Reader) -> None:
    """DuckDB shows the model's rows of every table at every lake snapshot."""
    for moment in past.moments:
        for table in moment.lake.tables.values():
            answer = reader.read(table.ident, moment.lake_snapshot_id)
            check_rows(table.plain_rows(), table.columns, Answer(reader, f"{table.ident} at {moment.lake_snapshot_id}", answer))


def check_head(table: Table, reader: Reader) -> None:
    """A reader shows the table's rows as they are now."""
    check_rows(table.plain_rows(), table.columns, Answer(reader, f"{table.ident} now", reader.read(table.ident)))


def check_snapshots(past: Past, table: Table, reader: Reader, snapshot_ids: Sequence[int]) -> None:
    """A reader shows the table's rows, under the columns of then, at each of these snapshots."""
    for snapshot_id in snapshot_ids:
        then = past.find_table(table.table_id, snapshot_id)
        assert then is not None, f"{table.ident} did not exist at snapshot {snapshot_id}"
        answer = Answer(reader, f"{table.ident} at snapshot {snapshot_id}", reader.read(table.ident, snapshot_id))
        check_rows(then.plain_rows(), then.columns, answer)


def check_snapshot_ids(past: Past, table: Table, published: IcebergTable) -> list[int]:
    """The table's snapshots are the lake snapshots that changed its rows; returns them.

    A statement that found no rows makes none; a transaction that undid itself may make one. Of the expired ones only the
    last may stay, for as long as the table is as it left it.
    """
    snapshot_ids = [snapshot.snapshot_id for snapshot in published.snapshots()]
    changes = past.list_changes(table.table_id)
    kept = {change.lake_snapshot_id for change in changes} & past.lake_snapshot_ids
    certain = {change.lake_snapshot_id for change in changes if change.is_certain} & kept
    before = [change.lake_snapshot_id for change in changes if change.lake_snapshot_id < min(past.lake_snapshot_ids)]
    expired = set(snapshot_ids) - kept
    assert certain <= set(snapshot_ids), f"{table.ident} has snapshots {snapshot_ids}, expected {sorted(certain)}"
    assert len(expired) <= 1, f"{table.ident} still has snapshots {sorted(expired)}"
    assert expired <= set(before), f"{table.ident} has snapshots {snapshot_ids}, expected {sorted(certain)}"
    return snapshot_ids


def check_schema(table: Table, published: IcebergTable) -> None:
    """Names, types, NOT NULL and comments are the model's."""
    shown = [(field.name, str(field.field_type), field.required, field.doc) for field in published.schema().fields]
    shown = [(name, _without_ids(type_name), required, doc) for name, type_name, required, doc in shown]
    expected = [(column.name, format_iceberg_type(column.kind), column.required, column.comment) for column in table.columns]
    assert shown == expected, f"{table.ident} has columns {shown}, expected {expected}"


def _without_ids(type_name: str) -> str:
    """PyIceberg's `struct<4: a: optional int>` as `struct<a: int>`."""
    words = type_name.replace("optional ", "").replace("required ", "")
    parts = words.replace("struct<", "struct<\0").replace(", ", ", \0").split("\0")
    return "".join(part.split(": ", 1)[1] if part.split(": ", 1)[0].isdigit() else part for part in parts)


def check_column_ids(past: Past, table: Table, published: IcebergTable) -> None:
    """A column keeps its Iceberg field id through renames and promotions, and no id is ever used twice."""
    schemas = published.schemas()
    given: dict[int, int] = {}
    for snapshot in published.snapshots():
        then = past.find_table(table.table_id, snapshot.snapshot_id)
        assert then is not None
        assert snapshot.schema_id is not None
        fields = schemas[snapshot.schema_id].fields
        for column, field in zip(then.columns, fields, strict=True):
            assert given.setdefault(column.column_id, field.field_id) == field.field_id
    assert len(set(given.values())) == len(given)


def check_increments(past: Past, table: Table, reader: PyIcebergReader) -> None:
    """Between two snapshots, an incremental scan gives the rows that appends in between have added."""
    published = reader.catalog.load_table(table.ident)
    appends = list_appends(past, table, published)
    snapshot_ids = [snapshot.snapshot_id for snapshot in published.snapshots()]
    starts = {*snapshot_ids[:1], *snapshot_ids[len(snapshot_ids) // 2 :][:1]} - {*snapshot_ids[-1:]}
    for start in [None, *sorted(starts)] if snapshot_ids else []:
        expected: Rows = Counter()
        for snapshot_id, added in appends.items():
            if start is None or snapshot_id > start:
                expected.update(added.plain_rows(table.columns))
        scan = published.incremental_append_scan(from_snapshot_id_exclusive=start)
        check_rows(expected, table.columns, Answer(reader, f"{table.ident} appended after {start}", read_scan(scan)))


def list_appends(past: Past, table: Table, published: IcebergTable) -> dict[int, Table]:
    """By snapshot that says `append`: the rows it added; every pure INSERT must say so, and nothing that removed rows."""
    appends: dict[int, Table] = {}
    for change in past.list_changes(table.table_id):
        snapshot = published.snapshot_by_id(change.lake_snapshot_id)
        if snapshot is None:
            continue
        assert snapshot.summary is not None
        if snapshot.summary.operation == Operation.APPEND:
            appends[snapshot.snapshot_id] = change.added
        else:
            assert not change.is_insert, f"{table.ident}: INSERT made a snapshot {snapshot.summary.operation}"
    return appends
