"""The snapshots of a table, its refs (branches and tags) and its statistics files, with their JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps
from typing import Self

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import (
    as_list,
    as_object,
    find_int,
    find_long,
    find_text,
    find_text_map,
    get_long,
    get_text,
    is_text,
    list_ints,
    list_objects,
)

MAIN = "main"
REF_TYPES = ("branch", "tag")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of a table. `summary` contains the operation too.

    `manifests` names the manifests of an old v1 snapshot without manifest list, whose `manifest_list` is "".
    """

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    timestamp_ms: int
    manifest_list: str
    summary: Mapping[str, str] = field(hash=False)
    schema_id: int | None
    first_row_id: int | None = None
    added_rows: int | None = None
    key_id: str | None = None
    manifests: tuple[str, ...] = ()


class Snapshots(tuple[Snapshot, ...]):
    """Snapshots with the highest of their ids, so that a look-up of a newer id needs no search."""

    highest_id: int

    def __new__(cls, snapshots: Iterable[Snapshot], highest_id: int | None = None) -> Self:
        """Create the tuple. A given `highest_id` may exceed the id of every snapshot."""
        made = super().__new__(cls, snapshots)
        made.highest_id = max((item.snapshot_id for item in made), default=-1) if highest_id is None else highest_id
        return made

    def with_added(self, added: Sequence[Snapshot]) -> "Snapshots":
        """Return this history with snapshots added to its end."""
        return Snapshots(self + tuple(added), max([self.highest_id, *(item.snapshot_id for item in added)])) if added else self


def may_contain(snapshots: Sequence[Snapshot], snapshot_id: int) -> bool:
    """True if a snapshot of that id may be among the snapshots."""
    return not isinstance(snapshots, Snapshots) or snapshot_id <= snapshots.highest_id


def select_known_ids(snapshots: Sequence[Snapshot], ids: Iterable[int]) -> set[int]:
    """Return the given ids that are among the snapshots, searching from the newest, where most of them are."""
    left = {snapshot_id for snapshot_id in ids if may_contain(snapshots, snapshot_id)}
    found = set[int]()
    for snapshot in reversed(snapshots):
        if len(found) == len(left):
            break
        if snapshot.snapshot_id in left:
            found.add(snapshot.snapshot_id)
    return found


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """A branch or tag: its snapshot, and how long it and the snapshots behind it are kept."""

    snapshot_id: int
    type: str
    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None


@dataclass(frozen=True, slots=True)
class BlobMetadata:
    """The metadata of one blob of a statistics file."""

    type: str
    snapshot_id: int
    sequence_number: int
    fields: tuple[int, ...]
    properties: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)


@dataclass(frozen=True, slots=True)
class StatisticsFile:
    """A Puffin file with statistics of one snapshot."""

    snapshot_id: int
    statistics_path: str
    file_size_in_bytes: int
    file_footer_size_in_bytes: int
    blob_metadata: tuple[BlobMetadata, ...]
    key_metadata: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionStatisticsFile:
    """A file with statistics of each partition of one snapshot."""

    snapshot_id: int
    statistics_path: str
    file_size_in_bytes: int


