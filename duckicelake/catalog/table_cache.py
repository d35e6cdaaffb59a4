"""The caches of published tables, and the queue of objects to be written. The caches only save work: every value can be derived again.

What a server knows of a table is one `CachedTable`, which is replaced whole when a load or a commit has published a new state, under the
table's lock. `FileCache` has facts that no later state changes: what files hold, and which objects are in the store. Worker threads of one
server process, and the object monitor's thread, share the caches; only `TableCaches.is_contended` is called on the event loop.

The queue sends full batches in a thread, and keeps those for which the store has no time in a temporary file. Up to about 32 MiB that
only hidden snapshots reference stay in memory until something that clients see references them.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import islice
from os import SEEK_END
from tempfile import TemporaryFile
from threading import Lock
from time import monotonic
from typing import IO, cast

from duckicelake.errors import Unsupported
from duckicelake.iceberg.manifest import AnyFile, DataFile
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.metadata import EncodedHistory, TableMetadata
from duckicelake.iceberg.snapshots import Snapshots
from duckicelake.lake.read_table import LastRead
from duckicelake.lake.rows import NullableRow, Position, TableState
from duckicelake.lake.writing.lookups import ReplayCheck
from duckicelake.store.derived_files import EmbeddedLineage
from duckicelake.store.objects import Objects
from duckicelake.store.vending import CredentialScope
from duckicelake.translate.files import LeafTypes
from duckicelake.translate.manifests import ManifestSets
from duckicelake.translate.name_mapping import NameMapping
from duckicelake.translate.partitions import PublishedSpec
from duckicelake.translate.schemas import Schemas
from duckicelake.translate.summaries import Totals
from duckicelake.translate.visibility import FileKey, Identity, Longs, Visibility

FLUSH_BYTES = 32 * 1024 * 1024
FLUSH_COUNT = 512


@dataclass(frozen=True, slots=True)
class HeldObject:
    """An object that no visible object names yet, and the URIs of the held objects that it names itself."""

    content: bytes
    names: Sequence[str] = ()


@dataclass(slots=True)
class UploadQueue:
    """Collect objects and write those that the store does not have yet, one batch after the other in a thread of its own.

    Adding does not wait for the store: batches that are full before the one before them is written lie in a temporary file until `flush`.
    So a store that is slow does not keep the transaction open in which the objects are made. Where no temporary file can be written, adding
    does wait for the store.
    `known_uris` grows with every batch that is written. `held` are objects that nothing visible to clients names. They stay in memory
    until something visible names them, because a clean-up would remove unreferenced objects from the store.
    """

    objects: Objects
    known_uris: set[str]
    waiting: dict[str, bytes] = field(default_factory=dict[str, bytes])
    waiting_bytes: int = 0
    sent: dict[str, bytes] = field(default_factory=dict[str, bytes])
    held: dict[str, HeldObject] = field(default_factory=dict[str, HeldObject])
    is_holding: bool = False
    held_bytes: int = 0
    spooled: deque[Sequence[tuple[str, int]]] = field(default_factory=deque[Sequence[tuple[str, int]]])
    """Full batches in the temporary file, in its order: URIs and lengths."""
    _spool: IO[bytes] | None = None
    _spool_start: int = 0
    _spooled_uris: set[str] = field(default_factory=set[str])
    _upload: "Future[set[str]] | None" = None

    def add(self, uri: str, content: bytes, names: Sequence[str] = ()) -> None:
        """Add an object; a full batch is sent as soon as the batch before is written. `names` are the URIs of objects that it names.

        Raises: what `Objects.put_many_new` raises, about an earlier batch
        """
        if uri in self.known_uris or uri in self.waiting or uri in self.sent or uri in self._spooled_uris:
            return
        if self.is_holding and self.held_bytes < FLUSH_BYTES:
            self.held.setdefault(uri, HeldObject(content, [name for name in names if name in self.held]))
            self.held_bytes += len(content)
            return
        self.waiting[uri] = content
        self.waiting_bytes += len(content)
        if self.waiting_bytes >= FLUSH_BYTES or len(self.waiting) >= FLUSH_COUNT:
            self._send_full()

    @contextmanager
    def holding(self, *, is_hidden: bool) -> Generator[None]:
        """Within the block, hold the objects that are added if only hidden snapshots name them, up to about `FLUSH_BYTES`."""
        self.is_holding = is_hidden
        try:
            yield
        finally:
            self.is_holding = False

    def release(self, uris: Iterable[str]) -> None:
        """Add held objects, and the held objects that they name, to the next batch, because a visible object names them now."""
        if self.is_holding or not self.held:
            return
        for uri in uris:
            held = self.held.pop(uri, None)
            if held is not None:
                self.add(uri, held.content)
                self.release(held.names)

    def list_held(self, uris: Iterable[str]) -> dict[str, HeldObject]:
        """Return the held objects with these URIs, and the held objects that they name."""
        found = {uri: self.held[uri] for uri in uris if uri in self.held}
        return found | {name: self.held[name] for held in found.values() for name in held.names if name in self.held}

    def flush(self) -> None:
        """Write everything that is waiting; afterwards all of it is in the store."""
        self._send_spooled()
        if self.waiting:
            self.objects.put_many_new(list(self.waiting.items()))
            self.known_uris.update(self.waiting)
            self.waiting, self.waiting_bytes = {}, 0

    def _send_full(self) -> None:
        """Send the oldest full batch if no other one is being sent; else write the new one to the temporary file."""
        full, self.waiting, self.waiting_bytes = self.waiting, {}, 0
        is_idle = self._upload is None or self._upload.done()
        if is_idle and not self.spooled:
            self._wait()
            self._send(full)
        elif not self._spool_batch(full):
            self._send_spooled()
            self._send(full)
        elif is_idle:
            self._wait()
            self._send(self._take_spooled())

    def _spool_batch(self, batch: Mapping[str, bytes]) -> bool:
        """Write a full batch to the temporary file; return False if the disk is full or read-only. The file is to be emptied then."""
        try:
            # A buffer would keep what did not fit, and fail again when the earlier batches are read.
            self._spool = self._spool or TemporaryFile(buffering=0)
            self._spool.seek(0, SEEK_END)
            for content in batch.values():
                rest = memoryview(content)
                while rest:
                    rest = rest[self._spool.write(rest) :]
        except OSError:
            return False
        self.spooled.append([(uri, len(content)) for uri, content in batch.items()])
        self._spooled_uris.update(batch)
        return True

    def _send_spooled(self) -> None:
        """Write the batch that is being sent and those of the temporary file, which is empty afterwards."""
        self._wait()
        while self.spooled:
            self._send(self._take_spooled())
            self._wait()
        if self._spool is not None:
            self._spool.close()
        self._spool, self._spool_start = None, 0

    def _take_spooled(self) -> dict[str, bytes]:
        """Return the oldest batch of the temporary file."""
        assert self._spool is not None
        self._spool.seek(self._spool_start)
        batch = {uri: self._spool.read(length) for uri, length in self.spooled.popleft()}
        self._spool_start = self._spool.tell()
        self._spooled_uris.difference_update(batch)
        return batch

    def _send(self, batch: dict[str, bytes]) -> None:
        self.sent = batch
        with_one_thread = ThreadPoolExecutor(1, "uploads")
        self._upload = with_one_thread.submit(self.objects.put_many_new, list(self.sent.items()))
        with_one_thread.shutdown(wait=False)

    def _wait(self) -> None:
        """Wait for the batch that is being sent.

        Raises: what `Objects.put_many_new` raises
        """
        if self._upload is not None:
            arrival, self._upload = self._upload, None
            arrival.result()
            self.known_uris.update(self.sent)
            self.sent = {}


NewestList = tuple[str, Sequence[ManifestFile]]
"""A manifest list that was written, by its URI, and what it names."""
NO_LIST: NewestList = ("", ())


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A state that has its numbers and whose objects are all there. `encoded` is the metadata file, `digest` identifies it.

    `state` is what was read of the table, with the numbers, without what lies in its history and files. `newest_list` was
    written last. `is_unanswered`: a client's commit made the state and had not written the file, so it was not answered either.
    """

    position: Position
    metadata: TableMetadata
    metadata_location: str
    encoded: bytes
    digest: bytes
    state: TableState
    newest_list: NewestList
    is_unanswered: bool = False


