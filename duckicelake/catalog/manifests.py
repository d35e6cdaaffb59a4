"""Manifests and manifest lists as objects: plans become bytes, bytes become names."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from duckicelake.catalog.derive import Deriver
from duckicelake.catalog.gather import Sources
from duckicelake.catalog.memory import DATA_FILES_MAX
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
from duckicelake.lake.rows import ColumnStatsRow
from duckicelake.translate.files import choose_spec, to_data_file
from duckicelake.translate.history import History, Step
from duckicelake.translate.locations import file_uri, manifest_list_uri, manifest_uri
from duckicelake.translate.manifests import ADDED, DATA, EXISTING, EntryPlan, ManifestPlan, SnapshotPlan, to_manifests
from duckicelake.translate.partitions import Partitioning, to_spec
from duckicelake.translate.schemas import Schemas
from duckicelake.translate.summaries import FileChange, Totals, summarise
from duckicelake.translate.visibility import FileKey

FORMAT_VERSION = 2

StatsReader = Callable[[Sequence[int]], Iterable[ColumnStatsRow]]


@dataclass(slots=True)
class ManifestWriter:
    """Writes one table's manifests. `sequence_base` is taken from a lake snapshot id to give its sequence number."""

    deriver: Deriver
    sources: Sources
    schemas: Schemas
    partitioning: Partitioning
    read_stats: StatsReader
    sequence_base: int
    totals: Totals = field(default_factory=Totals)
    written: dict[int, ManifestFile] = field(default_factory=dict[int, ManifestFile])

    def write_snapshots(self, history: History) -> list[Snapshot]:
        """Return the snapshots of a history, oldest first, with all their objects in the outbox."""
        self._count_base(history.base)
        snapshots: list[Snapshot] = []
        for plan in to_manifests(history, self._spec_of):
            parent = snapshots[-1].snapshot_id if snapshots else None
            snapshots.append(self._write_snapshot(plan, parent))
        return snapshots

    def _spec_of(self, key: FileKey) -> int:
        return 0 if key < 0 else self._choose(key)[0]

    def _choose(self, key: FileKey) -> tuple[int, tuple[object, ...]]:
        row = self.sources.data_files[key]
        spec, partition = choose_spec(row, self.partitioning, self.schemas.at(row.begin_snapshot))
        return spec.spec_id, partition

    def _write_snapshot(self, plan: SnapshotPlan, parent: int | None) -> Snapshot:
        snapshot_id = plan.step.snapshot_id
        files = [self._write_manifest(manifest) for manifest in plan.manifests]
        summary, self.totals = summarise(plan.step, self._changes(plan), self.totals)
        header = ManifestListHeader(snapshot_id, parent, snapshot_id - self.sequence_base, FORMAT_VERSION)
        content = encode_manifest_list(header, files)
        uri = manifest_list_uri(self.deriver.location, snapshot_id, format_digest(content))
        self.deriver.outbox.add(uri, content)
        return Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent,
            sequence_number=header.sequence_number,
            timestamp_ms=plan.step.timestamp_ms,
            manifest_list=uri,
            summary=summary,
            schema_id=self.schemas.at(snapshot_id).schema_id,
        )

    def _write_manifest(self, plan: ManifestPlan) -> ManifestFile:
        # a plan is one object however many snapshots carry it on, and costly to hash
        found = self.written.get(id(plan))
        if found is None:
            found = self.written[id(plan)] = self._find_or_encode(plan)
        return found

    def _find_or_encode(self, plan: ManifestPlan) -> ManifestFile:
        spec = next(spec for spec in self.partitioning.specs if spec.spec_id == plan.spec_id)
        schema = self.schemas.at(plan.snapshot_id)
        header = ManifestHeader(schema, to_spec(spec, schema), FORMAT_VERSION, plan.content)
        key = (plan, self._describe(plan, header))
        found = self.deriver.memory.manifests.get(key)
        if found is None:
            self._prepare(plan.entries)
            entries = [self._to_entry(entry, plan) for entry in plan.entries]
            content = encode_manifest(header, entries)
            uri = manifest_uri(self.deriver.location, format_digest(content))
            self.deriver.outbox.add(uri, content)
            written = WrittenManifest(uri, len(content), plan.snapshot_id, plan.snapshot_id - self.sequence_base)
            found = self.deriver.memory.manifests[key] = describe_manifest(header, entries, written)
        return found

    def _describe(self, plan: ManifestPlan, header: ManifestHeader) -> str:
        parts = [str(header.schema.schema_id), *(f"{field.field_id}:{field.name}" for field in header.spec.fields)]
        if plan.content != DATA:
            parts += [self._delete_file(entry).file_path for entry in plan.entries]
        return "\n".join(parts)

    def _to_entry(self, entry: EntryPlan, plan: ManifestPlan) -> ManifestEntry:
        file = self._data_file(entry.key) if plan.content == DATA else self._delete_file(entry)
        # what the snapshot itself adds inherits its sequence number
        is_inherited = entry.status == ADDED and entry.since == plan.snapshot_id
        number = None if is_inherited else entry.since - self.sequence_base
        return ManifestEntry(entry.status, entry.snapshot_id, number, number, file)

    def _changes(self, plan: SnapshotPlan) -> Iterable[FileChange]:
        for manifest in plan.manifests:
            if manifest.snapshot_id == plan.step.snapshot_id:
                entries = [entry for entry in manifest.entries if entry.status != EXISTING]
                self._prepare(entries)
                yield from (FileChange(entry.status, self._to_entry(entry, manifest).data_file) for entry in entries)

    def _count_base(self, base: Step) -> None:
        files = [EntryPlan(EXISTING, base.snapshot_id, file.begin_snapshot, file.key) for file in base.added]
        self._prepare(files)
        deletes = [EntryPlan(EXISTING, base.snapshot_id, base.snapshot_id, key) for key, has_any in base.deletes.items() if has_any]
        for file in (*(self._data_file(entry.key) for entry in files), *map(self._delete_file, deletes)):
            self.totals = self.totals.plus(file, 1)

    def _delete_file(self, entry: EntryPlan) -> DataFile:
        target = self._data_file(entry.key)
        positions = self.sources.visibility[entry.key].deleted_at(entry.since)
        return self.deriver.derive_deletes(target, entry.since, positions)

    def _data_file(self, key: FileKey) -> DataFile:
        if key < 0:
            return self.deriver.memory.inlined_files[key]
        if key not in self.deriver.memory.data_files:
            self._prepare([EntryPlan(EXISTING, 0, 0, key)])
        return self.deriver.memory.data_files[key]

    def _prepare(self, entries: Iterable[EntryPlan]) -> None:
        """Have the data files of these entries in memory, with statistics read in one go."""
        files = self.deriver.memory.data_files
        keys = {entry.key for entry in entries if entry.key >= 0 and entry.key not in files}
        while len(files) + len(keys) > DATA_FILES_MAX and files:
            files.popitem(last=False)
        stats: dict[int, list[ColumnStatsRow]] = {key: [] for key in keys}
        for row in self.read_stats(sorted(keys)) if keys else ():
            stats[row.data_file_id].append(row)
        for key in sorted(keys):
            row = self.sources.data_files[key]
            uri = file_uri(self.sources.folder, row.path, row.path_is_relative)
            files[key] = to_data_file(row, uri, self._choose(key)[1], stats[key], self.schemas.at(row.begin_snapshot))
