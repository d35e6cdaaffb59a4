"""Manifests and manifest lists as objects: plans become bytes, bytes become names."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from duckicelake.catalog.data_files import DataFiles
from duckicelake.catalog.derive import Deriver
from duckicelake.catalog.outbox import format_digest
from duckicelake.iceberg.manifest import (
    AnyEntry,
    AnyFile,
    DataFile,
    EncodedEntry,
    EncodedFile,
    ManifestEntry,
    ManifestHeader,
    manifest_encoder,
)
from duckicelake.iceberg.manifest_list import (
    ManifestFile,
    ManifestListHeader,
    WrittenManifest,
    describe_manifest,
    manifest_list_encoder,
)
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.rows import SnapshotNote, TableNote
from duckicelake.translate.history import Step
from duckicelake.translate.locations import manifest_list_uri, manifest_uri
from duckicelake.translate.manifests import ADDED, DATA, EXISTING, EntryPlan, ManifestPlan, SnapshotPlan
from duckicelake.translate.partitions import to_spec
from duckicelake.translate.schemas import V3
from duckicelake.translate.shape.told_snapshots import to_alias, with_told_summary
from duckicelake.translate.summaries import Tally, Totals, summarise
from duckicelake.translate.visibility import FileKey, Visibility
from duckicelake.values import replace

Encoder = tuple[ManifestHeader, Callable[[Iterable[AnyEntry]], bytes]]
"""A header, and what encodes the manifests that have it."""


@dataclass(slots=True)
class ManifestWriter:
    """Writes one table's manifests. `note` says which sequence numbers its lake snapshots have.

    `written` knows manifests by content and number. `notes` are what clients said, by lake snapshot; those of `aliases`
    are also written under their authors' ids.
    """

    deriver: Deriver
    files: DataFiles
    visibility: Mapping[FileKey, Visibility]
    note: TableNote
    totals: Totals = field(default_factory=Totals)
    written: dict[tuple[int, int], ManifestFile] = field(default_factory=dict[tuple[int, int], ManifestFile])
    tally: Tally = field(default_factory=Tally)
    notes: Mapping[int, SnapshotNote] = field(default_factory=dict[int, SnapshotNote])
    aliased: frozenset[int] = frozenset()
    aliases: dict[int, Snapshot] = field(default_factory=dict[int, Snapshot])
    encoders: dict[tuple[int, int, int], Encoder] = field(default_factory=dict[tuple[int, int, int], Encoder])
    encode_list: Callable[[ManifestListHeader, Iterable[ManifestFile]], bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.encode_list = manifest_list_encoder(self._version)

    def write_snapshots(self, plans: Iterable[SnapshotPlan], parent: int | None) -> list[Snapshot]:
        """Return the snapshots of these plans, oldest first, with all their objects in the outbox."""
        snapshots: list[Snapshot] = []
        for batch in self._batches(plans):
            for plan in batch:
                snapshots.append(self._write_snapshot(plan, parent))
                parent = snapshots[-1].snapshot_id
        return snapshots

    def _batches(self, plans: Iterable[SnapshotPlan]) -> Iterator[list[SnapshotPlan]]:
        """Yield the plans in groups whose files are in memory: one query does for many small snapshots."""
        batch: list[SnapshotPlan] = []
        keys: set[FileKey] = set()
        seen, most = set(self.written), self.files.most_at_once
        for plan in plans:
            fresh = [manifest for manifest in plan.manifests if (manifest.content, manifest.number) not in seen]
            seen |= {(manifest.content, manifest.number) for manifest in fresh}
            if batch and len(keys) + sum(len(manifest.entries) for manifest in fresh) > most:
                self.files.prepare(keys)
                yield batch
                batch, keys = [], set()
            batch.append(plan)
            if sum(len(manifest.entries) for manifest in fresh) <= most:
                keys |= {entry.key for manifest in fresh for entry in manifest.entries}
        self.files.prepare(keys)
        yield batch

    def count_base(self, base: Step) -> None:
        """Start the totals with what came before the first snapshot."""
        tally, most = Tally(), self.files.most_at_once
        for start in range(0, len(base.added), most):
            part = [file.key for file in base.added[start : start + most]]
            self.files.prepare(part)
            for key in part:
                tally.count(ADDED, self.files.get(key))
                if base.deletes.get(key):
                    tally.count(ADDED, self._delete_file(EntryPlan(EXISTING, base.snapshot_id, base.snapshot_id, key)))
        self.totals = Totals().moved(tally.added(), Totals())

    def _write_snapshot(self, plan: SnapshotPlan, parent: int | None) -> Snapshot:
        snapshot_id = plan.step.snapshot_id
        schema_id = self.files.schemas.at(snapshot_id).schema_id
        self.tally = Tally()
        files = self._write_manifests(plan.manifests)
        first_row_id = self.totals.next_row_id if self._version >= V3 else None
        summary, self.totals = summarise(plan.step, self.tally, self.totals)
        added_rows = None if first_row_id is None else self.totals.next_row_id - first_row_id
        header = ManifestListHeader(snapshot_id, parent, to_sequence_number(self.note, snapshot_id), self._version, first_row_id)
        note = self.notes.get(snapshot_id)
        newest = self.deriver.memory.newest_list = (self._write_list(header, files), files)
        snapshot = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent,
            sequence_number=header.sequence_number,
            timestamp_ms=plan.step.timestamp_ms,
            manifest_list=newest[0],
            summary=with_told_summary(summary, note),
            schema_id=schema_id if note is None else note.schema_id,
            first_row_id=first_row_id,
            added_rows=added_rows,
        )
        if note is not None and snapshot_id in self.aliased:
            # clients of Iceberg delete the manifest list of a snapshot they drop, so an alias has its own
            uri = self._write_list(replace(header, snapshot_id=note.client_snapshot_id), files)
            self.aliases[snapshot_id] = to_alias(snapshot, note.client_snapshot_id, uri)
        return snapshot

    def _write_list(self, header: ManifestListHeader, files: Sequence[ManifestFile]) -> str:
        content = self.encode_list(header, files)
        uri = manifest_list_uri(self.deriver.location, header.snapshot_id, format_digest(content))
        self.deriver.outbox.add(uri, content)
        return uri

    @property
    def _version(self) -> int:
        return self.files.schemas.format_version

    def _write_manifests(self, plans: Sequence[ManifestPlan]) -> list[ManifestFile]:
        fresh = [plan for plan in plans if (plan.content, plan.number) not in self.written]
        for plan, following in zip_longest(fresh, fresh[1:]):
            self.files.prepare(_keys(plan), () if following is None else _keys(following))
            self.written[plan.content, plan.number] = self._encode(plan)
        return [self.written[plan.content, plan.number] for plan in plans]

    def _encode(self, plan: ManifestPlan) -> ManifestFile:
        header, encode = self._encoder(plan)
        entries = [self._to_entry(entry, plan) for entry in plan.entries]
        for entry in entries:
            if entry.status != EXISTING:
                self.tally.count(entry.status, entry.data_file)
        content = encode(entries)
        uri = manifest_uri(self.deriver.location, format_digest(content))
        self.deriver.outbox.add(uri, content)
        written = WrittenManifest(uri, len(content), plan.snapshot_id, to_sequence_number(self.note, plan.snapshot_id))
        described = describe_manifest(header, entries, written)
        if self._version < V3 or plan.content != DATA:
            return described
        return replace(described, first_row_id=min((entry.data_file.first_row_id or 0 for entry in entries), default=0))

    def _encoder(self, plan: ManifestPlan) -> Encoder:
        schema = self.files.schemas.at(plan.snapshot_id)
        key = (schema.schema_id, plan.spec_id, plan.content)
        if key not in self.encoders:
            spec = next(spec for spec in self.files.partitioning.specs if spec.spec_id == plan.spec_id)
            header = ManifestHeader(schema, to_spec(spec, schema), self._version, plan.content)
            self.encoders[key] = header, manifest_encoder(header)
        return self.encoders[key]

    def _to_entry(self, entry: EntryPlan, plan: ManifestPlan) -> AnyEntry:
        # what the snapshot itself adds inherits its sequence number
        is_inherited = entry.status == ADDED and entry.since == plan.snapshot_id
        number = None if is_inherited else to_sequence_number(self.note, entry.since)
        file = self._file(entry, plan)
        if isinstance(file, EncodedFile):
            return EncodedEntry(entry.status, entry.snapshot_id, number, number, file)
        # a registered file is as old as its rows are; Iceberg 1.11 takes the file's number for that of its rows
        number = self.files.memory.told_numbers.get(entry.key, number) if plan.content == DATA else number
        return ManifestEntry(entry.status, entry.snapshot_id, number, number, file)

    def _file(self, entry: EntryPlan, plan: ManifestPlan) -> AnyFile:
        return self.files.get(entry.key) if plan.content == DATA else self._delete_file(entry)

    def _delete_file(self, entry: EntryPlan) -> DataFile:
        positions = self.visibility[entry.key].deleted_at(entry.since)
        return self.deriver.derive_deletes(self.files.get(entry.key), positions)


def _keys(plan: ManifestPlan) -> Iterator[FileKey]:
    return (entry.key for entry in plan.entries)


def to_sequence_number(note: TableNote, lake_snapshot_id: int) -> int:
    """Return the sequence number of a lake snapshot; version 1 knows none."""
    if note.format_version == 1:
        return 0
    is_based = note.numbered_until is None or lake_snapshot_id <= note.numbered_until
    return lake_snapshot_id - note.sequence_base if is_based else lake_snapshot_id