@dataclass(frozen=True, slots=True)
class SchemaCache:
    """Values derived from a table's columns and the names in its files, valid as long as all that they are made of, `source`."""

    source: tuple[object, ...]
    schemas: Schemas
    mapping: NameMapping
    leaf_types: dict[int, LeafTypes] = field(default_factory=dict[int, LeafTypes])


@dataclass(frozen=True, slots=True)
class BuiltHistory:
    """A history as far as it has been folded into manifests, to go on from when only newer snapshots follow.

    `held` are objects that the next snapshot may name, and nothing names yet. `required` are the columns whose NULLs were looked for,
    in all files. Going on from it changes `manifest_sets`, so it is used once.
    """

    since: LastRead
    history_id: int
    oldest_row: int
    lacked: Sequence[int]
    too_large: Sequence[int]
    required: frozenset[int]
    nullable: Sequence[NullableRow]
    specs: tuple[PublishedSpec, ...]
    format_version: int
    hidden: frozenset[int]
    schema_ids: Sequence[int]
    name_mapping: str | None
    manifest_sets: ManifestSets
    written: Mapping[tuple[int, int], ManifestFile]
    held: Mapping[str, HeldObject]
    totals: Totals
    snapshots: Snapshots
    visibility: Mapping[FileKey, Visibility]
    has_unproven: bool
    breaks_vectors: bool
    newest_list: NewestList
    schema_cache: SchemaCache


