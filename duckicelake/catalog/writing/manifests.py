"""The manifests that a client wrote for its commit: fetched and decoded before any lock."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.decoding.manifests import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import ManifestEntry, ManifestHeader
from duckicelake.iceberg.manifest_list import ManifestFile, inherit
from duckicelake.store.objects import Objects

MAX_LIST_BYTES = 64 * 1024 * 1024
MAX_MANIFEST_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OpenManifest:
    """A manifest's header, and its entries with what they inherit from the list."""

    header: ManifestHeader
    entries: Sequence[ManifestEntry]


@dataclass(slots=True)
class ManifestReader:
    """Reads each object of one request once. Only what lies under `location` is read: URIs are the client's words."""

    objects: Objects
    location: str
    lists: dict[str, Sequence[ManifestFile]] = field(default_factory=dict[str, Sequence[ManifestFile]])
    manifests: dict[str, OpenManifest] = field(default_factory=dict[str, OpenManifest])

    def read_list(self, uri: str) -> Sequence[ManifestFile]:
        """Return the manifests that a manifest list names. Raises BadRequest when it is missing or malformed."""
        if uri not in self.lists:
            self.lists[uri] = decode_manifest_list(self._read(uri, MAX_LIST_BYTES), uri)
        return self.lists[uri]

    def read_manifest(self, file: ManifestFile) -> OpenManifest:
        """Return a manifest. Raises BadRequest when it is missing or malformed."""
        uri = file.manifest_path
        if uri not in self.manifests:
            header, entries = decode_manifest(self._read(uri, MAX_MANIFEST_BYTES), uri)
            self.manifests[uri] = OpenManifest(header, inherit(entries, file))
        return self.manifests[uri]

    def _read(self, uri: str, most_bytes: int) -> bytes:
        if not uri.startswith(f"{self.location}/"):
            raise BadRequest(f"{uri!r} does not lie in the table's location {self.location!r}; write manifests there.")
        try:
            size = self.objects.size(uri)
            if size > most_bytes:
                raise BadRequest(f"{uri!r} has {size} bytes, more than the {most_bytes} that are read.")
            return self.objects.read(uri)
        except NotFound as error:
            raise BadRequest(f"{uri!r} is missing; write it before the commit.") from error
        except Unsupported as error:
            raise BadRequest(error.message) from error
