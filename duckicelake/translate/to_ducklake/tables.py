"""Steps that create, rename, drop and restore tables and views, changes of table metadata as rows, and the ids that rows get. No I/O.

`catalog` calls them in the transaction that writes the rows, under the lake's lock. A staged create calls `create_table` without the lock,
as a check: its rows are not written.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata, get_current_schema, get_default_spec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.view_metadata import ViewMetadata
from duckicelake.lake.changes import NOTES_KIND, Change, quote_names
from duckicelake.lake.lake_format import V1_0, LakeFormat
from duckicelake.lake.note_rows import DroppedView, EndedView, LiveView, NewView, ViewNote
from duckicelake.lake.rows import ColumnRow, TableRow
from duckicelake.lake.writing.rows import (
    ChangedTableNote,
    DroppedTable,
    EndedColumn,
    EndedPartitioning,
    EndedSorting,
    EndedTableName,
    LakeHead,
    LakeStep,
    NewColumn,
    NewInlinedTable,
    NewPartitionKey,
    NewRow,
    NewSchemaNote,
    NewSchemaVersion,
    NewShape,
    NewSortOrderNote,
    NewSpecNote,
    NewTable,
    NewTableNote,
    NewTag,
    RevivedTable,
    RewordedSortKey,
)
from duckicelake.translate.client_schemas import format_schema_note as format_schema
from duckicelake.translate.client_schemas import format_spec_note as format_spec
from duckicelake.translate.namespaces import change_tags, fold_name, to_folder
from duckicelake.translate.partitions import to_partition_keys
from duckicelake.translate.sort_orders import format_order_note as format_order
from duckicelake.translate.sort_orders import list_names, rename_columns
from duckicelake.translate.summaries import SNAPSHOT_ID_PROPERTY
from duckicelake.translate.to_ducklake.columns import (
    ColumnRules,
    change_columns,
    change_comments,
    check_writable,
    create_columns,
    has_narrow,
)
from duckicelake.translate.unreadable_columns import (
    check_appendable,
    check_property,
    check_stays_readable,
    check_variants,
    list_unseen,
    select_seen,
)
from duckicelake.translate.views import COMMENT

ENCRYPTION_KEY_ID = "encryption.key-id"


@dataclass(slots=True)
class IdAllocator:
    """The counters of one commit."""

    next_catalog_id: int
    next_file_id: int

    def take_catalog_id(self) -> int:
        """Return an id for a table or a sort order."""
        self.next_catalog_id += 1
        return self.next_catalog_id - 1

    def take_file_ids(self, count: int) -> int:
        """Return the first of so many ids for data files, delete files, name mappings and pins."""
        self.next_file_id += count
        return self.next_file_id - count


@dataclass(slots=True)
class TableStep:
    """The changes of one lake snapshot to one table. `changes_catalog`: DuckDB must reload names, columns and tags."""

    changes: list[Change] = field(default_factory=list[Change])
    rows: list[NewRow] = field(default_factory=list[NewRow])
    changes_catalog: bool = False

    def add_change(self, kind: str, value: str | int) -> None:
        """Add an entry for `changes_made`, unless it is there already."""
        change = Change(kind, str(value))
        if change not in self.changes:
            self.changes.append(change)


@dataclass(frozen=True, slots=True)
class TableTarget:
    """The DuckLake schema of a table with the names of its parents, the table's name in it, and the lake's format.

    `schema_name` holds the same names as `schema_names` in one text.
    """

    schema_id: int
    schema_name: str
    schema_names: Sequence[str]
    table_name: str
    lake_format: LakeFormat = V1_0

    @property
    def quoted(self) -> str:
        """The names in an entry of `changes_made`."""
        return quote_names(*self.schema_names, self.table_name)


@dataclass(frozen=True, slots=True)
class LiveTable:
    """The rows of a table that a commit reads under the lock: all columns, live comments and tags, and the clients' sort order.

    `sort_keys`: DuckDB's sort keys, as SQL; `next_sort_id`: the id for a new order. `ends_buckets`: DuckDB partitions the table by
    buckets, and the commit adds files without bucket values. `partition_columns`: the ids of the columns that DuckDB partitions it by.
    """

    table_id: int
    columns: Sequence[ColumnRow]
    comments: Mapping[int, str]
    tags: Mapping[str, str]
    client_order_id: int = 0
    sort_keys: Sequence[str] = ()
    next_sort_id: int = 0
    ends_buckets: bool = False
    partition_columns: Collection[int] = ()
    lake_format: LakeFormat = V1_0


def create_table(table_id: int, target: TableTarget, new: TableMetadata, metadata_version: int = 0) -> TableStep:
    """Return the step that creates a table without data. `metadata_version` is the last one used at its location.

    Raises: BadRequest: DuckLake cannot store it
    """
    check_property(new.properties)
    check_variants(None, get_current_schema(new), new.properties)
    _check_unencrypted(new.properties, {})
    uuid = UUID(new.table_uuid)
    folder = to_folder(f"{target.table_name}-{uuid}", uuid)
    step = TableStep(changes_catalog=True)
    step.add_change("created_table", target.quoted)
    step.rows += [
        NewTable(table_id, uuid, target.schema_id, target.table_name, folder, True),
        NewSchemaVersion(table_id),
        NewTableNote(table_id, new.location, new.format_version, new.last_column_id, new.last_partition_id, metadata_version),
        *create_columns(table_id, get_current_schema(new), target.lake_format, new.last_column_id),
        *(NewTag(table_id, key, value) for key, value in sorted(stored_properties(new.properties).items())),
        *new_shape_notes(table_id, None, new),
    ]
    return step


def partition_table(
    ids: IdAllocator, table_id: int, new: TableMetadata, columns: Sequence[ColumnRow | NewRow], lake_format: LakeFormat
) -> list[NewRow]:
    """Return the rows by which DuckLake partitions a table as its Iceberg spec does; none if DuckLake cannot do so exactly.

    `columns`: the table's columns of all times, and new ones
    """
    types: dict[int, list[str]] = {}
    for row in columns:
        if isinstance(row, ColumnRow | NewColumn):
            types.setdefault(row.column_id, []).append(row.column_type.lower())
    keys = to_partition_keys(get_default_spec(new), get_current_schema(new), types, lake_format)
    partition_id = ids.take_catalog_id() if keys else 0
    return [NewPartitionKey(partition_id, table_id, index, column_id, transform) for index, (column_id, transform) in enumerate(keys)]


def drop_table(table_id: int) -> TableStep:
    """Return the step that drops a table."""
    step = TableStep(rows=[DroppedTable(table_id)], changes_catalog=True)
    step.add_change("dropped_table", table_id)
    return step


def revive_table(table: TableRow, target: TableTarget, folder: str, dropped_at: int) -> TableStep:
    """Return the step that restores a dropped table under a name; its files are where they were."""
    rows: list[NewRow] = [
        RevivedTable(table.table_id, dropped_at),
        NewTable(table.table_id, table.table_uuid, target.schema_id, target.table_name, folder, False),
        NewSchemaVersion(table.table_id),
    ]
    step = TableStep(rows=rows, changes_catalog=True)
    step.add_change("created_table", target.quoted)
    return step


def rename_table(table: TableRow, target: TableTarget, path: str | None, *, path_is_relative: bool) -> TableStep:
    """Return the step that gives a table another name, and perhaps another schema; its files stay where they are."""
    rows: list[NewRow] = [
        EndedTableName(table.table_id),
        NewTable(table.table_id, table.table_uuid, target.schema_id, target.table_name, path, path_is_relative),
        NewSchemaVersion(table.table_id),
    ]
    step = TableStep(rows=rows, changes_catalog=True)
    step.add_change("created_table", target.quoted)
    step.add_change("altered_table", table.table_id)
    return step


def change_table(step: TableStep, live: LiveTable, base: TableMetadata, new: TableMetadata, *, adds_data: bool) -> None:
    """Add the changes of a table's columns, tags and notes to a step; its data is not included.

    Raises: BadRequest: DuckLake cannot store the new metadata
    """
    check_property(new.properties)
    _check_unencrypted(new.properties, base.properties)
    shown = get_current_schema(base)
    unseen, seen = list_unseen(live.columns, shown), select_seen(live.columns, shown)
    check_stays_readable(unseen, base.properties, new.properties)
    check_variants(shown, get_current_schema(new), new.properties)
    if adds_data:
        check_appendable(unseen)
        check_writable(seen)
    rows: list[NewRow] = []
    shape = _change_shape(live, base, new, widens=adds_data and has_narrow(seen))
    rows += shape
    rows += _change_properties(live, base, new)
    notes = new_shape_notes(live.table_id, base, new, live.client_order_id)
    if any(isinstance(row, EndedPartitioning) for row in shape) and not any(isinstance(note, NewShape) for note in notes):
        # For clients, the spec stays the default.
        notes.append(NewShape(live.table_id, new.current_schema_id, new.default_spec_id, live.client_order_id))
    if (new.format_version, new.last_column_id, new.last_partition_id, new.location) != (
        base.format_version,
        base.last_column_id,
        base.last_partition_id,
        base.location,
    ):
        notes.append(changed_note(live.table_id, new))
    if shape and any(not isinstance(row, EndedSorting) for row in shape):
        rows.append(NewSchemaVersion(live.table_id))
    if any(isinstance(row, NewColumn | EndedColumn) for row in shape):
        inlined = to_inlined_table(live.table_id, live.columns, shape)
        rows += [] if inlined is None else [inlined]
    if rows or notes:
        step.rows += [*rows, *notes]
        # DuckDB's transactions depend on columns, partitions and sort keys, and on no property or note.
        step.add_change("altered_table" if shape else NOTES_KIND, live.table_id)
        step.changes_catalog |= bool(rows)


def _check_unencrypted(properties: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Raise BadRequest for a key to encrypt the table's files with, which would be kept, and encrypt nothing."""
    key_id = properties.get(ENCRYPTION_KEY_ID)
    if key_id is not None and key_id != known.get(ENCRYPTION_KEY_ID):
        raise BadRequest(
            f"The property {ENCRYPTION_KEY_ID!r} asks for encrypted files, and this catalog's tables are not encrypted; leave it out."
        )


