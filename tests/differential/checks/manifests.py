"""Metadata that agrees with itself: chain, log, refs, manifests' counts, statuses, sequence numbers, summaries' totals.

Everything is decoded by PyIceberg.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadataV1
from pyiceberg.table.snapshots import Snapshot

from duckicelake.pipeline.common.reports import RUN_ID
from tests.differential.checks.partitions import check_partitions

PATH_FIELD = 2147483546
"""The field of position delete files that names the data file. Source: Iceberg's specification, reserved field ids."""
FileKey = tuple[str, str]
Live = Mapping[FileKey, ManifestEntry]


@dataclass(frozen=True, slots=True)
class Changes:
    """What one snapshot did to a table's files."""

    added: Live
    deleted: Live
    live: Live


def list_snapshots(table: IcebergTable) -> list[Snapshot]:
    """The table's snapshots; each is listed once, in the order of sequence numbers."""
    shown = table.snapshots()
    numbers = [snapshot.sequence_number or 0 for snapshot in shown]
    assert numbers == sorted(numbers)
    assert len({snapshot.snapshot_id for snapshot in shown}) == len(shown)
    assert not [snapshot for snapshot in shown if snapshot.summary and "ducklake.alias-of" in snapshot.summary.additional_properties]
    return shown


def check_metadata(
    table: IcebergTable, *, has_expired: bool = False, has_refs: bool = False, has_moved: bool = False, is_forgetful: bool = False
) -> dict[FileKey, ManifestEntry]:
    """Check all snapshots against each other and their manifests; returns every file that is live in any of them.

    `has_expired`: what a snapshot without a parent carries on may come from snapshots that are gone. `has_refs`: a client made
    tags or branches, so that snapshots may be a tree. `has_moved`: main went elsewhere, where files count as newer than they were.
    `is_forgetful`: DuckDB has replaced deletion vectors, so older snapshots show no deletes, and their authors' words for them stay.
    """
    if has_refs:
        _check_tree(table)
    else:
        _check_chain(table)
    ever: dict[FileKey, ManifestEntry] = {}
    left: dict[int | None, Live] = {}
    shown = {found.snapshot_id: found.sequence_number or 0 for found in list_snapshots(table)}
    of_main = set(_list_ancestors(table))
    for snapshot in list_snapshots(table):
        before = left.get(snapshot.parent_snapshot_id)
        is_cut = before is None and has_expired
        if before is None:
            before = _read_carried(table, snapshot) if is_cut else {}
        elif snapshot.snapshot_id not in of_main:
            before = _find_kept(table, snapshot, before)
        changes = _read_changes(table, snapshot, before)
        numbers = range(shown.get(snapshot.parent_snapshot_id or 0, 0) + 1, snapshot.sequence_number or 0)
        _check_added(snapshot, changes.added, numbers if has_expired else range(0), set(shown.values()))
        if not has_moved:
            _check_carried(changes.live, before)
        _check_summary(snapshot, changes, is_cut=is_cut or is_forgetful)
        left[snapshot.snapshot_id] = changes.live
        # A branch's first snapshot also names files that it took out of an expired one, and that may be gone.
        ever.update(changes.live)
    return ever


def _read_carried(table: IcebergTable, snapshot: Snapshot) -> Live:
    """What must have been there before a snapshot: what it carries on, and what it deletes."""
    manifests = (manifest.fetch_manifest_entry(table.io, discard_deleted=False) for manifest in snapshot.manifests(table.io))
    carried: dict[FileKey, ManifestEntry] = {}
    for entry in chain.from_iterable(manifests):
        if (entry.status == ManifestEntryStatus.DELETED) == (entry.snapshot_id == snapshot.snapshot_id):
            assert entry.sequence_number is not None
            assert entry.sequence_number <= (snapshot.sequence_number or 0)
            carried[key_of(entry.data_file)] = entry
    return carried


def _find_kept(table: IcebergTable, snapshot: Snapshot, before: Live) -> Live:
    """What was there before a snapshot beside main: it keeps the files that its author listed, as many rows of them.

    A merge by DuckDB lets snapshots of main be published again, with other files of the same rows.
    """
    carried = _read_carried(table, snapshot)
    gone, kept = before.keys() - carried.keys(), carried.keys() - before.keys()
    rows = [sum(files[key].data_file.record_count for key in keys) for files, keys in ((before, gone), (carried, kept))]
    if not kept or rows[0] != rows[1]:
        return before
    return {**{key: entry for key, entry in before.items() if key not in gone}, **{key: carried[key] for key in kept}}


def _list_ancestors(table: IcebergTable) -> Iterator[int]:
    """The snapshots of main, the newest first."""
    parents = {found.snapshot_id: found.parent_snapshot_id for found in table.snapshots()}
    found = table.metadata.current_snapshot_id
    while found in parents:
        yield found
        found = parents[found]