@dataclass(frozen=True, slots=True)
class CachedName:
    """The table that had a name at the last commit, and the base of commits to it."""

    name: tuple[str, str]
    past: ReplayCheck


@dataclass(frozen=True, slots=True)
class CachedRefusal:
    """The reason why the state of a table at a position is not published."""

    position: Position
    error: Unsupported


@dataclass(frozen=True, slots=True)
class CachedTable:
    """The state of a table that was published last, or the reason why the newest one is not, and the history to go on from.

    `repair_id` is the newest repair of an operator that it includes, None before the first load. `hint_etag` is that of the version hint.
    """

    published: PublishedTable | None = None
    refusal: CachedRefusal | None = None
    built: BuiltHistory | None = None
    repair_id: int | None = None
    hint_etag: str | None = None


@dataclass(slots=True)
class FileCache:
    """Facts about the files and objects of a table at one location, which are true of all its states. Used under the table's lock.

    `known_uris` are objects that are in the store, None before they were listed; the object monitor copies them without the lock.
    """

    location: str | None = None
    known_uris: set[str] | None = None
    deleted_rows: dict[int, tuple[Longs, Longs | None]] = field(default_factory=dict[int, tuple[Longs, Longs | None]])
    embedded: dict[int, EmbeddedLineage] = field(default_factory=dict[int, EmbeddedLineage])
    derived_rows: dict[Identity, DataFile] = field(default_factory=dict[Identity, DataFile])
    derived_files: dict[FileKey, DataFile] = field(default_factory=dict[FileKey, DataFile])
    delete_files: dict[tuple[str, str], DataFile] = field(default_factory=dict[tuple[str, str], DataFile])
    data_files: OrderedDict[FileKey, AnyFile] = field(default_factory=OrderedDict[FileKey, AnyFile])
    sequence_numbers: dict[FileKey, int] = field(default_factory=dict[FileKey, int])
    checked_files: set[FileKey] = field(default_factory=set[FileKey])
    rewritten_files: set[FileKey] = field(default_factory=set[FileKey])
    encoded: EncodedHistory = field(default_factory=EncodedHistory)

    def forget_derived(self) -> None:
        """Forget the objects that were made: those of a load that failed may never have reached the store."""
        for key in self.rewritten_files:
            self.data_files.pop(key, None)
        for made in (self.derived_rows, self.derived_files, self.delete_files, self.embedded, self.rewritten_files):
            made.clear()


