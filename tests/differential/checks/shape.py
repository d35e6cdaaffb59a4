"""A table's schema, partition spec, sort order and ids are the model's."""

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.sorting import NullOrder, SortDirection

from tests.differential.checks.manifests import list_snapshots
from tests.differential.clients.layouts import format_transform
from tests.differential.generator.kinds import Scalar, format_iceberg_type
from tests.differential.generator.model import Table
from tests.differential.replay import Past

_BUCKETED_ALIKE = {"int8", "int16", "int32", "int64", "varchar", "blob", "date", "time", "timestamp", "timestamptz"}


def check_shape(past: Past, table: Table, published: IcebergTable) -> None:
    """All of it."""
    check_schema(table, published)
    check_column_ids(past, table, published)
    check_sort_order(table, published)
    check_spec(table, published)
    check_statistics(past, table, published)
    shown = {name: published.properties.get(name) for name in table.properties}
    assert shown == table.properties, f"{table.ident} has the properties {shown}, expected {table.properties}"
    assert "test.refused" not in published.properties


def check_schema(table: Table, published: IcebergTable) -> None:
    """Names, types, comments, NOT NULL, and which columns identify a row are the model's; their order is a client's affair."""
    shown = [(field.name, _without_ids(str(field.field_type)), field.doc) for field in published.schema().fields]
    expected = [(column.name, format_iceberg_type(column.kind), column.comment) for column in table.columns]
    by_name = sorted(expected, key=lambda item: item[0])
    assert sorted(shown, key=lambda item: item[0]) == by_name, f"{table.ident} has columns {shown}, expected {expected}"
    optional = check_required(table, published)
    identifier = {table.column(column_id).name for column_id in table.shown_identifier} - optional
    assert published.schema().identifier_field_names() == identifier, f"{table.ident} has not the identifier {identifier}"


def check_required(table: Table, published: IcebergTable) -> set[str]:
    """Return the names of the optional columns: all that may hold NULL, those that do, and no other but where nothing proves it."""
    optional = {field.name for field in published.schema().fields if not field.required}
    must_be = {column.name for column in table.columns if not column.required or table.holds_null(column.column_id)}
    may_be = must_be | {table.column(column_id).name for column_id in table.unsure_columns}
    assert must_be <= optional <= may_be, f"{table.ident} has the optional columns {optional}, not {must_be} or more of {may_be}"
    return optional


def check_statistics(past: Past, table: Table, published: IcebergTable) -> None:
    """The statistics that were told last are shown as long as their snapshot is; none where none were told, or all taken away."""
    shown = {found.statistics_path.rsplit("/", 1)[1] for found in published.metadata.statistics}
    if table.statistics is None:
        assert not shown, f"{table.ident} shows the statistics {shown}"
    may_be_gone = past.has_expired or table.times_hidden > 0
    assert may_be_gone or table.statistics in {*shown, None}, f"{table.ident} shows the statistics {shown}, not {table.statistics}"


def _without_ids(type_name: str) -> str:
    """PyIceberg's `struct<4: a: optional int>` as `struct<a: int>`."""
    words = type_name.replace("optional ", "").replace("required ", "")
    parts = words.replace("struct<", "struct<\0").replace(", ", ", \0").split("\0")
    return "".join(part.split(": ", 1)[1] if part.split(": ", 1)[0].isdigit() else part for part in parts)


def check_column_ids(past: Past, table: Table, published: IcebergTable) -> None:
    """A column keeps its Iceberg field id through renames and promotions, no id is ever used twice, and no required column holds NULL."""
    schemas = published.schemas()
    given: dict[int, int] = {}
    known = set(past.list_known(snapshot.snapshot_id for snapshot in list_snapshots(published)))
    known -= past.list_beside(table.table_id)
    for snapshot in list_snapshots(published):
        if snapshot.snapshot_id not in known:
            continue
        then = past.table_at(table.table_id, snapshot.snapshot_id)
        assert snapshot.schema_id is not None
        fields = {field.name: field.field_id for field in schemas[snapshot.schema_id].fields}
        assert fields.keys() == {column.name for column in then.columns}
        required = {field.name for field in schemas[snapshot.schema_id].fields if field.required}
        stray = [column.name for column in then.columns if column.name in required and then.holds_null(column.column_id)]
        assert not stray, f"{table.ident} has NULLs in the required columns {stray} of snapshot {snapshot.snapshot_id}"
        for column in then.columns:
            # clients may have moved it
            assert given.setdefault(column.column_id, fields[column.name]) == fields[column.name]
    assert len(set(given.values())) == len(given)


def check_sort_order(table: Table, published: IcebergTable) -> None:
    """The default sort order is the table's."""
    ids = _field_ids(table, published)
    directions = {True: SortDirection.DESC, False: SortDirection.ASC}
    nulls = {True: NullOrder.NULLS_FIRST, False: NullOrder.NULLS_LAST}
    expected = [(ids[key.column_id], "identity", directions[key.descending], nulls[key.nulls_first]) for key in table.shown_sorting]
    shown = [(field.source_id, str(field.transform), field.direction, field.null_order) for field in published.sort_order().fields]
    assert shown == expected, f"{table.ident} is sorted by {shown}, expected {expected}"


def check_spec(table: Table, published: IcebergTable) -> None:
    """The default spec has every key that Iceberg can say, and no other; buckets of a column of another type once may say nothing."""
    ids = _field_ids(table, published)
    shown = _list_keys(published.spec())
    if not table.partitioning:
        told = {(ids[key.column_id], format_transform(key.transform)) for key in table.shown_partitioning}
        assert shown == told, f"{table.ident} is partitioned by {sorted(shown)}, a client said {sorted(told)}"
        return
    expected = {(ids[column_id], transform) for column_id, transform in list_sayable_keys(table)}
    certain = {(source_id, transform) for source_id, transform in expected if not transform.startswith("bucket")}
    assert certain <= shown <= expected, f"{table.ident} is partitioned by {sorted(shown)}, expected {sorted(expected)}"


def _list_keys(spec: PartitionSpec) -> set[tuple[int, str]]:
    return {(field.source_id, str(field.transform)) for field in spec.fields}


def list_sayable_keys(table: Table) -> set[tuple[int, str]]:
    """DuckLake's keys as Iceberg's: its buckets are Iceberg's for some types, and its months need their years.

    The calendar parts of a timestamptz depend on the writer's time zone, so they say nothing.
    """
    keys = {(key.column_id, key.transform) for key in table.partitioning}
    said: set[tuple[int, str]] = set()
    for column_id, transform in keys:
        kind = table.column(column_id).kind
        assert isinstance(kind, Scalar)
        if transform == "identity":
            said.add((column_id, transform))
        elif transform.startswith("bucket(") and kind.name in _BUCKETED_ALIKE:
            said.add((column_id, transform.replace("(", "[").replace(")", "]")))
        elif transform == "year" and kind.name in ("date", "timestamp"):
            said.add((column_id, _finest_unit({unit for other, unit in keys if other == column_id})))
    return said


def _finest_unit(units: set[str]) -> str:
    finest = "year"
    for unit in ("month", "day", "hour"):
        if unit not in units:
            break
        finest = unit
    return finest


def _field_ids(table: Table, published: IcebergTable) -> dict[int, int]:
    fields = {field.name: field.field_id for field in published.schema().fields}
    return {column.column_id: fields[column.name] for column in table.columns}
