"""The generator's own picture of a lake: what every reader must show, at every lake snapshot."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tests.differential.generator.kinds import NARROW, SCALARS, Column, Kind, Listing, Scalar, Struct, Value, has_leaf, quote
from tests.differential.generator.kinds import Mapping as MapKind
from tests.differential.generator.literals import Rows, make_plain

DEFAULT_INLINED_ROWS = 10

Key = TypeVar("Key", "PartitionKey", "SortKey")


@dataclass(frozen=True, slots=True)
class Row:
    """One version of one row; an update makes a new version, so an unchanged row is the same row."""

    version: int
    values: Mapping[int, Value]


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """One key of a table's partitioning: `identity`, `year`, `month`, `day`, `hour` or `bucket(N)`; clients have `truncate(N)` too."""

    column_id: int
    transform: str


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of a table's sort order."""

    column_id: int
    descending: bool
    nulls_first: bool


# The names of a table's columns, by their ids, and how often clients have moved one.
Shape = tuple[Mapping[int, str], int]
Retention = tuple[int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Ref:
    """A tag or branch, the rows of what it names, and what it retains: its own age and that of snapshots in ms, how many of them.

    `shape` is that of the table when what it names was made.
    """

    is_branch: bool
    rows: tuple[Row, ...]
    retention: Retention = (None, None, None)
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One table at one moment; `table_id` is the model's own and stays through renames."""

    table_id: int
    namespace: str
    name: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = ()
    partitioning: tuple[PartitionKey, ...] = ()
    comment: str | None = None
    inlined_rows: int = DEFAULT_INLINED_ROWS
    # The columns when the limit became 0: DuckDB 1.5.5 makes no table for inlined rows of others, but writes them, once the limit is up.
    inlined_columns: tuple[Column, ...] | None = None
    next_column_id: int = 1
    sorting: tuple[SortKey, ...] = ()
    # Columns that may not become NOT NULL: a NULL was seen.
    seen_null: frozenset[int] = frozenset()
    has_had_rows: bool = False
    # Columns that some added file lacks: DuckDB 1.5.5 takes them for NOT NULL when it deletes by that.
    lacking: frozenset[int] = frozenset()
    # Columns that came after rows: DuckDB 1.5.5 cannot flush such rows once the table is sorted by the column.
    younger: frozenset[int] = frozenset()
    # Columns that had another one before them when there were rows: DuckDB 1.5.5 looks for them in its place in older files.
    shifted: frozenset[int] = frozenset()
    # NOT NULL columns, of types that DuckDB checks, of which an added file holds NULLs.
    strayed: frozenset[int] = frozenset()
    # Columns whose type changed after rows.
    retyped: frozenset[int] = frozenset()
    # What the schema of the current snapshot is where the table has another one by now: PyIceberg 0.12 upserts by that schema.
    older_shape: Shape | None = None
    times_moved: int = 0
    # What the names of added files mean, by path in lower case.
    file_names: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    has_added_files: bool = False
    # An Iceberg client changed rows, so columns of narrow types may be wider in DuckDB by now.
    may_be_wide: bool = False
    has_vectors: bool = False
    # What Iceberg clients said; their layouts count while DuckDB has none.
    told_partitioning: tuple[PartitionKey, ...] = ()
    told_sorting: tuple[SortKey, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    refs: Mapping[str, Ref] = field(default_factory=dict)
    has_had_refs: bool = False
    identifier: frozenset[int] = frozenset()
    # The statistics file that was told last, and how often clients removed older snapshots.
    statistics: str | None = None
    times_hidden: int = 0

    @property
    def ident(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def sql_name(self) -> str:
        return f"{quote(self.namespace)}.{quote(self.name)}"

    def column(self, column_id: int) -> Column:
        return next(column for column in self.columns if column.column_id == column_id)

    @property
    def fixed_columns(self) -> frozenset[int]:
        """Columns that DuckDB refuses to drop: those that it partitions or sorts by."""
        return frozenset(key.column_id for key in (*self.partitioning, *self.sorting))

    @property
    def shown_partitioning(self) -> tuple[PartitionKey, ...]:
        """The partitioning that new files of Iceberg clients get; a client's one goes with its columns."""
        return self.partitioning or self._whole(self.told_partitioning)

    @property
    def shown_sorting(self) -> tuple[SortKey, ...]:
        """The sort order that Iceberg clients see."""
        return self.sorting or self._whole(self.told_sorting)

    @property
    def shown_identifier(self) -> frozenset[int]:
        """The columns that identify a row to Iceberg clients, as long as they are there."""
        return self.identifier & {column.column_id for column in self.columns}

    @property
    def unsure_columns(self) -> frozenset[int]:
        """NOT NULL columns that may be published as optional: a NULL was in them, or no statistics prove that there was none."""
        required = [column for column in self.columns if column.required]
        # DuckLake counts no NULLs of timetz.
        uncounted = [column for column in required if not isinstance(column.kind, Scalar) or column.kind.name == "timetz"]
        return frozenset(column.column_id for column in required if column.column_id in self.seen_null or column in uncounted)

    def holds_null(self, column_id: int) -> bool:
        """Return True if a row has a NULL in the column."""
        initial = self.column(column_id).initial
        return any(row.values.get(column_id, initial) is None for row in self.rows)

    @property
    def has_uneven_sorting(self) -> bool:
        """Return True if files may lack a column that the table is sorted by, or have it elsewhere or of another type.

        DuckDB rewrites no files then.
        """
        widened = {column.column_id for column in self.columns if self.may_be_wide and has_leaf(column.kind, NARROW)}
        return any(key.column_id in self.younger | self.shifted | self.retyped | widened for key in self.sorting)

    @property
    def has_stray_nulls(self) -> bool:
        """Return True if a NOT NULL column that DuckDB checks holds a NULL: DuckDB then updates no such row."""
        checked = (column for column in self.columns if column.required and isinstance(column.kind, Scalar))
        return any(self.holds_null(column.column_id) for column in checked)

    def _whole(self, keys: tuple[Key, ...]) -> tuple[Key, ...]:
        columns = {column.column_id for column in self.columns}
        return keys if all(key.column_id in columns for key in keys) else ()

    @property
    def shape(self) -> Shape:
        """The names of the columns, and how often one was moved."""
        return {column.column_id: column.name for column in self.columns}, self.times_moved

    def changed_from(self, older: Shape | None) -> "Table":
        """The same table, whose current snapshot is of that shape; None: it has none."""
        return replace(self, older_shape=None if older == self.shape else older)

    @property
    def snapshot_shape(self) -> Shape | None:
        """The shape of the current snapshot, None when there is none."""
        return (self.older_shape or self.shape) if self.has_had_rows else None

    def plain_rows(self, columns: tuple[Column, ...] | None = None) -> Rows:
        """The rows as a reader should show them, under another schema of this table if one is given."""
        shown = self.columns if columns is None else columns
        rows = (tuple(make_plain(column.kind, row.values.get(column.column_id, column.initial)) for column in shown) for row in self.rows)
        return Counter(rows)

    def with_column(self, column: Column) -> "Table":
        """The same table with the column of that id replaced."""
        columns = tuple(column if old.column_id == column.column_id else old for old in self.columns)
        return replace(self, columns=columns)


@dataclass(frozen=True, slots=True)
class Lake:
    """Every table at one moment, and the counters that name new ones; `column_types` is what new columns may be.

    With `has_clients` it keeps to what PyIceberg 0.12 can write: no defaults, for which tables need format version 3, and no
    `infinity`.
    """

    tables: Mapping[int, Table] = field(default_factory=dict)
    column_types: tuple[str, ...] = SCALARS
    has_clients: bool = False
    # Drawn for an Iceberg client, which writes no NULL into a NOT NULL column.
    by_client: bool = False
    namespaces: tuple[str, ...] = ("main",)
    namespace_properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    views: frozenset[tuple[str, str]] = frozenset()
    next_table_id: int = 1
    next_version: int = 1

    def with_table(self, table: Table) -> "Lake":
        return replace(self, tables={**self.tables, table.table_id: table})

    def without_table(self, table_id: int) -> "Lake":
        return replace(self, tables={key: table for key, table in self.tables.items() if key != table_id})

    def find_table(self, ident: tuple[str, str]) -> Table | None:
        return next((table for table in self.tables.values() if table.ident == ident), None)

    def add_rows(self, table: Table, rows: Iterable[Mapping[int, Value]]) -> "Lake":
        """New rows at the end of a table."""
        version, added, seen_null = self.next_version, list(table.rows), set(table.seen_null)
        for values in rows:
            added.append(Row(version, values))
            seen_null.update(column.column_id for column in table.columns if values.get(column.column_id) is None)
            version += 1
        older = table.older_shape if version == self.next_version else None
        grown = replace(table, rows=tuple(added), seen_null=frozenset(seen_null), has_had_rows=True, older_shape=older)
        return replace(self.with_table(grown), next_version=version)


@dataclass(frozen=True, slots=True)
class Moment:
    """The lake as one lake snapshot left it, and the tables whose rows the step was about.

    `inserted` are those of them that it did nothing to but INSERT. A commit may make more lake snapshots than one; those
    but the last are not `is_known`: clients delete whole files first. A client wrote beside main to the tables `beside`, and let
    main of the tables `moved` go to another snapshot.
    """

    lake_snapshot_id: int
    lake: Lake
    touched: frozenset[int] = frozenset()
    inserted: frozenset[int] = frozenset()
    is_maintenance: bool = False
    is_known: bool = True
    beside: frozenset[int] = frozenset()
    moved: frozenset[int] = frozenset()


def changed_rows(before: Table | None, after: Table | None) -> bool:
    """True when the rows differ, by version: a row updated to the same values has changed."""
    return _versions(before) != _versions(after)


def only_appended(before: Table | None, after: Table) -> bool:
    """True when rows were added and none was removed or rewritten."""
    old, new = _versions(before), _versions(after)
    return old < new


def appended_rows(before: Table | None, after: Table) -> Table:
    """The table holding nothing but the rows that `after` has and `before` has not."""
    old = _versions(before)
    return replace(after, rows=tuple(row for row in after.rows if row.version not in old))


def _versions(table: Table | None) -> set[int]:
    return set() if table is None else {row.version for row in table.rows}


def count_ids(kind: Kind) -> int:
    """How many ids a column of this type takes, its own included."""
    match kind:
        case Scalar():
            return 1
        case Struct(fields):
            return 1 + sum(count_ids(part.kind) for part in fields)
        case Listing(element):
            return 1 + count_ids(element)
        case MapKind(_, value):
            return 2 + count_ids(value)
