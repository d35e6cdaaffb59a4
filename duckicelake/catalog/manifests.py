"""Manifests and manifest lists as objects: plans become bytes, bytes become names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from duckicelake.catalog.data_files import DataFiles
from duckicelake.catalog.derive import Deriver
from duckicelake.catalog.outbox import format_digest
from duckicelake.iceberg.manifest import DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import (
    ManifestFile,
    ManifestListHeader,
    WrittenManifest,
    describe_manifest,
    encode_manifest_list,
)
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.rows import SnapshotNote
from duckicelake.translate.history import Step
from duckicelake.translate.locations import manifest_list_uri, manifest_uri
from duckicelake.translate.manifests import ADDED, DATA, EXISTING, EntryPlan, ManifestPlan, SnapshotPlan
from duckicelake.translate.partitions import to_spec
from duckicelake.translate.schemas import V3
from duckicelake.translate.shape.told_snapshots import to_alias, with_told_summary
from duckicelake.translate.summaries import Tally, Totals, summarise_tally
from duckicelake.translate.visibility import FileKey, Visibility


@dataclass(slots=True)
class ManifestWriter:
    """Writes one table's manifests. `sequence_base` is taken from a lake snapshot id to give its sequence number.

    `written` knows manifests by content and number. `notes` are what clients said, by lake snapshot; those of `aliases`
    are also written under their authors' ids.
    """

    deriver: Deriver
    files: DataFiles
    visibility: Mapping[FileKey, Visibility]
    sequence_base: int
    totals: Totals = field(default_factory=Totals)
    written: dict[tuple[int, int], ManifestFile] = field(default_factory=dict[tuple[int, int], ManifestFile])
    tally: Tally = field(default_factory=Tally)
    notes: Mapping[int, SnapshotNote] = field(default_factory=dict[int, SnapshotNote])
    aliased: frozenset[int] = frozenset()
    aliases: dict[int, Snapshot] = field(default_factory=dict[int, Snapshot])

    def write_snapshots(self, plans: Iterable[SnapshotPlan], parent: int | None) -> list[Snapshot]:
        """Return the snapshots of these plans, oldest first, with all their objects in the outbox."""
        snapshots: list[Snapshot] = []
        for plan in plans:
            snapshots.append(self._write_snapshot(plan, parent))
            parent = snapshots[-1].snapshot_id
        return snapshots

    def count_base(self, base: Step) -> None:
        """Start the totals with what came before the first snapshot."""
        self.files.prepare(file.key for file in base.added)
        deletes = [EntryPlan(EXISTING, base.snapshot_id, base.snapshot_id, key) for key, has_any in base.deletes.items() if has_any]
        for file in (*(self.files.get(file.key) for file in base.added), *map(self._delete_file, deletes)):
            self.totals = self.totals.plus(file, 1)

    def _write_snapshot(self, plan: SnapshotPlan, parent: int | None) -> Snapshot:
        snapshot_id = plan.step.snapshot_id
        schema_id = self.files.schemas.at(snapshot_id).schema_id
        self.tally = Tally()
        files = [self._write_manifest(manifest) for manifest in plan.manifests]
        first_row_id = self.totals.next_row_id if self._version >= V3 else None
        summary, self.totals = summarise_tally(plan.step, self.tally, self.totals)
        added_rows = None if first_row_id is None else self.totals.next_row_id - first_row_id
        header = ManifestListHeader(snapshot_id, parent, snapshot_id - self.sequence_base, self._version, first_row_id)
        note = self.notes.get(snapshot_id)
        snapshot = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent,
            sequence_number=header.sequence_number,
            timestamp_ms=plan.step.timestamp_ms,
            manifest_list=self._write_list(header, files),
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
        content = encode_manifest_list(header, files)
        uri = manifest_list_uri(self.deriver.location, header.snapshot_id, format_digest(content))
        self.deriver.outbox.add(uri, content)
        return uri

    @property
    def _version(self) -> int:
        return self.files.schemas.format_version

    def _write_manifest(self, plan: ManifestPlan) -> ManifestFile:
        key = (plan.content, plan.number)
        found = self.written.get(key)
        if found is None:
            found = self.written[key] = self._encode(plan)
        return found

    def _encode(self, plan: ManifestPlan) -> ManifestFile:
        spec = next(spec for spec in self.files.partitioning.specs if spec.spec_id == plan.spec_id)
        schema = self.files.schemas.at(plan.snapshot_id)
        header = ManifestHeader(schema, to_spec(spec, schema), self._version, plan.content)
        self.files.prepare(entry.key for entry in plan.entries)
        entries = [self._to_entry(entry, plan) for entry in plan.entries]
        for entry in entries:
            if entry.status != EXISTING:
                self.tally.count(entry.status, entry.data_file)
        content = encode_manifest(header, entries)
        uri = manifest_uri(self.deriver.location, format_digest(content))
        self.deriver.outbox.add(uri, content)
        written = WrittenManifest(uri, len(content), plan.snapshot_id, plan.snapshot_id - self.sequence_base)
        described = describe_manifest(header, entries, written)
        if self._version < V3 or plan.content != DATA:
            return described
        return replace(described, first_row_id=min((entry.data_file.first_row_id or 0 for entry in entries), default=0))

    def _to_entry(self, entry: EntryPlan, plan: ManifestPlan) -> ManifestEntry:
        # what the snapshot itself adds inherits its sequence number
        is_inherited = entry.status == ADDED and entry.since == plan.snapshot_id
        number = None if is_inherited else entry.since - self.sequence_base
        return ManifestEntry(entry.status, entry.snapshot_id, number, number, self._file(entry, plan))

    def _file(self, entry: EntryPlan, plan: ManifestPlan) -> DataFile:
        return self.files.get(entry.key) if plan.content == DATA else self._delete_file(entry)

    def _delete_file(self, entry: EntryPlan) -> DataFile:
        positions = self.visibility[entry.key].deleted_at(entry.since)
        return self.deriver.derive_deletes(self.files.get(entry.key), positions)