def changed_note(
    table_id: int, new: TableMetadata, sequence_base: int | None = None, numbered_until: int | None = None
) -> ChangedTableNote:
    """Return the new values of a table's `iceberg_table` row."""
    values = (new.location, new.format_version, new.last_column_id, new.last_partition_id)
    return ChangedTableNote(table_id, *values, sequence_base, numbered_until)


def _change_shape(live: LiveTable, base: TableMetadata, new: TableMetadata, *, widens: bool) -> list[NewRow]:
    rows: list[NewRow] = []
    before, after = get_current_schema(base), get_current_schema(new)
    if before != after or widens:
        rows += change_columns(live.table_id, live.columns, after, ColumnRules(before, widens, live.lake_format, new.last_column_id))
    if before != after:
        rows += change_comments(live.table_id, live.comments, after)
    if base.default_spec_id != new.default_spec_id or live.ends_buckets or _list_dropped(rows) & {*live.partition_columns}:
        rows.append(EndedPartitioning(live.table_id))
    if base.default_sort_order_id != new.default_sort_order_id:
        rows.append(EndedSorting(live.table_id))
    elif live.sort_keys and before != after:
        rows += _change_sorting(live, before, after)
    return rows


def _list_dropped(rows: Sequence[NewRow]) -> set[int]:
    """Return the columns that end; DuckDB cannot insert into a table that is partitioned by one of them, also if it is a placeholder."""
    return {row.column_id for row in rows if isinstance(row, EndedColumn)} - {row.column_id for row in rows if isinstance(row, NewColumn)}


