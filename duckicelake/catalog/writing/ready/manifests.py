"""The manifests that a client wrote for its commit: fetched and decoded before any lock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from duckicelake.catalog.writing.places import Grounds
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.decoding.manifests import decode_manifest, decode_manifest_list
from duckicelake.iceberg.deletion_vector import decode_deletion_vector, positions_of
from duckicelake.iceberg.manifest import DELETED, DataFile, ManifestEntry, ManifestHeader
from duckicelake.iceberg.manifest_list import ManifestFile, inherit
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import read_position_deletes
from duckicelake.translate.visibility import Longs

MAX_LIST_BYTES = 64 * 1024 * 1024
MAX_MANIFEST_BYTES = 256 * 1024 * 1024
MAX_DELETES_BYTES = 256 * 1024 * 1024

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

    spec_id: int
    file: DataFile
    snapshot_id: int | None


def live_files(manifests: Iterable[OpenManifest]) -> list[LiveFile]:
    """Return the files that manifests do not remove."""
    return [
        LiveFile(manifest.header.spec.spec_id, entry.data_file, entry.snapshot_id)
        for manifest in manifests
        for entry in manifest.entries
        if entry.status != DELETED
    ]


@dataclass(slots=True)
class ManifestReader:
    """Reads each object of one request once. Only what lies in the table's own places is read: URIs are the client's words."""

    objects: Objects
    grounds: Grounds
    lists: dict[str, Sequence[ManifestFile]] = field(default_factory=dict[str, Sequence[ManifestFile]])
    manifests: dict[str, OpenManifest] = field(default_factory=dict[str, OpenManifest])
    deletes: dict[DeleteKey, Mapping[str, Longs]] = field(default_factory=dict["DeleteKey", Mapping[str, Longs]])

    def read_list(self, uri: str) -> Sequence[ManifestFile]:
        """Return the manifests that a manifest list names. Raises BadRequest when it is missing or malformed."""
        if uri not in self.lists:
            self.lists[uri] = decode_manifest_list(self._read_own(uri, MAX_LIST_BYTES), uri)
        return self.lists[uri]

    def read_manifest(self, file: ManifestFile) -> OpenManifest:
        """Return a manifest. Raises BadRequest when it is missing or malformed."""
        uri = file.manifest_path
        if uri not in self.manifests:
            header, entries = decode_manifest(self._read_own(uri, MAX_MANIFEST_BYTES), uri)
            self.manifests[uri] = OpenManifest(header, inherit(entries, file))
        return self.manifests[uri]

    def read_deletes(self, file: DataFile) -> Mapping[str, Longs]:
        """Return the deleted positions of a delete file by data file. Raises BadRequest when it is missing or malformed."""
        key = (file.file_path, file.content_offset)
        if key not in self.deletes:
            self.deletes[key] = self._decode_deletes(file)
        return self.deletes[key]

    def read_delete_file(self, uri: str) -> bytes:
        """Return a delete file as it is. Raises BadRequest when it is missing, too large or elsewhere."""
        if not self.grounds.may_hold_deletes(uri):
            raise BadRequest(
                f"{uri!r} does not lie in the table's location {self._where()}, nor beside its data; write delete files there."
            )
        return self._read(uri, MAX_DELETES_BYTES)

    def _decode_deletes(self, file: DataFile) -> Mapping[str, Longs]:
        content = self.read_delete_file(file.file_path)
        if file.file_format == "PUFFIN":
            return decode_vector(file, content)
        try:
            return read_position_deletes(content)
        except Unsupported as error:
            raise BadRequest(f"Cannot read delete file {file.file_path!r}: {error.message}") from error

    def _where(self) -> str:
        return " or ".join(repr(location) for location in self.grounds.locations)

    def _read_own(self, uri: str, most_bytes: int) -> bytes:
        if not self.grounds.is_own(uri):
            raise BadRequest(f"{uri!r} does not lie in the table's location {self._where()}; write manifests there.")
        return self._read(uri, most_bytes)

    def _read(self, uri: str, most_bytes: int) -> bytes:
        try:
            size = self.objects.size(uri)
            if size > most_bytes:
                raise BadRequest(f"{uri!r} has {size} bytes, more than the {most_bytes} that are read.")
            return self.objects.read(uri)
        except NotFound as error:
            raise BadRequest(f"{uri!r} is missing; write it before the commit.") from error
        except Unsupported as error:
            raise BadRequest(error.message) from error


def decode_vector(file: DataFile, content: bytes) -> Mapping[str, Longs]:
    """Return the positions of one deletion vector of a Puffin file, as the manifest says where it lies."""
    start, length, target = file.content_offset, file.content_size_in_bytes, file.referenced_data_file
    if start is None or length is None or target is None or start < 0 or length < 0 or start + length > len(content):
        raise BadRequest(f"Deletion vector in {file.file_path!r}: the manifest does not say where it lies and which file it is of.")
    positions = positions_of(decode_deletion_vector(content[start : start + length]))
    if len(positions) != file.record_count:
        raise BadRequest(f"Deletion vector in {file.file_path!r} marks {len(positions)} rows, and the manifest says {file.record_count}.")
    return {target: positions}