def _check_chain(table: IcebergTable) -> None:
    metadata, snapshots = table.metadata, list_snapshots(table)
    parents = [snapshot.parent_snapshot_id for snapshot in snapshots]
    ids = [snapshot.snapshot_id for snapshot in snapshots]
    assert parents == [None, *ids[:-1]][: len(ids)], f"parents {parents} of {ids}"
    numbers = [snapshot.sequence_number or 0 for snapshot in snapshots]
    assert numbers == sorted(set(numbers)), f"sequence numbers {numbers}"
    assert not isinstance(metadata, TableMetadataV1)
    assert metadata.last_sequence_number == max(numbers, default=0)
    times = [snapshot.timestamp_ms for snapshot in snapshots]
    assert times == sorted(times), f"times {times}"
    assert metadata.current_snapshot_id == (ids[-1] if ids else None)
    refs = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
    assert refs == ({"main": ids[-1]} if ids else {})
    assert [entry.snapshot_id for entry in metadata.snapshot_log] == ids
    assert metadata.properties.get("ducklake.snapshot-id") == (str(ids[-1]) if ids else None)
    assert metadata.last_updated_ms >= max(times, default=0)


def _check_tree(table: IcebergTable) -> None:
    metadata, snapshots = table.metadata, list_snapshots(table)
    ids = {snapshot.snapshot_id for snapshot in snapshots}
    assert len(ids) == len(snapshots)
    parents = {snapshot.parent_snapshot_id for snapshot in snapshots} - {None}
    assert parents <= ids, f"parents {parents} of {ids}"
    numbers = [snapshot.sequence_number or 0 for snapshot in snapshots]
    assert numbers == sorted(set(numbers)), f"sequence numbers {numbers}"
    assert metadata.last_sequence_number >= max(numbers, default=0)
    assert metadata.current_snapshot_id in ids
    assert metadata.refs["main"].snapshot_id == metadata.current_snapshot_id
    assert metadata.snapshot_log[-1].snapshot_id == metadata.current_snapshot_id
    assert {ref.snapshot_id for ref in metadata.refs.values()} <= ids


def _read_changes(table: IcebergTable, snapshot: Snapshot, before: Live) -> Changes:
    """Check one snapshot's manifests against the files its parent left."""
    added: dict[FileKey, ManifestEntry] = {}
    deleted: dict[FileKey, ManifestEntry] = {}
    live: dict[FileKey, ManifestEntry] = {}
    for manifest in snapshot.manifests(table.io):
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        _check_manifest(table, manifest, entries)
        for entry in entries:
            key = key_of(entry.data_file)
            if entry.status == ManifestEntryStatus.DELETED:
                if entry.snapshot_id == snapshot.snapshot_id:
                    assert key in before, f"{key} is deleted but was not there"
                    deleted[key] = entry
                continue
            assert key not in live, f"{key} is listed twice"
            live[key] = entry
            if entry.snapshot_id == snapshot.snapshot_id:
                assert entry.status == ManifestEntryStatus.ADDED, f"{key} is new but not ADDED"
                assert key not in before, f"{key} is added but was there"
                added[key] = entry
            else:
                assert key in before, f"{key} is old but was not there"
                assert entry.data_file.record_count == before[key].data_file.record_count, key
    expected = (before.keys() - deleted.keys()) | added.keys()
    # A branch's author may leave deletes of files that he took out; where main goes on from there, nobody carries them.
    left = {key for key in expected - live.keys() if _deletes_nothing(before[key], live)}
    assert live.keys() == expected - left, f"snapshot {snapshot.snapshot_id} loses or invents files"
    return Changes(added, deleted, live)


def _deletes_nothing(entry: ManifestEntry, live: Live) -> bool:
    """Whether an entry is of a delete file of one data file alone, and of one that is not there."""
    found = entry.data_file
    paths = {(bounds or {}).get(PATH_FIELD) for bounds in (found.lower_bounds, found.upper_bounds)}
    if found.content != DataFileContent.POSITION_DELETES or len(paths) != 1:
        return False
    path = paths.pop()
    return path is not None and (DataFileContent.DATA.name, path.decode()) not in live


def key_of(data_file: DataFile) -> FileKey:
    """A file by what it holds and where it is."""
    return data_file.content.name, data_file.file_path


def _check_added(snapshot: Snapshot, added: Live, numbers: range, shown: set[int]) -> None:
    """A new file has its snapshot's number, or keeps one of `numbers` of forerunners that are gone, for which the snapshot stands, too."""
    for key, entry in added.items():
        assert entry.sequence_number == entry.file_sequence_number, key
        number = entry.file_sequence_number
        is_gone = number is not None and number in numbers and number not in shown
        assert number == snapshot.sequence_number or is_gone, f"{key} of {number}, not {numbers}"


def _check_carried(live: Live, before: Live) -> None:
    """A file that a snapshot carries on keeps the snapshot and the numbers that it came with."""
    for key in live.keys() & before.keys():
        old, new = before[key], live[key]
        same = (old.snapshot_id, old.sequence_number, old.file_sequence_number)
        assert (new.snapshot_id, new.sequence_number, new.file_sequence_number) == same, key


