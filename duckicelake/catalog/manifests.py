"""Manifests and manifest lists as objects: plans become bytes, bytes become names."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from duckicelake.catalog.adopting.adopted import Adopted
from duckicelake.catalog.data_files import DataFiles
from duckicelake.catalog.derive import Deriver
from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import AnyFile, DataFile
from duckicelake.iceberg.manifest_list import ManifestFile, ManifestListHeader, manifest_list_encoder
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.rows import SnapshotNote, TableNote
from duckicelake.translate.bulk.manifests import ManifestMaker, to_sequence_number
from duckicelake.translate.bulk.told import AdoptedManifest
from duckicelake.translate.history import Step
from duckicelake.translate.locations import format_digest, manifest_list_uri
from duckicelake.translate.manifests import ADDED, DATA, EXISTING, EntryPlan, ManifestPlan, SnapshotPlan
from duckicelake.translate.schemas import V3
from duckicelake.translate.shape.told_snapshots import to_alias, with_told_summary
from duckicelake.translate.summaries import Tally, Totals, count_manifests, summarise
from duckicelake.translate.visibility import FileKey, Visibility
from duckicelake.values import replace


@dataclass(slots=True)
class ManifestWriter:
    """Writes one table's manifests. `note` says which sequence numbers its lake snapshots have.

    `written` knows manifests by content and number; `adopted` those that others have made. `notes` are what clients said,
    by lake snapshot; those of `aliases` are also written under their authors' ids. Of `hidden` snapshots clients see others in
    their place: what only they would name is not written before another one names it.
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
    hidden: frozenset[int] = frozenset()
    aliases: dict[int, Snapshot] = field(default_factory=dict[int, Snapshot])
    adopted: Adopted | None = None
    maker: ManifestMaker = field(init=False)
    encode_list: Callable[[ManifestListHeader, Iterable[ManifestFile]], bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.encode_list = manifest_list_encoder(self._version)
        self.maker = ManifestMaker(self.files.schemas, self.files.partitioning, self.note, self.files.memory.told_numbers)

    def write_snapshots(self, plans: Iterable[SnapshotPlan], parent: int | None) -> list[Snapshot]:
        """Return the snapshots of these plans, oldest first, with all their objects in the outbox."""
        snapshots: list[Snapshot] = []
        for batch in self._batches(plans):
            for plan in batch:
                with self.deriver.outbox.holding(is_hidden=plan.step.snapshot_id in self.hidden):
                    snapshots.append(self._write_snapshot(plan, None if plan.is_root else parent))
                parent = snapshots[-1].snapshot_id
        return snapshots

    def _batches(self, plans: Iterable[SnapshotPlan]) -> Iterator[list[SnapshotPlan]]:
        """Yield the plans in groups whose files are in memory: one query does for many small snapshots."""
        batch: list[SnapshotPlan] = []
        keys: set[FileKey] = set()
        seen, most = set(self.written), self.files.most_at_once
        for plan in plans:
            fresh = [manifest for manifest in plan.manifests if (manifest.content, manifest.number) not in seen]
            fresh = [manifest for manifest in fresh if self._find_adopted(manifest) is None]
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
        before = Totals(next_row_id=self.totals.next_row_id) if plan.is_root else self.totals
        summary, self.totals = summarise(plan.step, self.tally, before)
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
            summary=with_told_summary(summary, note, count_manifests(plan), is_combined=plan.step.is_combined),
            schema_id=schema_id if note is None else self.files.schemas.find_snapshot_schema_id(snapshot_id, note.schema_id),
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
        if not self.deriver.outbox.is_holding:
            self.deriver.outbox.add(uri, content)
        return uri

    @property
    def _version(self) -> int:
        return self.files.schemas.format_version

    def _write_manifests(self, plans: Sequence[ManifestPlan]) -> list[ManifestFile]:
        fresh = [plan for plan in plans if (plan.content, plan.number) not in self.written and not self._adopt(plan)]
        for plan, following in zip_longest(fresh, fresh[1:]):
            self.files.prepare(_keys(plan), () if following is None else _keys(following))
            self.written[plan.content, plan.number] = self._encode(plan)
        files = [self.written[plan.content, plan.number] for plan in plans]
        self.deriver.outbox.release(file.manifest_path for file in files)
        return files

    def _find_adopted(self, plan: ManifestPlan) -> AdoptedManifest | None:
        return None if self.adopted is None else self.adopted.find(plan)

    def _adopt(self, plan: ManifestPlan) -> bool:
        """Take a manifest that somebody else made; False: nobody has."""
        found = self._find_adopted(plan)
        if found is None or self.adopted is None:
            return False
        if self.adopted.is_sample(plan):
            self._check_sample(plan, found)
        self.tally.take(found.tally)
        self.written[plan.content, plan.number] = found.described
        return True

    def look_at(self, plan: ManifestPlan) -> AdoptedManifest:
        """Return a manifest that is offered for a plan, after it was looked at, and made again if it is a sample.

        Raises: BadRequest: it is not what it should be
        """
        assert self.adopted is not None
        assert self.deriver.memory.offer is not None
        found = self.adopted.check_offered(plan, self.deriver.memory.offer)
        if self.adopted.is_sample(plan):
            self._check_sample(plan, found)
        return found

    def _check_sample(self, plan: ManifestPlan, found: AdoptedManifest) -> None:
        """Make a manifest again. Raises: BadRequest: what is offered has other bytes"""
        self.files.prepare(_keys(plan))
        made = self.maker.make(plan, [self._file(entry, plan) for entry in plan.entries])
        if made.described != found.described or (made.tally.added(), made.tally.removed()) != (found.tally.added(), found.tally.removed()):
            raise BadRequest(f"The manifest {found.described.manifest_path} that is offered has other bytes than what this server makes.")

    def _encode(self, plan: ManifestPlan) -> ManifestFile:
        files, outbox = [self._file(entry, plan) for entry in plan.entries], self.deriver.outbox
        made = self.maker.make(plan, files)
        self.tally.take(made.tally)
        outbox.release(file.file_path for file in files)
        outbox.add(made.uri, made.content, [file.file_path for file in files] if outbox.held else ())
        return made.described

    def _file(self, entry: EntryPlan, plan: ManifestPlan) -> AnyFile:
        return self.files.get(entry.key) if plan.content == DATA else self._delete_file(entry)

    def _delete_file(self, entry: EntryPlan) -> DataFile:
        positions = self.visibility[entry.key].deleted_at(entry.since)
        return self.deriver.derive_deletes(self.files.get(entry.key), positions)


def _keys(plan: ManifestPlan) -> Iterator[FileKey]:
    return (entry.key for entry in plan.entries)
