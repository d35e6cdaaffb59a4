"""The manifests and manifest lists of a table: plans of them become bytes, and objects that are named by a digest of these bytes.

`snapshot_building` calls this in the transaction that reads the table: that of a load, of a commit under the lake's lock, of an import of
manifests, or of `duckicelake check`. Large manifests that were imported are looked for in `iceberg_manifest` and in the store.
Rows of data files are read in that transaction, the next slice on a second thread; objects go to the `UploadQueue`. The footers of
files with a name mapping are read from the store. `manifest_import` calls `verify` in a read transaction.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import psycopg

from duckicelake.catalog.manifest_import.imported import ImportedManifests, Submission
from duckicelake.catalog.row_files import FileDeriver
from duckicelake.catalog.table_cache import NO_LIST, FileCache, NewestList, UploadQueue
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.manifest import AnyFile, DataFile
from duckicelake.iceberg.manifest_list import ManifestFile, ManifestListHeader, build_manifest_list_encoder
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.read_files import read_column_stats, read_data_files, read_file_notes, read_packed_column_stats
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow, FileNote, PackedColumnStats, SnapshotNote, TableNote
from duckicelake.lake.writing.read_back import PredictedState
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import read_columns
from duckicelake.store.variants import MAX_REWRITTEN_BYTES, REVISION, rewrite_variants
from duckicelake.translate.bulk_files import SINGLY_MAX, DataFileBuilder
from duckicelake.translate.bulk_manifests import ManifestBuilder, ParsedManifest, to_sequence_number
from duckicelake.translate.client_snapshots import with_client_summary
from duckicelake.translate.files import check_hive_columns
from duckicelake.translate.locations import format_manifest_name, manifest_list_uri, rewritten_uri
from duckicelake.translate.manifests import ADDED, DATA, EXISTING, EntryPlan, ManifestPlan, SnapshotPlan
from duckicelake.translate.name_mapping import FileColumns, NameMapping, breaks_vectors, check_mapped_file
from duckicelake.translate.partitions import Partitioning, PublishedSpec
from duckicelake.translate.schemas import V3, Schemas, has_variants
from duckicelake.translate.summaries import FileTally, Totals, count_manifests, summarize
from duckicelake.translate.types import HIDE, PROPERTY
from duckicelake.translate.visibility import FileKey, SnapshotStep, Visibility

SLICE = 4_000
SLICE_COLUMNS = 40_000
"""Columns of all files whose statistics are read at once."""
REMEMBERED_COLUMNS = 200_000


@dataclass(frozen=True, slots=True)
class FetchedFiles:
    """The rows of some data files of one schema: of a few files row by row, of many column by column."""

    notes: Mapping[int, FileNote]
    few: Sequence[DataFileRow]
    stats: Sequence[ColumnStatsRow]
    many: Sequence[DataFileRow]
    packed: PackedColumnStats | None


@dataclass(frozen=True, slots=True)
class VariantRewriter:
    """Makes the files that stand for DuckDB's data files with variants, in a table's location, unless they are there."""

    location: str
    objects: Objects
    uploads: UploadQueue

    def rewrite(self, file: DataFile, path: str) -> DataFile:
        """Return the file that stands for a data file, which is itself if no variant is in it; `path` is DuckLake's.

        Raises: Unsupported: the file's variants cannot be read, or it is too large
        """
        uri = rewritten_uri(self.location, path, file.file_size_in_bytes, REVISION)
        if uri in self.uploads.known_uris:
            with suppress(NotFound):
                return replace(file, file_path=uri, file_size_in_bytes=self.objects.size(uri))
        content = self._rewrite(file, path)
        if content is None:
            return file
        size_bytes = len(content)
        if not self.objects.put_new(uri, content):
            # Another server may have written a copy of another length; `duckicelake check` writes none.
            with suppress(NotFound):
                size_bytes = self.objects.size(uri)
        self.uploads.known_uris.add(uri)
        return replace(file, file_path=uri, file_size_in_bytes=size_bytes)

    def _rewrite(self, file: DataFile, path: str) -> bytes | None:
        """Return the content of the copy, None if the file has no variants."""
        size_bytes = file.file_size_in_bytes
        try:
            if size_bytes > MAX_REWRITTEN_BYTES:
                raise Unsupported(f"The file has {size_bytes} bytes, more than {MAX_REWRITTEN_BYTES}")
            return rewrite_variants(self.objects.read_small(file.file_path, size_bytes))
        except Unsupported as error:
            raise Unsupported(
                f"The variants of data file {path!r} cannot be rewritten for Iceberg's readers: {error.message.rstrip('.')}. Write smaller "
                f"files, or leave variants out with the table property {PROPERTY}={HIDE}."
            ) from error


@dataclass(slots=True)
class DataFiles:
    """One table's data files, real ones by their rows in `conn`'s transaction, derived ones from memory.

    Postgres gathers the next slice while one is encoded; `close` waits for it, so that the connection is free again.
    """

    conn: psycopg.Connection
    table_id: int
    folder: str
    schemas: Schemas
    partitioning: Partitioning
    cache: FileCache
    objects: Objects
    mapping: NameMapping
    spec_ids: dict[FileKey, int] = field(default_factory=dict[FileKey, int])
    has_unproven: bool = False
    breaks_vectors: bool = False
    prefetch: "tuple[Sequence[int], Future[list[FetchedFiles]]] | None" = None
    foreseen: PredictedState | None = None
    rewriter: VariantRewriter | None = None
    maker: DataFileBuilder = field(init=False)
    is_split: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_split = len(self.partitioning.specs) > 1
        self.maker = DataFileBuilder(self.folder, self.schemas, self.partitioning, self._check_mapping)

    def close(self) -> None:
        """Wait for the running prefetch and discard its result."""
        if self.prefetch is not None:
            (_, fetching), self.prefetch = self.prefetch, None
            fetching.exception()

    def assign_specs(self, keys: Iterable[FileKey]) -> None:
        """Find out the specs of many files at once, before they are asked for one by one."""
        known = list(keys)
        self.has_unproven |= min(known, default=0) < 0
        if not self.is_split:
            return
        real = sorted(key for key in known if key >= 0 and key not in self.spec_ids)
        for part in _slices(real, SLICE):
            rows, notes = self._read(part)
            for row in rows:
                spec, _ = self.maker.choose_spec(row, self.schemas.at(row.begin_snapshot), notes.get(row.data_file_id))
                self.spec_ids[row.data_file_id] = spec.spec_id
                self.has_unproven |= spec is self.partitioning.unproven

    def spec_of(self, key: FileKey) -> int:
        """Return the id of the spec a file is published under."""
        if key < 0 or not self.is_split:
            return self.partitioning.unproven.spec_id
        if key not in self.spec_ids:
            self.assign_specs([key])
        return self.spec_ids[key]

    def get(self, key: FileKey) -> AnyFile:
        """Return one file for a manifest."""
        if key < 0:
            return self.cache.derived_files[key]
        if key not in self.cache.data_files:
            self.prepare([key])
        return self.cache.data_files[key]

    def prepare(self, keys: Iterable[FileKey], following: Iterable[FileKey] = ()) -> None:
        """Have these files in memory, reading all that are missing in one go, and begin to read those wanted next."""
        wanted = sorted({key for key in keys if key >= 0})
        missing = self._missing(wanted)
        self._make_room(wanted, len(missing))
        parts = list(_slices(missing, self.most_at_once))
        after = self._missing(sorted(set(following)))[: self.most_at_once]
        for part, next_part in zip(parts, [*parts[1:], after], strict=False):
            fetched = self._fetch_or_await(part)
            self._start_prefetch(next_part)
            for some in fetched:
                self._add_fetched(some)

    def _missing(self, keys: Sequence[FileKey]) -> list[FileKey]:
        return [key for key in keys if key >= 0 and key not in self.cache.data_files]

    def _start_prefetch(self, part: Sequence[int]) -> None:
        if self.prefetch is None and len(part) > SINGLY_MAX:
            with_one_thread = ThreadPoolExecutor(1, "read-ahead")
            self.prefetch = part, with_one_thread.submit(self._fetch, part)
            with_one_thread.shutdown(wait=False)

    def _fetch_or_await(self, part: Sequence[int]) -> list[FetchedFiles]:
        if self.prefetch is None or self.prefetch[0] != part:
            self.close()
            return self._fetch(part)
        (_, fetching), self.prefetch = self.prefetch, None
        return fetching.result()

    def _fetch(self, part: Sequence[int]) -> list[FetchedFiles]:
        by_schema: dict[int, list[DataFileRow]] = {}
        rows, notes = self._read(part)
        for row in rows:
            by_schema.setdefault(self.schemas.at(row.begin_snapshot).schema_id, []).append(row)
        return [self._fetch_stats(rows, notes) for rows in by_schema.values()]

    def _read(self, part: Sequence[int]) -> tuple[Sequence[DataFileRow], Mapping[int, FileNote]]:
        """Return the rows of files and what was said of them; those of a commit that is being made are foreseen."""
        coming = self.foreseen.files if self.foreseen else dict[int, DataFileRow]()
        there = [key for key in part if key not in coming]
        notes = read_file_notes(self.conn, there) if there else {}
        rows = read_data_files(self.conn, there) if there else []
        if self.foreseen is None:
            return rows, notes
        return [*rows, *(coming[key] for key in part if key in coming)], {**notes, **self.foreseen.notes}

    def _read_stats(self, rows: Sequence[DataFileRow]) -> list[ColumnStatsRow]:
        coming = self.foreseen.files if self.foreseen else dict[int, DataFileRow]()
        there = [row.data_file_id for row in rows if row.data_file_id not in coming]
        stats = read_column_stats(self.conn, self.table_id, there) if there else []
        return [*stats, *(found for row in rows if self.foreseen for found in self.foreseen.stats.get(row.data_file_id, ()))]

    def _fetch_stats(self, rows: Sequence[DataFileRow], notes: Mapping[int, FileNote]) -> FetchedFiles:
        plain = sorted((row for row in rows if row.data_file_id not in notes), key=lambda row: row.data_file_id)
        many = plain if len(plain) > SINGLY_MAX and not self._may_have_variants(rows[0]) else []
        few = [row for row in rows if row.data_file_id in notes] if many else rows
        stats = self._read_stats(few)
        packed = read_packed_column_stats(self.conn, self.table_id, [row.data_file_id for row in many]) if many else None
        return FetchedFiles(notes, few, stats, many, packed)

    @property
    def most_at_once(self) -> int:
        """The number of files to prepare together."""
        return max(1, SLICE_COLUMNS // self._width())

    def _make_room(self, wanted: Sequence[FileKey], count: int) -> None:
        """Forget the files used longest ago, but none that is wanted."""
        files, most = self.cache.data_files, REMEMBERED_COLUMNS // self._width()
        if len(files) + count <= most:
            return
        for key in wanted:
            if key in files:
                files.move_to_end(key)
        for _ in range(min(len(files) + count - most, len(files) + count - len(wanted))):
            files.popitem(last=False)

    def _width(self) -> int:
        return max(10, len(self.maker.leaf_types(self.schemas.current)))

    def _add_fetched(self, fetched: FetchedFiles) -> None:
        """Take files of one schema in, a few value by value, many column by column."""
        stats: dict[int, list[ColumnStatsRow]] = {row.data_file_id: [] for row in fetched.few}
        for found in fetched.stats:
            stats[found.data_file_id].append(found)
        for row in fetched.few:
            note = fetched.notes.get(row.data_file_id)
            self.cache.data_files[row.data_file_id] = self._make(row, note, stats[row.data_file_id])
            if note is not None and note.sequence_number is not None:
                self.cache.sequence_numbers[row.data_file_id] = note.sequence_number
        if fetched.packed is not None:
            encoded = self.maker.make_many(fetched.many, fetched.packed)
            self.cache.data_files.update(zip((row.data_file_id for row in fetched.many), encoded, strict=True))

    def _make(self, row: DataFileRow, note: FileNote | None, stats: Sequence[ColumnStatsRow]) -> DataFile:
        """Return one file; for a file with variants that DuckDB wrote, the one that stands for it."""
        made = self.maker.make(row, note, stats)
        is_duckdbs = note is None or row.path_is_relative or row.path.startswith(self.folder)
        if self.rewriter is None or not is_duckdbs or not self._may_have_variants(row):
            return made
        self.cache.rewritten_files.add(row.data_file_id)
        return self.rewriter.rewrite(made, row.path)

    def _may_have_variants(self, row: DataFileRow) -> bool:
        return has_variants(self.schemas.at(row.begin_snapshot))

    def _check_mapping(self, row: DataFileRow, uri: str, spec: PublishedSpec) -> None:
        """Refuse an added file that Iceberg would read otherwise than DuckLake; each is looked into once."""
        if row.mapping_id is None or row.data_file_id in self.cache.checked_files:
            return
        in_path = self.mapping.hive_columns.get(row.mapping_id, frozenset())
        check_hive_columns(row, in_path, spec, self.partitioning, self.schemas.at(row.begin_snapshot))
        columns = FileColumns(*read_columns(self.objects.open(uri, row.file_size_bytes)))
        check_mapped_file(row.path, row.mapping_id, columns, self.mapping)
        self.breaks_vectors |= breaks_vectors(columns, self.mapping.by_mapping.get(row.mapping_id, {}), self.mapping.types)
        self.cache.checked_files.add(row.data_file_id)


def _slices(keys: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


@dataclass(slots=True)
class ManifestWriter:
    """Writes one table's manifests. `note` says which sequence numbers its lake snapshots have.

    `written` knows manifests by content and number; `adopted` those that others have made. `notes` are what clients said,
    by lake snapshot. `hidden` lake snapshots set main to another snapshot, which clients see instead: objects that only they
    reference are held back.
    """

    deriver: FileDeriver
    files: DataFiles
    visibility: Mapping[FileKey, Visibility]
    note: TableNote
    totals: Totals = field(default_factory=Totals)
    written: dict[tuple[int, int], ManifestFile] = field(default_factory=dict[tuple[int, int], ManifestFile])
    tally: FileTally = field(default_factory=FileTally)
    notes: Mapping[int, SnapshotNote] = field(default_factory=dict[int, SnapshotNote])
    hidden: frozenset[int] = frozenset()
    adopted: ImportedManifests | None = None
    newest_list: NewestList = NO_LIST
    maker: ManifestBuilder = field(init=False)
    encode_list: Callable[[ManifestListHeader, Iterable[ManifestFile]], bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.encode_list = build_manifest_list_encoder(self._version)
        self.maker = ManifestBuilder(self.files.schemas, self.files.partitioning, self.note, self.files.cache.sequence_numbers)

    def write_snapshots(self, plans: Iterable[SnapshotPlan], parent: int | None) -> list[Snapshot]:
        """Return the snapshots of these plans, oldest first, with all their objects in the upload queue."""
        snapshots: list[Snapshot] = []
        for batch in self._batches(plans):
            for plan in batch:
                with self.deriver.uploads.holding(is_hidden=plan.step.snapshot_id in self.hidden):
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
            fresh = [manifest for manifest in fresh if self._find_imported(manifest) is None]
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

    def count_base(self, base: SnapshotStep) -> None:
        """Start the totals with what came before the first snapshot."""
        tally, most = FileTally(), self.files.most_at_once
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
        self.tally = FileTally()
        files = self._write_manifests(plan.manifests)
        first_row_id = self.totals.next_row_id if self._version >= V3 else None
        before = Totals(next_row_id=self.totals.next_row_id) if plan.is_root else self.totals
        summary, self.totals = summarize(plan.step, self.tally, before)
        added_rows = None if first_row_id is None else self.totals.next_row_id - first_row_id
        header = ManifestListHeader(snapshot_id, parent, to_sequence_number(self.note, snapshot_id), self._version, first_row_id)
        note = self.notes.get(snapshot_id)
        self.newest_list = self._write_list(header, files), files
        return Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent,
            sequence_number=header.sequence_number,
            timestamp_ms=plan.step.timestamp_ms,
            manifest_list=self.newest_list[0],
            summary=with_client_summary(summary, note, count_manifests(plan), is_combined=plan.step.is_combined),
            schema_id=schema_id if note is None else self.files.schemas.get_snapshot_schema_id(snapshot_id, note.schema_id),
            first_row_id=first_row_id,
            added_rows=added_rows,
        )

    def _write_list(self, header: ManifestListHeader, files: Sequence[ManifestFile]) -> str:
        content = self.encode_list(header, files)
        uri = manifest_list_uri(self.deriver.location, header.snapshot_id, format_manifest_name(content))
        if not self.deriver.uploads.is_holding:
            self.deriver.uploads.add(uri, content)
        return uri

    @property
    def _version(self) -> int:
        return self.files.schemas.format_version

    def _write_manifests(self, plans: Sequence[ManifestPlan]) -> list[ManifestFile]:
        fresh = [plan for plan in plans if (plan.content, plan.number) not in self.written and not self._use_imported(plan)]
        for plan, following in zip_longest(fresh, fresh[1:]):
            self.files.prepare(_keys(plan), () if following is None else _keys(following))
            self.written[plan.content, plan.number] = self._encode(plan)
        files = [self.written[plan.content, plan.number] for plan in plans]
        self.deriver.uploads.release(file.manifest_path for file in files)
        return files

    def _find_imported(self, plan: ManifestPlan) -> ParsedManifest | None:
        return None if self.adopted is None else self.adopted.find(plan)

    def _use_imported(self, plan: ManifestPlan) -> bool:
        """Use an imported manifest; False if there is none."""
        found = self._find_imported(plan)
        if found is None or self.adopted is None:
            return False
        if self.adopted.is_sample(plan):
            self._check_sample(plan, found)
        self.tally.take(found.tally)
        self.written[plan.content, plan.number] = found.described
        return True

    def verify(self, plan: ManifestPlan, submission: Submission) -> ParsedManifest:
        """Return a manifest that is offered for a plan, after it was looked at, and made again if it is a sample.

        Raises: BadRequest: it is not what it should be
        """
        assert self.adopted is not None
        found = self.adopted.check_submitted(plan, submission)
        if self.adopted.is_sample(plan):
            self._check_sample(plan, found)
        return found

    def _check_sample(self, plan: ManifestPlan, found: ParsedManifest) -> None:
        """Make a manifest again. Raises: BadRequest: what is offered has other bytes"""
        self.files.prepare(_keys(plan))
        made = self.maker.make(plan, [self._file(entry, plan) for entry in plan.entries])
        if made.described != found.described or (made.tally.added(), made.tally.removed()) != (found.tally.added(), found.tally.removed()):
            raise BadRequest(f"The manifest {found.described.manifest_path} that is offered has other bytes than what this server makes.")

    def _encode(self, plan: ManifestPlan) -> ManifestFile:
        files, uploads = [self._file(entry, plan) for entry in plan.entries], self.deriver.uploads
        made = self.maker.make(plan, files)
        self.tally.take(made.tally)
        uploads.release(file.file_path for file in files)
        uploads.add(made.uri, made.content, [file.file_path for file in files] if uploads.held else ())
        return made.described

    def _file(self, entry: EntryPlan, plan: ManifestPlan) -> AnyFile:
        return self.files.get(entry.key) if plan.content == DATA else self._delete_file(entry)

    def _delete_file(self, entry: EntryPlan) -> DataFile:
        positions = self.visibility[entry.key].deleted_at(entry.since)
        return self.deriver.derive_deletes(self.files.get(entry.key), positions)


def _keys(plan: ManifestPlan) -> Iterator[FileKey]:
    return (entry.key for entry in plan.entries)
