"""What is remembered of one table between two loads. Everything here can be derived again."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import islice
from threading import Lock
from typing import cast

from duckicelake.catalog.adopting.offers import Offer
from duckicelake.catalog.outbox import Held
from duckicelake.errors import Unsupported
from duckicelake.iceberg.manifest import AnyFile, DataFile
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.metadata import EncodedHistory, TableMetadata
from duckicelake.iceberg.snapshots import Snapshot, Snapshots
from duckicelake.lake.read_table import Since
from duckicelake.lake.rows import NullableRow, Position, TableState
from duckicelake.lake.writing.lookups import Past
from duckicelake.store.keys.policy import KeyScope
from duckicelake.store.rewritten import Embedded
from duckicelake.translate.files import LeafTypes
from duckicelake.translate.manifests import Shelves
from duckicelake.translate.partitions import PublishedSpec
from duckicelake.translate.schemas import Schemas
from duckicelake.translate.shape.name_mapping import NameMapping
from duckicelake.translate.summaries import Totals
from duckicelake.translate.visibility import FileKey, Identity, Longs, Visibility

NewestList = tuple[str, Sequence[ManifestFile]]
"""A manifest list that was written, by its URI, and what it names."""
NO_LIST: NewestList = ("", ())


@dataclass(frozen=True, slots=True)
class Published:
    """A state that has its numbers and whose objects are all there. `encoded` is the metadata file, `digest` tells it from others.

    `state` is what was read of the table, with the numbers, without what lies in its history and files. `newest_list` was
    written last.
    """

    position: Position
    metadata: TableMetadata
    metadata_location: str
    encoded: bytes
    digest: bytes
    state: TableState
    newest_list: NewestList


@dataclass(frozen=True, slots=True)
class Folded:
    """A history as far as it has been folded into manifests, to go on from when only newer snapshots follow.

    `held` are objects that the next snapshot may name, and nothing names yet. `required` are the columns whose NULLs were looked for,
    in all files.
    """

    since: Since
    history_id: int
    oldest_row: int
    lacked: Sequence[int]
    required: frozenset[int]
    nullable: Sequence[NullableRow]
    specs: tuple[PublishedSpec, ...]
    format_version: int
    hidden: frozenset[int]
    schema_ids: Sequence[int]
    name_mapping: str | None
    shelves: Shelves
    written: Mapping[tuple[int, int], ManifestFile]
    held: Mapping[str, Held]
    totals: Totals
    snapshots: Snapshots
    visibility: Mapping[FileKey, Visibility]
    aliases: Mapping[int, Snapshot]
    has_unproven: bool
    breaks_vectors: bool


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stood for when a commit looked last: a table, and what commits to it build on."""

    name: tuple[str, str]
    past: Past


@dataclass(frozen=True, slots=True)
class BySchemas:
    """What follows from a table's columns and the names in its files, and holds as long as its `schemas` do."""

    schemas: Schemas
    mapping: NameMapping
    leaf_types: dict[int, LeafTypes] = field(default_factory=dict[int, LeafTypes])


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the state of a table at a position is not published."""

    position: Position
    error: Unsupported


@dataclass(slots=True)
class TableMemory:
    """One table's; `lock` is held while the table is published, so that one thread does the work for all.

    `is_lost`: whoever waited for it takes another one. `offer`: what somebody offers to the load under way.
    """

    lock: Lock = field(default_factory=Lock)
    published: Published | None = None
    refusal: Refusal | None = None
    repair_id: int | None = None
    scope: tuple[Position, KeyScope] | None = None
    folded: Folded | None = None
    deleted_rows: dict[int, tuple[Longs, Longs | None]] = field(default_factory=dict[int, tuple[Longs, Longs | None]])
    embedded: dict[int, Embedded] = field(default_factory=dict[int, Embedded])
    derived_rows: dict[Identity, DataFile] = field(default_factory=dict[Identity, DataFile])
    derived_files: dict[FileKey, DataFile] = field(default_factory=dict[FileKey, DataFile])
    delete_files: dict[tuple[str, str], DataFile] = field(default_factory=dict[tuple[str, str], DataFile])
    data_files: OrderedDict[FileKey, AnyFile] = field(default_factory=OrderedDict[FileKey, AnyFile])
    told_numbers: dict[FileKey, int] = field(default_factory=dict[FileKey, int])
    checked_files: set[FileKey] = field(default_factory=set[FileKey])
    schemas: tuple[tuple[object, ...], Schemas] | None = None
    by_schemas: BySchemas | None = None
    history: EncodedHistory = field(default_factory=EncodedHistory)
    known_uris: set[str] | None = None
    newest_list: NewestList = NO_LIST
    location: str | None = None
    named: Named | None = None
    hint_etag: str | None = None
    is_lost: bool = False
    offer: Offer | None = None

    def forget_gone(self, gone: Collection[str]) -> None:
        """Forget objects that the store does not have any more: what is made of them again is written again."""
        self.known_uris = None if self.known_uris is None else self.known_uris.difference(gone)
        derived = (file.file_path for made in (self.derived_rows, self.delete_files) for file in made.values())
        manifests = () if self.folded is None else (manifest.manifest_path for manifest in self.folded.written.values())
        if any(uri in gone for uri in (*derived, *manifests)):
            self.forget_made()

    def forget_made(self) -> None:
        """Forget the objects that were made: those of a load that failed may never have reached the store."""
        self.folded = None
        self.newest_list = NO_LIST
        for made in (self.derived_rows, self.derived_files, self.delete_files, self.embedded):
            made.clear()


def count_parts(memory: TableMemory) -> tuple[int, int]:
    """Return how many large and small things a table's memory holds: as long as these stay about the same, so does its size."""
    large = (memory.deleted_rows, memory.embedded, memory.derived_rows, memory.delete_files)
    encoded_bytes = 0 if memory.published is None else len(memory.published.encoded)
    return sum(map(len, large)), len(memory.data_files) + len(memory.known_uris or ()) + encoded_bytes // OBJECT_BYTES


SAMPLE = 2
OBJECT_BYTES = 64
"""About what a small object or an entry of a container takes."""


def estimate_bytes(value: object) -> int:
    """Return about how many bytes a remembered value holds, from a few items of each large container.

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
