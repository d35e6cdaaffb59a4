"""Details of data files, read in slices when a manifest needs them: a table may have more than fit in memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import psycopg

from duckicelake.catalog.memory import TableMemory
from duckicelake.iceberg.manifest import AnyFile
from duckicelake.lake.read_files import read_column_stats, read_data_files, read_packed_column_stats
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow, FileNote, PackedColumnStats
from duckicelake.lake.writing.client_notes import read_file_notes
from duckicelake.lake.writing.read_back import Foreseen
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import read_columns
from duckicelake.translate.bulk.files import FEW, FileMaker
from duckicelake.translate.files import check_hive_columns
from duckicelake.translate.partitions import Partitioning, PublishedSpec
from duckicelake.translate.schemas import Schemas
from duckicelake.translate.shape.name_mapping import FileColumns, NameMapping, breaks_vectors, check_mapped_file
from duckicelake.translate.visibility import FileKey

SLICE = 4_000
SLICE_COLUMNS = 40_000
"""Columns of all files whose statistics are read at once."""
REMEMBERED_COLUMNS = 200_000


@dataclass(frozen=True, slots=True)
class Fetched:
    """What the lake tells of some data files of one schema: of a few row by row, of many column by column."""

    notes: Mapping[int, FileNote]
    few: Sequence[DataFileRow]
    stats: Sequence[ColumnStatsRow]
    many: Sequence[DataFileRow]
    packed: PackedColumnStats | None


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
    memory: TableMemory
    objects: Objects
    mapping: NameMapping
    spec_ids: dict[FileKey, int] = field(default_factory=dict[FileKey, int])
    has_unproven: bool = False
    breaks_vectors: bool = False
    ahead: "tuple[Sequence[int], Future[list[Fetched]]] | None" = None
    foreseen: Foreseen | None = None
    maker: FileMaker = field(init=False)
    is_split: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_split = len(self.partitioning.specs) > 1
        self.maker = FileMaker(self.folder, self.schemas, self.partitioning, self._check_mapping)

    def close(self) -> None:
        """Wait for what is being read ahead; whatever comes of it, nobody wants it."""
        if self.ahead is not None:
            (_, fetching), self.ahead = self.ahead, None
            fetching.exception()

    def place(self, keys: Iterable[FileKey]) -> None:
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
            self.place([key])
        return self.spec_ids[key]

    def get(self, key: FileKey) -> AnyFile:
        """Return one file for a manifest."""
        if key < 0:
            return self.memory.derived_files[key]
        if key not in self.memory.data_files:
            self.prepare([key])
        return self.memory.data_files[key]

    def prepare(self, keys: Iterable[FileKey], following: Iterable[FileKey] = ()) -> None:
        """Have these files in memory, reading all that are missing in one go, and begin to read those wanted next."""
        wanted = sorted({key for key in keys if key >= 0})
        missing = self._missing(wanted)
        self._make_room(wanted, len(missing))
        parts = list(_slices(missing, self.most_at_once))
        after = self._missing(sorted(set(following)))[: self.most_at_once]
        for part, next_part in zip(parts, [*parts[1:], after], strict=False):
            fetched = self._fetch_or_await(part)
            self._fetch_ahead(next_part)
            for some in fetched:
                self._take(some)

    def _missing(self, keys: Sequence[FileKey]) -> list[FileKey]:
        return [key for key in keys if key >= 0 and key not in self.memory.data_files]

    def _fetch_ahead(self, part: Sequence[int]) -> None:
        if self.ahead is None and len(part) > FEW:
            with_one_thread = ThreadPoolExecutor(1, "read-ahead")
            self.ahead = part, with_one_thread.submit(self._fetch, part)
            with_one_thread.shutdown(wait=False)

    def _fetch_or_await(self, part: Sequence[int]) -> list[Fetched]:
        if self.ahead is None or self.ahead[0] != part:
            self.close()
            return self._fetch(part)
        (_, fetching), self.ahead = self.ahead, None
        return fetching.result()

    def _fetch(self, part: Sequence[int]) -> list[Fetched]:
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

    def _fetch_stats(self, rows: Sequence[DataFileRow], notes: Mapping[int, FileNote]) -> Fetched:
        plain = sorted((row for row in rows if row.data_file_id not in notes), key=lambda row: row.data_file_id)
        many = plain if len(plain) > FEW else []
        few = [row for row in rows if row.data_file_id in notes] if many else rows
        stats = self._read_stats(few)
        packed = read_packed_column_stats(self.conn, self.table_id, [row.data_file_id for row in many]) if many else None
        return Fetched(notes, few, stats, many, packed)

    @property
    def most_at_once(self) -> int:
        """How many files are prepared together at best."""
        return max(1, SLICE_COLUMNS // self._width())

    def _make_room(self, wanted: Sequence[FileKey], count: int) -> None:
        """Forget the files used longest ago, but none that is wanted."""
        files, most = self.memory.data_files, REMEMBERED_COLUMNS // self._width()
        if len(files) + count <= most:
            return
        for key in wanted:
            if key in files:
                files.move_to_end(key)
        for _ in range(min(len(files) + count - most, len(files) + count - len(wanted))):
            files.popitem(last=False)

    def _width(self) -> int:
        return max(10, len(self.maker.leaf_types(self.schemas.current)))

    def _take(self, fetched: Fetched) -> None:
        """Take files of one schema in, a few value by value, many column by column."""
        stats: dict[int, list[ColumnStatsRow]] = {row.data_file_id: [] for row in fetched.few}
        for found in fetched.stats:
            stats[found.data_file_id].append(found)
        for row in fetched.few:
            note = fetched.notes.get(row.data_file_id)
            self.memory.data_files[row.data_file_id] = self.maker.make(row, note, stats[row.data_file_id])
            if note is not None and note.sequence_number is not None:
                self.memory.told_numbers[row.data_file_id] = note.sequence_number
        if fetched.packed is not None:
            encoded = self.maker.make_many(fetched.many, fetched.packed)
            self.memory.data_files.update(zip((row.data_file_id for row in fetched.many), encoded, strict=True))

    def _check_mapping(self, row: DataFileRow, uri: str, spec: PublishedSpec) -> None:
        """Refuse an added file that Iceberg would read otherwise than DuckLake; each is looked into once."""
        if row.mapping_id is None or row.data_file_id in self.memory.checked_files:
            return
        in_path = self.mapping.hive_columns.get(row.mapping_id, frozenset())
        check_hive_columns(row, in_path, spec, self.partitioning, self.schemas.at(row.begin_snapshot))
        columns = FileColumns(*read_columns(self.objects.open(uri, row.file_size_bytes)))
        check_mapped_file(row.path, row.mapping_id, columns, self.mapping)
        self.breaks_vectors |= breaks_vectors(columns, self.mapping.by_mapping.get(row.mapping_id, {}), self.mapping.types)
        self.memory.checked_files.add(row.data_file_id)


def _slices(keys: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(keys), size):
        yield keys[start : start + size]
