"""Data files that flush or merge wrote from rows of several lake snapshots: what is embedded, and the rows as they were."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from duckicelake.errors import Unsupported
from duckicelake.store.inlined import format_lineage_schema
from duckicelake.store.inlined_types import FIELD_ID, InlinedColumn, Node, build_node
from duckicelake.store.parquet import SNAPSHOT_COLUMN, find_columns, read_longs, telling

ROW_ID_COLUMN = "_ducklake_internal_row_id"

Longs = npt.NDArray[np.int64]

# Arrays of any type: what pyarrow's stubs know of their element types helps nobody here.
AnyArray = Any


@dataclass(frozen=True, slots=True)
class Embedded:
    """What a rewritten file says of its rows, one number per position; `row_ids` is None when they count from the file's first.

    `field_ids` are those of its columns at every level.
    """

    snapshot_ids: Longs
    row_ids: Longs | None
    field_ids: frozenset[int]

    def find_row_ids(self, first: int | None) -> Longs | None:
        """Return the row id of each position, counted from the file's first one where none are embedded."""
        if self.row_ids is not None or first is None:
            return self.row_ids
        return np.arange(first, first + len(self.snapshot_ids), dtype=np.int64)


def read_embedded(source: BinaryIO, newest: int | None = None) -> Embedded:
    """Read the lake snapshot and the row id of each row; only these columns and the footer are fetched from `source`.

    Rows of Iceberg clients may have none: DuckDB shows them from the file's `newest` lake snapshot on.
    Raises: Unsupported — the file embeds no lake snapshots
    """
    with telling("data file"):
        file = pq.ParquetFile(source)
        names = file.schema_arrow.names
        if SNAPSHOT_COLUMN not in names:
            raise Unsupported(f"A data file said to span snapshots has no column {SNAPSHOT_COLUMN}.")
        table = file.read(columns=[name for name in (SNAPSHOT_COLUMN, ROW_ID_COLUMN) if name in names], use_threads=False)
        is_numbered = ROW_ID_COLUMN in names and not table.column(ROW_ID_COLUMN).null_count
        row_ids = read_longs(table.column(ROW_ID_COLUMN)) if is_numbered else None
        snapshot_ids: AnyArray = table.column(SNAPSHOT_COLUMN)
        if newest is not None and snapshot_ids.null_count:
            snapshot_ids = snapshot_ids.fill_null(newest)
        field_ids, _ = find_columns(file.schema_arrow)
        return Embedded(read_longs(snapshot_ids), row_ids, frozenset(i for i in field_ids.values() if i is not None))


def can_restore(columns: Sequence[InlinedColumn], embedded: Embedded) -> bool:
    """Tell whether a rewritten file still has all of these columns, and all are of types that derived files can hold."""
    try:
        for column in columns:
            build_node(column)
    except Unsupported:
        return False
    return embedded.field_ids.issuperset(_field_ids(columns))


def _field_ids(columns: Sequence[InlinedColumn]) -> set[int]:
    found = {column.field_id for column in columns}
    return found.union(*(_field_ids(column.children) for column in columns))


@dataclass(frozen=True, slots=True)
class RestoredRows:
    """All rows of some rewritten files as their columns once were; `starts` is where each file's begin."""

    table: pa.Table
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Rows of one lake snapshot in the order wanted: file, position and row id of each."""

    data_file_ids: Longs
    positions: Longs
    row_ids: Longs
    snapshot_id: int


def restore_rows(columns: Sequence[InlinedColumn], contents: Mapping[int, bytes]) -> RestoredRows:
    """Read rewritten files, by data file id, in the types that converted inlined rows have.

    Raises: Unsupported — a file is no Parquet, or holds a value that the column did not
    """
    nodes = [build_node(column) for column in columns]
    tables: list[pa.Table] = []
    starts: dict[int, int] = {}
    for data_file_id, content in contents.items():
        starts[data_file_id] = sum(table.num_rows for table in tables)
        with telling("data file"):
            tables.append(_restore(columns, nodes, pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)))
    return RestoredRows(pa.concat_tables(tables).combine_chunks(), starts)


def _restore(columns: Sequence[InlinedColumn], nodes: Sequence[Node], table: pa.Table) -> pa.Table:
    fields: list[Any] = list(table.schema)
    places = {int(field.metadata[FIELD_ID]): place for place, field in enumerate(fields) if FIELD_ID in (field.metadata or {})}
    arrays: list[AnyArray] = []
    for column, node in zip(columns, nodes, strict=True):
        place = places[column.field_id]
        arrays.append(_rebuild(column, node, fields[place], table.column(place).combine_chunks()))
    return pa.Table.from_arrays(arrays, names=[str(column.field_id) for column in columns])


def take_rows(columns: Sequence[InlinedColumn], rows: RestoredRows, wanted: RowPlaces) -> pa.Table:
    """Return some restored rows with their lineage: equal to what converted inlined rows were."""
    starts = np.array([rows.starts[key] for key in wanted.data_file_ids.tolist()], dtype=np.int64)
    taken = rows.table.take(cast("Any", pa.array(starts + wanted.positions)))
    born = np.full(len(wanted.row_ids), wanted.snapshot_id, dtype=np.int64)
    nodes = tuple(build_node(column) for column in columns)
    arrays: list[AnyArray] = [*taken.columns, pa.array(wanted.row_ids), pa.array(born)]
    return pa.Table.from_arrays(arrays, schema=format_lineage_schema(tuple(columns), nodes))


def _rebuild(column: InlinedColumn, node: Node, field: Any, array: AnyArray) -> AnyArray:
    """The same values in the type that derived files have, its parts found by field id."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    parts = list(zip(column.children, node.children, strict=True))
    if not parts:
        # a cast from extension types is one from what they are stored as
        return array.cast(node.storage).cast(node.arrow)
    kind: Any = field.type
    missing = array.is_null()
    if column.ducklake_type == "struct":
        places = {int(kind.field(place).metadata[FIELD_ID]): place for place in range(kind.num_fields)}
        children = [_rebuild(c, n, kind.field(places[c.field_id]), array.field(places[c.field_id])) for c, n in parts]
        return cast("Any", pa.StructArray).from_arrays(children, fields=list(cast("Any", node.arrow)), mask=missing)
    if column.ducklake_type == "map":
        found = ((kind.key_field, array.keys), (kind.item_field, array.items))
        keys, items = (_rebuild(c, n, f, a) for (c, n), (f, a) in zip(parts, found, strict=True))
        return cast("Any", pa.MapArray).from_arrays(array.offsets, keys, items, type=node.arrow, mask=missing)
    [(child, part)] = parts
    elements = _rebuild(child, part, kind.value_field, array.values)
    return cast("Any", pa.ListArray).from_arrays(array.offsets, elements, type=node.arrow, mask=missing)
