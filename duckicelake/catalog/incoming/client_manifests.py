"""The manifests and delete files that a client wrote, for a commit or for a table to be registered: read and decoded before any lock.

`commits.prepare` makes one `ManifestReader` for each try of a request, `external_metadata` one for a registration, on a worker thread. It
reads the object store, and only the allowed locations; of a commit, `AllowedLocations` may ask Postgres about a folder of delete files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from duckicelake.catalog.location_rules import AllowedLocations
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.avro.manifest_decoding import DEFAULT_LIMITS, decode_manifest, decode_manifest_list
from duckicelake.iceberg.avro.reader import UNLIMITED, ReadBudget, ReaderPool
from duckicelake.iceberg.manifest import DELETED, DataFile, ManifestEntry, ManifestHeader
from duckicelake.iceberg.manifest_list import ManifestFile, inherit_from_list
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.puffin import decode_deletion_vector, to_positions
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import read_position_deletes
from duckicelake.translate.visibility import Longs

MAX_LIST_BYTES = 64 * 1024 * 1024
MAX_MANIFEST_BYTES = 256 * 1024 * 1024
MAX_DELETES_BYTES = 256 * 1024 * 1024
MAX_DECODED_BYTES = 1024 * 1024 * 1024
MAX_ITEMS = 16_000_000
MAX_ENTRIES = 1_000_000
MAX_POSITIONS = 32_000_000

DeleteKey = tuple[str, int | None]
"""A delete file by location, and a vector in it by its offset."""


Manifests = Mapping[str, ManifestFile]
"""A snapshot's manifests by path."""


@dataclass(frozen=True, slots=True)
class OpenManifest:
    """A manifest's header, and its entries with what they inherit from the list."""

    header: ManifestHeader
    entries: Sequence[ManifestEntry]


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of a snapshot, the spec of its manifest, and the snapshot that added it."""

    spec: PartitionSpec
    file: DataFile
    snapshot_id: int | None

    @property
    def spec_id(self) -> int:
        """The id of its manifest's spec."""
        return self.spec.spec_id


def live_files(manifests: Iterable[OpenManifest]) -> list[LiveFile]:
    """Return the files that manifests do not remove."""
    return [
        LiveFile(manifest.header.spec, entry.data_file, entry.snapshot_id)
        for manifest in manifests
        for entry in manifest.entries
        if entry.status != DELETED
    ]


@dataclass(frozen=True, slots=True)
class ClientManifests:
    """The manifest lists and manifests that were read for a request, which never change, and the locations that were allowed then."""

    allowed: AllowedLocations
    lists: Mapping[str, Sequence[ManifestFile]]
    manifests: Mapping[str, OpenManifest]


