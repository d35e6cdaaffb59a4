"""What is remembered of one table between two loads. Everything here can be derived again."""

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock

from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.lake.rows import Position
from duckicelake.translate.manifests import ManifestPlan
from duckicelake.translate.partitions import PublishedSpec
from duckicelake.translate.visibility import FileKey, Longs

DATA_FILES_MAX = 20_000

ManifestKey = tuple[ManifestPlan, str]
"""A plan and the digest of what it was written with: schema, spec and the paths of delete files."""


@dataclass(frozen=True, slots=True)
class Published:
    """A state that has its numbers and whose objects are all there."""

    position: Position
    metadata: TableMetadata
    metadata_location: str


@dataclass(slots=True)
class TableMemory:
    """One table's; `lock` is held while the table is published, so that one thread does the work for all."""

    lock: Lock = field(default_factory=Lock)
    published: Published | None = None
    deleted_rows: dict[int, tuple[Longs, Longs | None]] = field(default_factory=dict[int, tuple[Longs, Longs | None]])
    row_snapshot_ids: dict[int, Longs] = field(default_factory=dict[int, Longs])
    inlined_files: dict[FileKey, DataFile] = field(default_factory=dict[FileKey, DataFile])
    delete_files: dict[tuple[str, str], DataFile] = field(default_factory=dict[tuple[str, str], DataFile])
    specs: tuple[PublishedSpec, ...] = ()
    data_files: OrderedDict[FileKey, DataFile] = field(default_factory=OrderedDict[FileKey, DataFile])
    manifests: dict[ManifestKey, ManifestFile] = field(default_factory=dict[ManifestKey, ManifestFile])
    known_uris: set[str] | None = None

    def expect_specs(self, specs: tuple[PublishedSpec, ...]) -> None:
        """Forget the data files when the specs they were placed under are not these any more."""
        if specs != self.specs:
            self.data_files.clear()
            self.specs = specs
