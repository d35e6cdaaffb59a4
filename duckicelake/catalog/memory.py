"""What is remembered of one table between two loads. Everything here can be derived again."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.read_table import Since
from duckicelake.lake.rows import Position
from duckicelake.store.rewritten import Embedded
from duckicelake.translate.manifests import Shelves
from duckicelake.translate.partitions import PublishedSpec
from duckicelake.translate.summaries import Totals
from duckicelake.translate.visibility import FileKey, Identity, Longs, Visibility


@dataclass(frozen=True, slots=True)
class Published:
    """A state that has its numbers and whose objects are all there. `encoded` is the metadata file."""

    position: Position
    metadata: TableMetadata
    metadata_location: str
    encoded: bytes


@dataclass(frozen=True, slots=True)
class Folded:
    """A history as far as it has been folded into manifests, to go on from when only newer snapshots follow."""

    since: Since
    change_id: int
    oldest_row: int
    specs: tuple[PublishedSpec, ...]
    format_version: int
    name_mapping: str | None
    shelves: Shelves
    written: Mapping[tuple[int, int], ManifestFile]
    totals: Totals
    snapshots: tuple[Snapshot, ...]
    visibility: Mapping[FileKey, Visibility]


@dataclass(slots=True)
class TableMemory:
    """One table's; `lock` is held while the table is published, so that one thread does the work for all."""

    lock: Lock = field(default_factory=Lock)
    published: Published | None = None
    folded: Folded | None = None
    deleted_rows: dict[int, tuple[Longs, Longs | None]] = field(default_factory=dict[int, tuple[Longs, Longs | None]])
    embedded: dict[int, Embedded] = field(default_factory=dict[int, Embedded])
    derived_rows: dict[Identity, DataFile] = field(default_factory=dict[Identity, DataFile])
    derived_files: dict[FileKey, DataFile] = field(default_factory=dict[FileKey, DataFile])
    delete_files: dict[tuple[str, str], DataFile] = field(default_factory=dict[tuple[str, str], DataFile])
    data_files: OrderedDict[FileKey, DataFile] = field(default_factory=OrderedDict[FileKey, DataFile])
    checked_files: set[FileKey] = field(default_factory=set[FileKey])
    encoded_snapshots: dict[Snapshot, bytes] = field(default_factory=dict[Snapshot, bytes])
    known_uris: set[str] | None = None