@dataclass(slots=True)
class ManifestReader:
    """Read each object of one request once. Only objects in the table's own locations are read, because the client names the URIs.

    All manifests of clients share one budget, and so do the rows that delete files name.
    `published`: paths of the manifests of main's current snapshot, which are read without limits.
    """

    objects: Objects
    allowed: AllowedLocations
    published: set[str] = field(default_factory=set[str])
    budget: ReadBudget = field(default_factory=lambda: ReadBudget(MAX_DECODED_BYTES, MAX_ITEMS))
    entries_left: int = MAX_ENTRIES
    positions_left: int = MAX_POSITIONS
    lists: dict[str, Sequence[ManifestFile]] = field(default_factory=dict[str, Sequence[ManifestFile]])
    manifests: dict[str, OpenManifest] = field(default_factory=dict[str, OpenManifest])
    readers: ReaderPool = field(default_factory=ReaderPool)
    deletes: dict[DeleteKey, Mapping[str, Longs]] = field(default_factory=dict["DeleteKey", Mapping[str, Longs]])

    def reuse(self, known: ClientManifests) -> None:
        """Reuse the manifests that an earlier attempt at the request read, unless the allowed locations have changed."""
        if known.allowed == self.allowed:
            self.lists.update(known.lists)
            self.manifests.update(known.manifests)

    def list_read(self) -> ClientManifests:
        """Return the manifests that were read so far, for another attempt at the same request."""
        return ClientManifests(self.allowed, self.lists, self.manifests)

    def read_list(self, uri: str) -> Sequence[ManifestFile]:
        """Return the manifests that a manifest list names. Raises BadRequest when it is missing or malformed."""
        if uri not in self.lists:
            self.lists[uri] = decode_manifest_list(self._read_own(uri, MAX_LIST_BYTES), uri, readers=self.readers)
        return self.lists[uri]

    def read_manifest(self, file: ManifestFile) -> OpenManifest:
        """Return a manifest. Raises BadRequest when it is missing or malformed."""
        uri = file.manifest_path
        if uri not in self.manifests:
            self.manifests[uri] = self._open_manifest(file)
        return self.manifests[uri]

    def _open_manifest(self, file: ManifestFile) -> OpenManifest:
        content, uri = self._read_own(file.manifest_path, MAX_MANIFEST_BYTES), file.manifest_path
        is_ours = uri in self.published
        limits = (UNLIMITED, None) if is_ours else (DEFAULT_LIMITS, self.budget)
        header, entries = decode_manifest(content, file, *limits, self.readers)
        self.entries_left -= 0 if is_ours else len(entries)
        if self.entries_left < 0:
            raise BadRequest(f"The manifests of the request hold more than {MAX_ENTRIES} entries; commit in smaller steps.")
        return OpenManifest(header, inherit_from_list(entries, file))

    def read_deletes(self, file: DataFile) -> Mapping[str, Longs]:
        """Return the deleted positions of a delete file by data file. Raises BadRequest when it is missing or malformed."""
        key = (file.file_path, file.content_offset)
        if key not in self.deletes:
            self.deletes[key] = self._decode_deletes(file)
        return self.deletes[key]

    def read_delete_file(self, uri: str) -> bytes:
        """Return the bytes of a delete file. Raises BadRequest when it is missing, too large, or outside the allowed locations."""
        if not self.allowed.may_hold_deletes(uri):
            raise BadRequest(
                f"{uri!r} does not lie in the table's location {self._where()}, nor beside its data; write delete files there."
            )
        return self._read(uri, MAX_DELETES_BYTES)

    def _decode_deletes(self, file: DataFile) -> Mapping[str, Longs]:
        content = self.read_delete_file(file.file_path)
        if file.file_format == "PUFFIN":
            found = decode_vector(file, content, self.positions_left)
        else:
            try:
                found = read_position_deletes(content, self.positions_left)
            except Unsupported as error:
                raise BadRequest(f"Cannot read delete file {file.file_path!r}: {error.message}") from error
        self.positions_left -= sum(map(len, found.values()))
        return found

    def count_positions(self, uri: str, count: int) -> None:
        """Count the rows that a delete file deletes. Raises BadRequest when a request deletes too many rows."""
        self.positions_left -= count
        if self.positions_left < 0:
            raise BadRequest(f"With {uri!r} more than {MAX_POSITIONS} rows are deleted in one request; delete in smaller commits.")

    def _where(self) -> str:
        return " or ".join(repr(location) for location in self.allowed.locations)

    def _read_own(self, uri: str, most_bytes: int) -> bytes:
        if not self.allowed.is_own(uri):
            raise BadRequest(f"{uri!r} does not lie in the table's location {self._where()}; write manifests there.")
        return self._read(uri, most_bytes)

    def _read(self, uri: str, most_bytes: int) -> bytes:
        try:
            return self.objects.read_small(uri, most_bytes)
        except NotFound as error:
            raise BadRequest(f"{uri!r} is missing; write it before the commit.") from error
        except Unsupported as error:
            raise BadRequest(error.message) from error


def decode_vector(file: DataFile, content: bytes, most_positions: int) -> Mapping[str, Longs]:
    """Return the positions of one deletion vector of a Puffin file, as the manifest says where it lies.

    Raises: BadRequest: it lies elsewhere, is damaged, or marks other rows or more than it may: a few bytes can mark billions
    """
    start, length, target = file.content_offset, file.content_size_in_bytes, file.referenced_data_file
    if start is None or length is None or target is None or start < 0 or length < 0 or start + length > len(content):
        raise BadRequest(f"Deletion vector in {file.file_path!r}: the manifest does not say where it lies and which file it is of.")
    vector = decode_deletion_vector(content[start : start + length])
    if len(vector) != file.record_count:
        raise BadRequest(f"Deletion vector in {file.file_path!r} marks {len(vector)} rows, and the manifest says {file.record_count}.")
    if len(vector) > most_positions:
        raise BadRequest(
            f"Deletion vector in {file.file_path!r} marks {len(vector)} rows; with those of the request's other deletes that is more "
            f"than the {MAX_POSITIONS} taken at once. Delete in smaller steps, or rewrite the data files."
        )
    return {target: to_positions(vector)}