@dataclass(slots=True)
class TableCache:
    """The cache of one table. `lock` is held while the table is published, so that one thread does the work for all.

    `is_invalid`: `files` may hold what was never committed; threads that waited for the lock take a new cache.
    """

    lock: Lock = field(default_factory=Lock)
    table: CachedTable = CachedTable()
    files: FileCache = field(default_factory=FileCache)
    scope: tuple[Position, CredentialScope] | None = None
    named: CachedName | None = None
    is_invalid: bool = False

    def forget_missing(self, gone: Collection[str]) -> None:
        """Forget objects that are gone from the store, so that they are written again when they are made again."""
        files, built = self.files, self.table.built
        files.known_uris = None if files.known_uris is None else files.known_uris.difference(gone)
        derived = (file.file_path for made in (files.derived_rows, files.delete_files) for file in made.values())
        rewritten = (found.file_path for found in map(files.data_files.get, files.rewritten_files) if isinstance(found, DataFile))
        manifests = () if built is None else (manifest.manifest_path for manifest in built.written.values())
        if any(uri in gone for uri in (*derived, *rewritten, *manifests)):
            self.forget_written()

    def forget_written(self) -> None:
        """Forget the objects that were made, and the history that names them."""
        self.table = replace(self.table, built=None)
        self.files.forget_derived()


def count_cached(cache: TableCache) -> tuple[int, int]:
    """Return how many large and small items a table's cache holds; its size hardly changes while these numbers stay about the same."""
    files, published = cache.files, cache.table.published
    large = (files.deleted_rows, files.embedded, files.derived_rows, files.delete_files)
    encoded_bytes = 0 if published is None else len(published.encoded)
    return sum(map(len, large)), len(files.data_files) + len(files.known_uris or ()) + encoded_bytes // OBJECT_BYTES


SAMPLE = 2
OBJECT_BYTES = 64
"""About what a small object or an entry of a container takes."""


def estimate_bytes(value: object) -> int:
    """Return about how many bytes a cached value holds, from a few items of each large container.

    Only the order of magnitude counts: it decides which table is forgotten first.
    """
    if isinstance(value, bytes | bytearray | str):
        return OBJECT_BYTES + len(value)
    if isinstance(value, Mapping):
        return _estimate_many(cast("Mapping[object, object]", value).items(), len(cast("Mapping[object, object]", value)))
    if isinstance(value, list | tuple | set | frozenset):
        return _estimate_many(cast("Collection[object]", value), len(cast("Collection[object]", value)))
    if is_dataclass(value):
        return OBJECT_BYTES + sum(estimate_bytes(getattr(value, part.name)) for part in fields(value))
    return OBJECT_BYTES + int(getattr(value, "nbytes", 0))