def _check_manifest(table: IcebergTable, manifest: ManifestFile, entries: Sequence[ManifestEntry]) -> None:
    counts = {status: 0 for status in ManifestEntryStatus}
    rows = {status: 0 for status in ManifestEntryStatus}
    numbers: list[int] = []
    for entry in entries:
        counts[entry.status] += 1
        rows[entry.status] += entry.data_file.record_count
        is_data = entry.data_file.content == DataFileContent.DATA
        assert is_data == (manifest.content == ManifestContent.DATA), manifest.manifest_path
        if entry.status != ManifestEntryStatus.DELETED and entry.sequence_number is not None:
            numbers.append(entry.sequence_number)
    added, existing, deleted = ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED
    shown = (manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count)
    assert shown == (counts[added], counts[existing], counts[deleted]), manifest.manifest_path
    shown = (manifest.added_rows_count, manifest.existing_rows_count, manifest.deleted_rows_count)
    assert shown == (rows[added], rows[existing], rows[deleted]), manifest.manifest_path
    check_partitions(table, manifest, entries)
    if numbers:
        assert manifest.min_sequence_number == min(numbers), manifest.manifest_path
    assert manifest.manifest_length == len(read_bytes(table.io, manifest.manifest_path))


def read_bytes(io: FileIO, path: str) -> bytes:
    """The whole object."""
    with io.new_input(path).open() as source:
        return source.read()


def _check_summary(snapshot: Snapshot, changes: Changes, *, is_cut: bool) -> None:
    """A summary's figures are those of the manifests, absent meaning none; its operation says what happened.

    `is_cut`: what the snapshot removed may be expired with its forerunner, and its author's word for it stays.
    """
    assert snapshot.summary is not None
    summary = {**snapshot.summary.additional_properties, "operation": snapshot.summary.operation.value}
    expected = {
        "total-data-files": _count(changes.live, DataFileContent.DATA),
        "total-delete-files": _count(changes.live, DataFileContent.POSITION_DELETES),
        "total-records": _sum_rows(changes.live, DataFileContent.DATA),
        "total-position-deletes": _sum_rows(changes.live, DataFileContent.POSITION_DELETES),
        "total-equality-deletes": 0,
        "total-files-size": _sum_bytes(changes.live),
        "added-data-files": _count(changes.added, DataFileContent.DATA),
        "deleted-data-files": _count(changes.deleted, DataFileContent.DATA),
        "added-delete-files": _count(changes.added, DataFileContent.POSITION_DELETES),
        "removed-delete-files": _count(changes.deleted, DataFileContent.POSITION_DELETES),
        "added-records": _sum_rows(changes.added, DataFileContent.DATA),
        "deleted-records": _sum_rows(changes.deleted, DataFileContent.DATA),
        "added-position-deletes": _sum_rows(changes.added, DataFileContent.POSITION_DELETES),
        "removed-position-deletes": _sum_rows(changes.deleted, DataFileContent.POSITION_DELETES),
        "added-files-size": _sum_bytes(changes.added),
        "removed-files-size": _sum_bytes(changes.deleted),
    }
    shown = {name: int(summary.get(name, "0")) for name in expected}
    assert shown == expected, f"snapshot {snapshot.snapshot_id}: {_differences(shown, expected)}"
    assert summary["ducklake.snapshot-id"] == str(snapshot.snapshot_id)
    possible = _possible_operations(changes)
    if not changes.added and not changes.deleted:
        possible |= _list_empty_operations(summary)
    assert is_cut or summary["operation"] in possible, f"snapshot {snapshot.snapshot_id}: {summary['operation']}"


def _possible_operations(changes: Changes) -> set[str]:
    adds_data = _count(changes.added, DataFileContent.DATA) > 0
    removes = bool(changes.deleted) or _count(changes.added, DataFileContent.POSITION_DELETES) > 0
    if not changes.added and not changes.deleted:
        # A transaction took back what it had inserted, or maintenance found nothing to do for this table.
        return {"replace"}
    if adds_data and not removes:
        return {"append"}
    # A rewrite may find no row left to write.
    return {"overwrite", "replace"} if adds_data else {"delete", "overwrite", "replace"}


def _list_empty_operations(summary: Mapping[str, str]) -> set[str]:
    """Return the operations of a client's snapshot without changes: the author's word stays, as in Iceberg's own catalogs.

    Spark's DELETE that finds no row is a `delete` where it can delete whole files, else an `overwrite`, and its MERGE that does nothing an
    `append` from Iceberg 1.12 on. A run of `ingest` may append nothing.
    """
    by_spark = {"append", "delete", "overwrite"} if "engine-name" in summary else set[str]()
    return by_spark | ({"append"} if RUN_ID in summary else set())


def _differences(shown: Mapping[str, int], expected: Mapping[str, int]) -> str:
    return ", ".join(f"{name} is {shown[name]}, expected {expected[name]}" for name in expected if shown[name] != expected[name])


def _count(files: Live, content: DataFileContent) -> int:
    return sum(entry.data_file.content == content for entry in files.values())


def _sum_rows(files: Live, content: DataFileContent) -> int:
    return sum(entry.data_file.record_count for entry in files.values() if entry.data_file.content == content)


def _sum_bytes(files: Live) -> int:
    return sum(entry.data_file.file_size_in_bytes for entry in files.values())
