"""Partition specs that come with rows under them on a branch: manifests are copied before the lock, under the table's own numbers."""

from collections.abc import Mapping, Sequence

from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.requests.application import apply_updates
from duckicelake.iceberg.requests.shapes import find_spec_ids, name_added_specs
from duckicelake.iceberg.requests.updates import AddSchema, AddSpec, SetCurrentSchema, SetDefaultSpec, TableUpdate, UpgradeFormatVersion
from duckicelake.lake.rows import TableNotes
from duckicelake.translate.shape.removed import with_removed

SHAPES = AddSchema | SetCurrentSchema | AddSpec | SetDefaultSpec | UpgradeFormatVersion


def foresee_specs(metadata: TableMetadata, notes: TableNotes, updates: Sequence[TableUpdate]) -> Mapping[int, PartitionSpec]:
    """Return the specs that the table is going to have of a request, by their client's ids, where it gives others.

    Under the lock the table is still as it was read, or all is done again.
    Raises: BadRequest: a spec contradicts the table
    """
    shown = {spec.spec_id for spec in metadata.partition_specs}
    if not any(isinstance(update, AddSpec) and update.spec.spec_id not in shown for update in updates):
        return {}
    told = name_added_specs([update for update in updates if isinstance(update, SHAPES)], shown)
    new = apply_updates(with_removed(metadata, notes), told, 0)
    specs = {spec.spec_id: spec for spec in new.partition_specs}
    return {theirs: specs[ours] for theirs, ours in find_spec_ids(told, shown, new).items()}