def _change_sorting(live: LiveTable, before: Schema, after: Schema) -> Sequence[NewRow]:
    """Return the rows that rename columns in DuckDB's sort keys; an order by a dropped column ends."""
    old_names = {row.column_id: row.column_name for row in live.columns if row.end_snapshot is None and row.parent_column is None}
    names = {row.column_id: row.column_name for row in list_unseen(live.columns, before)}
    names |= {field.field_id: field.name for field in after.fields}
    renamed = {fold_name(name): names[key] for key, name in old_names.items() if key in names and names[key] != name}
    if not renamed and old_names.keys() <= names.keys():
        return []
    remaining = {fold_name(name) for name in old_names.values()} - {fold_name(name) for key, name in old_names.items() if key not in names}
    if any(not list_names(key) <= remaining for key in live.sort_keys):
        return [EndedSorting(live.table_id)]
    keys = [rename_columns(key, renamed) for key in live.sort_keys]
    if keys == live.sort_keys:
        return []
    return [RewordedSortKey(live.table_id, live.next_sort_id, index, key) for index, key in enumerate(keys)]


def _change_properties(live: LiveTable, base: TableMetadata, new: TableMetadata) -> Sequence[NewRow]:
    before, after = stored_properties(base.properties), stored_properties(new.properties)
    removals = before.keys() - after.keys()
    updates = {key: value for key, value in after.items() if before.get(key) != value}
    return change_tags(live.table_id, live.tags, removals, updates)