def format_snapshot(snapshot: Snapshot) -> dict[str, object]:
    """Return a snapshot as JSON. Sequence number 0 (v1) is left out, because every reader assumes it."""
    node: dict[str, object] = {"snapshot-id": snapshot.snapshot_id}
    optional: dict[str, object | None] = {
        "parent-snapshot-id": snapshot.parent_snapshot_id,
        "sequence-number": snapshot.sequence_number or None,
        "timestamp-ms": snapshot.timestamp_ms,
        "manifest-list": snapshot.manifest_list or None,
        "manifests": list(snapshot.manifests) or None,
        "summary": _put_operation_first(snapshot.summary) or None,
        "schema-id": snapshot.schema_id,
        "first-row-id": snapshot.first_row_id,
        "added-rows": snapshot.added_rows,
        "key-id": snapshot.key_id,
    }
    return node | {key: value for key, value in optional.items() if value is not None}


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return a snapshot as compact UTF-8 JSON, for `metadata.encode_metadata`."""
    return dumps(format_snapshot(snapshot), ensure_ascii=False, separators=(",", ":")).encode()


def parse_snapshot(value: object) -> Snapshot:
    """Return the snapshot of a JSON value.

    Raises: BadRequest — malformed, or a negative id
    """
    node = as_object(value, "snapshot")
    snapshot_id = get_long(node, "snapshot-id", "snapshot")
    if snapshot_id < 0:
        raise BadRequest(f"Cannot read snapshot: its id {snapshot_id} is negative; send a positive one")
    what = f"snapshot {snapshot_id}"
    manifests = _parse_manifests(node, what)
    manifest_list = "" if manifests and "manifest-list" not in node else get_text(node, "manifest-list", what)
    parent_snapshot_id = find_long(node, "parent-snapshot-id", what)
    return Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=None if parent_snapshot_id == -1 else parent_snapshot_id,
        sequence_number=find_long(node, "sequence-number", what) or 0,
        timestamp_ms=get_long(node, "timestamp-ms", what),
        manifest_list=manifest_list,
        summary=find_text_map(node, "summary", what) or {},
        schema_id=find_int(node, "schema-id", what),
        first_row_id=_find_count(node, "first-row-id", what),
        added_rows=_find_count(node, "added-rows", what),
        key_id=find_text(node, "key-id", what),
        manifests=() if manifest_list else manifests,
    )


def format_ref(ref: SnapshotRef) -> dict[str, object]:
    """Return a ref as JSON."""
    node: dict[str, object] = {"snapshot-id": ref.snapshot_id, "type": ref.type}
    optional = {
        "min-snapshots-to-keep": ref.min_snapshots_to_keep,
        "max-snapshot-age-ms": ref.max_snapshot_age_ms,
        "max-ref-age-ms": ref.max_ref_age_ms,
    }
    return node | {key: value for key, value in optional.items() if value is not None}


def parse_ref(value: object) -> SnapshotRef:
    """Return the ref of a JSON value.

    Raises: BadRequest — malformed, neither branch nor tag, a retention that is not positive or not a tag's
    """
    node = as_object(value, "snapshot ref")
    ref = SnapshotRef(
        snapshot_id=get_long(node, "snapshot-id", "snapshot ref"),
        type=get_text(node, "type", "snapshot ref").lower(),
        max_ref_age_ms=find_long(node, "max-ref-age-ms", "snapshot ref"),
        max_snapshot_age_ms=find_long(node, "max-snapshot-age-ms", "snapshot ref"),
        min_snapshots_to_keep=find_int(node, "min-snapshots-to-keep", "snapshot ref"),
    )
    _check_ref(ref)
    return ref


def format_statistics(file: StatisticsFile) -> dict[str, object]:
    """Return a statistics file as JSON."""
    node: dict[str, object] = {
        "snapshot-id": file.snapshot_id,
        "statistics-path": file.statistics_path,
        "file-size-in-bytes": file.file_size_in_bytes,
        "file-footer-size-in-bytes": file.file_footer_size_in_bytes,
        "blob-metadata": [_format_blob(blob) for blob in file.blob_metadata],
    }
    return node if file.key_metadata is None else node | {"key-metadata": file.key_metadata}


def parse_statistics(value: object) -> StatisticsFile:
    """Return the statistics file of a JSON value. Raises BadRequest when malformed."""
    what = "statistics file"
    node = as_object(value, what)
    return StatisticsFile(
        snapshot_id=get_long(node, "snapshot-id", what),
        statistics_path=get_text(node, "statistics-path", what),
        file_size_in_bytes=get_long(node, "file-size-in-bytes", what),
        file_footer_size_in_bytes=get_long(node, "file-footer-size-in-bytes", what),
        blob_metadata=tuple(_parse_blob(blob) for blob in list_objects(node, "blob-metadata", what)),
        key_metadata=find_text(node, "key-metadata", what),
    )


def format_partition_statistics(file: PartitionStatisticsFile) -> dict[str, object]:
    """Return a partition statistics file as JSON."""
    return {
        "snapshot-id": file.snapshot_id,
        "statistics-path": file.statistics_path,
        "file-size-in-bytes": file.file_size_in_bytes,
    }


def parse_partition_statistics(value: object) -> PartitionStatisticsFile:
    """Return the partition statistics file of a JSON value. Raises BadRequest when malformed."""
    what = "partition statistics file"
    node = as_object(value, what)
    return PartitionStatisticsFile(
        snapshot_id=get_long(node, "snapshot-id", what),
        statistics_path=get_text(node, "statistics-path", what),
        file_size_in_bytes=get_long(node, "file-size-in-bytes", what),
    )


def _put_operation_first(summary: Mapping[str, str]) -> dict[str, str]:
    first = {"operation": summary["operation"]} if "operation" in summary else {}
    return first | dict(summary)


def _find_count(node: Mapping[str, object], key: str, what: str) -> int | None:
    value = find_long(node, key, what)
    if value is not None and value < 0:
        raise BadRequest(f"Cannot read {what}: {key!r} is negative; send 0 or more")
    return value


def _parse_manifests(node: Mapping[str, object], what: str) -> tuple[str, ...]:
    paths = as_list(node.get("manifests") or [], f"manifests of {what}")
    if not all(is_text(path) for path in paths):
        raise BadRequest(f"Cannot read {what}: a manifest's location is no string; send strings")
    return tuple(str(path) for path in paths)


def _check_ref(ref: SnapshotRef) -> None:
    if ref.type not in REF_TYPES:
        raise BadRequest(f"Cannot read snapshot ref: type {ref.type!r} is unknown; send branch or tag")
    if ref.type == "tag" and (ref.min_snapshots_to_keep is not None or ref.max_snapshot_age_ms is not None):
        raise BadRequest("Cannot read snapshot ref: a tag keeps one snapshot; send only max-ref-age-ms with it")
    ages = (ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep)
    if any(age is not None and age <= 0 for age in ages):
        raise BadRequest("Cannot read snapshot ref: a retention is not positive; send a positive number or leave it out")


def _format_blob(blob: BlobMetadata) -> dict[str, object]:
    node: dict[str, object] = {
        "type": blob.type,
        "snapshot-id": blob.snapshot_id,
        "sequence-number": blob.sequence_number,
        "fields": list(blob.fields),
    }
    return node | ({"properties": dict(blob.properties)} if blob.properties else {})


def _parse_blob(node: Mapping[str, object]) -> BlobMetadata:
    what = "blob metadata"
    return BlobMetadata(
        type=get_text(node, "type", what),
        snapshot_id=get_long(node, "snapshot-id", what),
        sequence_number=get_long(node, "sequence-number", what),
        fields=list_ints(node, "fields", what),
        properties=find_text_map(node, "properties", what) or {},
    )
