"""A table's state as Iceberg table metadata. No I/O.

`catalog.publish` calls `to_metadata` while the transaction that reads the table is open: that of a load or of `duckicelake check`, or
that of a commit, under the lake's lock. `with_version` follows when the state has its metadata version, for a commit after COMMIT.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.table_changes import get_previous_versions_max
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.rows import JsonNote, MetadataLogRow, TableState, TagRow
from duckicelake.translate.client_schemas import parse_schema_note, parse_spec_note, select_visible_schemas, select_visible_specs
from duckicelake.translate.client_snapshots import to_visible_snapshots
from duckicelake.translate.locations import metadata_uri
from duckicelake.translate.name_mapping import PROPERTY, NameMapping
from duckicelake.translate.partitions import Partitioning, to_spec
from duckicelake.translate.schemas import Schemas
from duckicelake.translate.sort_orders import SortOrders
from duckicelake.translate.summaries import SNAPSHOT_ID_PROPERTY

FIRST_PARTITION_FIELD_ID = 1000
VECTORIZED = "read.parquet.vectorization.enabled"


def to_properties(tags: Sequence[TagRow], mapping: NameMapping, snapshot_id: int | None, *, breaks_vectors: bool = False) -> dict[str, str]:
    """Return a table's properties: DuckLake's tags, `gc.enabled=false`, the name mapping, and the reserved snapshot id.

    `breaks_vectors`: Spark's vectorised reader (Iceberg 1.11) would fail or return wrong values; its other reader is correct.
    """
    properties = {tag.key: tag.value for tag in tags if tag.value is not None}
    names = mapping.format()
    if names is not None:
        properties[PROPERTY] = names
    properties.setdefault("gc.enabled", "false")
    if breaks_vectors:
        properties.setdefault(VECTORIZED, "false")
    properties.pop(SNAPSHOT_ID_PROPERTY, None)
    if snapshot_id is not None:
        properties[SNAPSHOT_ID_PROPERTY] = str(snapshot_id)
    return properties


@dataclass(frozen=True, slots=True)
class TableShape:
    """The schemas, specs, sort orders and name mapping of a table."""

    schemas: Schemas
    partitioning: Partitioning
    sort_orders: SortOrders
    mapping: NameMapping

    def new_notes(self) -> tuple[Sequence[JsonNote], Sequence[JsonNote], Sequence[JsonNote]]:
        """Return the schemas, specs and sort orders that have no note yet."""
        return self.schemas.new_notes, self.partitioning.new_notes, self.sort_orders.new_notes


def to_metadata(
    state: TableState, location: str, shape: TableShape, snapshots: Sequence[Snapshot], earlier_log: Sequence[tuple[int, int]] = ()
) -> TableMetadata:
    """Return the metadata of a state without its version: no update time, and no log of older versions.

    `earlier_log` is the log of the first snapshots, if these are known to be unchanged.
    """
    schemas, partitioning = shape.schemas, shape.partitioning
    newest = snapshots[-1] if snapshots else None
    visible = to_visible_snapshots(snapshots, state.notes.refs, earlier_log)
    # Main's snapshots are in the order of their sequence numbers.
    others = () if visible.snapshots is snapshots else visible.snapshots
    table_note = state.notes.table
    # Field ids of specs that lost a column stay taken.
    spec_field_ids = (field_id for note in state.notes.specs for field_id in parse_spec_note(note).field_ids)
    field_ids = {field_id for spec in partitioning.specs for field_id in spec.field_ids}.union(spec_field_ids)
    return TableMetadata(
        format_version=schemas.format_version,
        table_uuid=str(state.table.table_uuid),
        location=location,
        last_sequence_number=max((snapshot.sequence_number for snapshot in (*others, *snapshots[-1:])), default=0),
        last_updated_ms=0,
        last_column_id=schemas.last_column_id,
        schemas=select_visible_schemas(
            schemas.all(_parse_named_schemas(state, others)), state.notes, schemas.current.schema_id, chain(snapshots, others)
        ),
        current_schema_id=schemas.current.schema_id,
        partition_specs=select_visible_specs(
            (to_spec(spec, schemas.current) for spec in partitioning.specs), state.notes, partitioning.needed
        ),
        default_spec_id=partitioning.default_spec_id,
        last_partition_id=max([FIRST_PARTITION_FIELD_ID - 1, table_note.last_partition_id if table_note else 0, *field_ids]),
        sort_orders=shape.sort_orders.orders,
        default_sort_order_id=shape.sort_orders.default.order_id,
        properties=to_properties(state.tags, shape.mapping, newest.snapshot_id if newest else None, breaks_vectors=schemas.breaks_vectors),
        current_snapshot_id=visible.current_snapshot_id,
        snapshots=visible.snapshots,
        snapshot_log=visible.log,
        refs=visible.refs,
        next_row_id=max(state.next_row_id, next_row_id(newest)),
    )


def _parse_named_schemas(state: TableState, others: Sequence[Snapshot]) -> Mapping[int, Schema]:
    """Return the noted schemas that snapshots of tags and branches use: the lake's rows of these columns may have expired."""
    ids = {snapshot.schema_id for snapshot in others}
    return {note.id: parse_schema_note(note) for note in state.notes.schemas if note.id in ids} if ids else {}


def next_row_id(current: Snapshot | None) -> int:
    """Return the first row id that no snapshot has assigned (v3)."""
    return 0 if current is None else (current.first_row_id or 0) + (current.added_rows or 0)


def with_version(metadata: TableMetadata, log: Sequence[MetadataLogRow]) -> TableMetadata:
    """Return the metadata under the newest version of its log, with the older versions listed."""
    most, own = get_previous_versions_max(metadata.properties), metadata.location
    older = [(row.updated_ms, metadata_uri(row.earlier_location or own, row.metadata_version)) for row in log[:-1][-most:]]
    return replace(metadata, last_updated_ms=log[-1].updated_ms, metadata_log=(*metadata.metadata_log, *older)[-most:])


def only_refs(metadata: TableMetadata) -> TableMetadata:
    """Return the metadata with only the snapshots that a ref names, for `snapshots=refs`."""
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    return replace(metadata, snapshots=tuple(s for s in metadata.snapshots if s.snapshot_id in named))