def _estimate_many(items: Iterable[object], count: int) -> int:
    sample = [estimate_bytes(item) for item in islice(items, SAMPLE)]
    return OBJECT_BYTES + (sum(sample) * count // len(sample) if sample else 0)


GROWTH_BEFORE_ESTIMATE = 1.25
"""Growth of a table's cache after which its size is estimated again."""
SMALL_GROWTH = 256
"""The cache of a new table grows by that many items with every commit, and is small."""
NEVER_ESTIMATED = (-1, 0)
CONTENDED_S = 5.0
RECENT_SNAPSHOTS = 100
"""A cached table may be so far behind as the base of a commit: the check under the lock finds out if those snapshots changed it."""


@dataclass(frozen=True, slots=True)
class WarehouseLimits:
    """The limits of a server: tables and bytes in memory, seconds for one statement of Postgres."""

    tables: int = 1024
    memory_bytes: int = 1024 * 1024 * 1024
    postgres_timeout_s: float = 60.0


@dataclass(slots=True)
class TableCaches:
    """The caches of the most recently used tables. Safe to share between threads."""

    limits: WarehouseLimits = field(default_factory=WarehouseLimits)
    _by_table: OrderedDict[int, TableCache] = field(default_factory=OrderedDict[int, TableCache])
    _size_bytes: dict[int, int] = field(default_factory=dict[int, int])
    _parts: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    _by_name: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _races: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    _newest: int = 0
    _lock: Lock = field(default_factory=Lock)

    def note_race(self, name: tuple[str, str]) -> None:
        """Remember that another process changed a table while a commit to it was being made."""
        with self._lock:
            if len(self._races) >= self.limits.tables:
                self._races.clear()
            self._races[name] = monotonic() + CONTENDED_S

    def is_contended(self, name: tuple[str, str]) -> bool:
        """Return True if another process has recently changed a table during a commit of this one."""
        return self._races.get(name, 0.0) > monotonic()

    def of(self, table_id: int) -> TableCache:
        """Return the cache of a table, empty at first; the cache of the least recently used table is dropped."""
        with self._lock:
            cache = self._by_table.get(table_id)
            if cache is None:
                cache = self._by_table[table_id] = TableCache()
            self._by_table.move_to_end(table_id)
            self._forget_oldest()
            return cache

    def name(self, name: tuple[str, str], past: ReplayCheck) -> None:
        """Remember the table that a schema's name and a table's name stand for."""
        if past.current.table is None:
            return
        cache = self.of(past.current.table.table_id)
        with self._lock:
            if cache.named is not None:
                # Keep one spelling for each table: clients may write a name in any case.
                self._by_name.pop(cache.named.name, None)
            cache.named = CachedName(name, past)
            self._by_name[name] = past.current.table.table_id
            self._newest = max(self._newest, past.current.position.lake_snapshot_id)

    def find_named(self, name: tuple[str, str]) -> TableCache | None:
        """Return the cache of the table that a name stood for if the table was published recently, else None."""
        with self._lock:
            cache = self._by_table.get(self._by_name.get(name, -1))
            published = None if cache is None else cache.table.published
            if cache is None or published is None or cache.named is None or cache.named.name != name:
                return None
            position = published.position.lake_snapshot_id
            self._newest = max(self._newest, position)
            return cache if position > self._newest - RECENT_SNAPSHOTS else None

    def estimate_size(self, table_id: int, cache: TableCache) -> None:
        """Estimate the size of a table's cache, and drop caches of the least recently used tables if all together are too large.

        An estimate is expensive, so it is kept as long as the cache holds about as many items.
        """
        parts = count_cached(cache)
        large, small = self._parts.get(table_id, NEVER_ESTIMATED)
        if parts[0] == large and small <= parts[1] <= small * GROWTH_BEFORE_ESTIMATE + SMALL_GROWTH:
            return
        size_bytes = estimate_bytes(cache)
        with self._lock:
            if self._by_table.get(table_id) is cache:
                self._size_bytes[table_id], self._parts[table_id] = size_bytes, parts
                self._forget_oldest()

    def forget(self, table_id: int, cache: TableCache) -> None:
        """Drop this cache of a table."""
        with self._lock:
            if self._by_table.get(table_id) is cache:
                self._forget(table_id)

    def __len__(self) -> int:
        return len(self._by_table)

    def items(self) -> list[tuple[int, TableCache]]:
        """Return the caches by table id, the least recently used one first, without counting them as used."""
        with self._lock:
            return list(self._by_table.items())

    @property
    def size_bytes(self) -> int:
        """The estimated size of all caches."""
        return sum(self._size_bytes.values())

    def _forget_oldest(self) -> None:
        limits = self.limits
        while len(self._by_table) > 1 and (len(self._by_table) > limits.tables or self.size_bytes > limits.memory_bytes):
            self._forget(next(iter(self._by_table)))

    def _forget(self, table_id: int) -> None:
        cache = self._by_table.pop(table_id)
        if cache.named is not None:
            self._by_name.pop(cache.named.name, None)
        self._size_bytes.pop(table_id, None)
        self._parts.pop(table_id, None)