def stored_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that are stored as tags: all except the reserved one."""
    return {key: value for key, value in properties.items() if key != SNAPSHOT_ID_PROPERTY}


def new_shape_notes(table_id: int, base: TableMetadata | None, new: TableMetadata, client_order_id: int = 0) -> list[NewRow]:
    """Return the notes of new schemas, specs and orders, and of the current ids if anything changed.

    If the commit leaves the order alone, it may be DuckDB's: then the clients' own order, `client_order_id`, is noted again.
    """
    known_schemas = {item.schema_id for item in base.schemas} if base else set[int]()
    known_specs = {item.spec_id for item in base.partition_specs} if base else set[int]()
    known_orders = {item.order_id for item in base.sort_orders} if base else {0}
    notes: list[NewRow] = [
        *(NewSchemaNote(table_id, item.schema_id, format_schema(item)) for item in new.schemas if item.schema_id not in known_schemas),
        *(NewSpecNote(table_id, item.spec_id, format_spec(item)) for item in new.partition_specs if item.spec_id not in known_specs),
        *(NewSortOrderNote(table_id, i.order_id, format_order(i)) for i in new.sort_orders if i.order_id not in known_orders),
    ]
    if notes or base is None or _current_ids(base) != _current_ids(new):
        is_changed = base is None or base.default_sort_order_id != new.default_sort_order_id
        order_id = new.default_sort_order_id if is_changed else client_order_id
        notes.append(NewShape(table_id, new.current_schema_id, new.default_spec_id, order_id))
    return notes


def _current_ids(metadata: TableMetadata) -> tuple[int, int, int]:
    return metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id


POSTGRES_TYPES: Mapping[str, str] = {
    "boolean": "boolean",
    "int8": "smallint",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "uint8": "integer",
    "uint16": "integer",
    "uint32": "bigint",
    "float32": "real",
    "float64": "double precision",
    "time": "time",
    "timetz": "time with time zone",
    "interval": "interval",
    "uuid": "uuid",
    "varchar": "bytea",
    "json": "bytea",
    "blob": "bytea",
    "null": "integer",
}
"""The Postgres types in which DuckDB stores inlined values; it stores all other types as text."""

NEVER_INLINED = frozenset({"geometry", "variant", "time_ns"})
DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
NAME_MAX_BYTES = 63


def to_inlined_table(table_id: int, columns: Sequence[ColumnRow], rows: Sequence[NewRow]) -> NewInlinedTable | None:
    """Return the inlined table for the columns after these rows; None if DuckDB does not inline rows of such a table."""
    ended = {row.column_id for row in rows if isinstance(row, EndedColumn)}
    unchanged = [c for c in columns if c.end_snapshot is None and c.parent_column is None and c.column_id not in ended]
    new_columns = [row for row in rows if isinstance(row, NewColumn) and row.parent_column is None]
    columns_in_order: list[tuple[int, int, str, str]] = [
        (c.column_order, c.column_id, c.column_name, c.column_type.lower()) for c in (*unchanged, *new_columns)
    ]
    if any(kind in NEVER_INLINED or len(name.encode()) > NAME_MAX_BYTES for _, _, name, kind in columns_in_order):
        return None
    return NewInlinedTable(table_id, tuple((name, get_postgres_type(kind)) for _, _, name, kind in sorted(columns_in_order)))


def get_postgres_type(column_type: str) -> str:
    """Return the Postgres type in which DuckDB stores values of a DuckLake type."""
    decimal = DECIMAL.fullmatch(column_type)
    return f"numeric({decimal[1]},{decimal[2]})" if decimal else POSTGRES_TYPES.get(column_type, "varchar")


def to_lake_steps(head: LakeHead, ids: IdAllocator, tables: Sequence[Sequence[TableStep]]) -> list[LakeStep]:
    """Return the lake snapshots of a commit: the first steps of all tables make the first one, and so on.

    DuckDB keeps statistics by `next_file_id`, so every step raises it.
    """
    steps: list[LakeStep] = []
    for number in range(max((len(steps) for steps in tables), default=0)):
        parts = [found[number] for found in tables if number < len(found)]
        changes = tuple(change for part in parts for change in part.changes)
        rows = tuple(row for part in parts for row in part.rows)
        next_file_id = max(ids.next_file_id, head.next_file_id + 1) + number
        catalog = any(part.changes_catalog for part in parts)
        steps.append(LakeStep(changes, rows, catalog, ids.next_catalog_id, next_file_id))
    return steps


@dataclass(frozen=True, slots=True)
class PlannedView:
    """A view to write. `note` names the DuckLake view it belongs to, unless a new one is created."""

    uuid: UUID
    view: ViewMetadata
    note: ViewNote


def create_view(head: LakeHead, target: TableTarget, planned: PlannedView) -> LakeStep:
    """Return the step that creates a view."""
    rows = _new_rows(head.next_catalog_id, target, planned)
    created = Change("created_view", target.quoted)
    return LakeStep((created,), tuple(rows), True, head.next_catalog_id + 1, head.next_file_id)


def replace_view(head: LakeHead, live: LiveView, planned: PlannedView) -> LakeStep:
    """Return the step that replaces a DuckLake view by a new one, as DuckDB does."""
    target = TableTarget(live.schema_id, live.schema_name, live.schema_names, live.view_name)
    rows = [DroppedView(live.view_id), *_new_rows(head.next_catalog_id, target, planned)]
    dropped = Change("dropped_view", str(live.view_id))
    created = Change("created_view", target.quoted)
    return LakeStep((dropped, created), tuple(rows), True, head.next_catalog_id + 1, head.next_file_id)


def _new_rows(view_id: int, target: TableTarget, planned: PlannedView) -> Sequence[NewRow]:
    note = planned.note
    row = NewView(view_id, planned.uuid, target.schema_id, target.table_name, note.sql, note.column_aliases)
    comment = planned.view.properties.get(COMMENT)
    tags = [] if comment is None else [NewTag(view_id, COMMENT, comment)]
    return [row, *tags, replace(note, view_id=view_id)]


def rename_view(head: LakeHead, live: LiveView, target: TableTarget, sql: str) -> LakeStep:
    """Return the step that renames a view, which stays the same view for DuckDB."""
    row = NewView(live.view_id, live.view_uuid, target.schema_id, target.table_name, sql, live.column_aliases)
    created = Change("created_view", target.quoted)
    altered = Change("altered_view", str(live.view_id))
    return LakeStep((created, altered), (EndedView(live.view_id), row), True, head.next_catalog_id, head.next_file_id)


def drop_view(head: LakeHead, live: LiveView) -> LakeStep:
    """Return the step that drops a view."""
    dropped = Change("dropped_view", str(live.view_id))
    return LakeStep((dropped,), (DroppedView(live.view_id),), True, head.next_catalog_id, head.next_file_id)


def comment_view(head: LakeHead, live: LiveView, rows: Sequence[NewRow]) -> LakeStep:
    """Return the step that changes a view's comment."""
    altered = Change("altered_view", str(live.view_id))
    return LakeStep((altered,), tuple(rows), True, head.next_catalog_id, head.next_file_id)
