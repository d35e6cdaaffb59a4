"""Equality deletes as positions: DuckLake knows no others. The data files that can hold such rows are read before the lock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from duckicelake.catalog.writing.ready.manifests import DeleteKey, LiveFile, ManifestReader, Manifests, live_files
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.manifest import DATA, EQUALITY_DELETES, DataFile
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.schema import Schema
from duckicelake.store.equality import KeyColumn, Keys, find_equal_rows, read_keys
from duckicelake.translate.shape.name_mapping import NamePath
from duckicelake.translate.to_ducklake.equality import EqualityColumn, KeyValues, Scope, find_columns
from duckicelake.translate.visibility import Longs

MAX_KEYS = 1_000_000
MAX_READ_BYTES = 4 * 1024 * 1024 * 1024
MAX_PAIRS = 10_000_000
"""Of an equality-delete file and a data file that it may mean rows of: looking at so many takes most of a minute."""


@dataclass(slots=True)
class EqualityResolver:
    """Finds the rows that the equality deletes of one request mean.

    `published` are manifests that the table has had before the request; of data files that are not in them only those under
    the table's location are read, because the client names them. `names` gives field ids to columns of files that carry none.
    `rows` are those found so far, by delete file and data file that was read: of those that were not there may be very many.
    """

    reader: ManifestReader
    schemas: Sequence[Schema]
    names: Mapping[NamePath, int]
    published: Manifests
    read_bytes: int = 0
    pairs: int = 0
    paths: frozenset[str] | None = None
    rows: dict[DeleteKey, dict[str, Longs]] = field(default_factory=dict["DeleteKey", dict[str, Longs]])

    def resolve(self, come: Iterable[LiveFile], before: Manifests) -> None:
        """Let the reader know each equality-delete file that comes by the positions it means in the data files before it.

        Raises: BadRequest: a file is missing or malformed, or finding the rows would cost more than is done in a request
        """
        deletes = [live for live in come if live.file.content == EQUALITY_DELETES]
        fresh = {(live.file.file_path, live.file.content_offset): live for live in deletes}
        unknown = {key: live for key, live in fresh.items() if key not in self.reader.deletes}
        candidates = self._list_data_files(before.values()) if unknown else []
        for key, live in unknown.items():
            if live.file.file_format == "PARQUET":
                self.reader.deletes[key] = self._resolve(live, candidates)

    def find_rows(self, delete: LiveFile, candidates: Sequence[LiveFile]) -> Mapping[str, Longs]:
        """Return the positions that an equality-delete file means in these data files. Raises what `resolve` raises."""
        return self._resolve(delete, candidates)

    def _list_data_files(self, manifests: Iterable[ManifestFile]) -> list[LiveFile]:
        opened = (self.reader.read_manifest(manifest) for manifest in manifests if manifest.content == DATA)
        return [live for live in live_files(opened) if live.file.content == DATA]

    def check(self, deletes: Iterable[LiveFile]) -> None:
        """Raise BadRequest for equality-delete files that are missing or malformed, or that nobody can resolve later."""
        for live in deletes:
            if live.file.content == EQUALITY_DELETES:
                self._read_keys(live.file)

    def _read_keys(self, delete: DataFile) -> tuple[Sequence[EqualityColumn], Keys]:
        path = delete.file_path
        if delete.record_count > MAX_KEYS:
            raise BadRequest(
                f"Equality-delete file {path!r} has {delete.record_count} rows, more than the {MAX_KEYS} that are taken; "
                "write smaller ones, or delete by position."
            )
        found = find_columns(delete, self.schemas)
        columns = [KeyColumn(column.field_id, column.type.name, column.default) for column in found]
        try:
            return found, read_keys(self.reader.read_delete_file(path), columns, MAX_KEYS)
        except Unsupported as error:
            raise BadRequest(f"Cannot read equality-delete file {path!r}: {error.message}") from error

    def _resolve(self, live: LiveFile, candidates: Sequence[LiveFile]) -> Mapping[str, Longs]:
        delete = live.file
        key = delete.file_path, delete.content_offset
        is_new, known = key not in self.rows, self.rows.setdefault(key, {})
        scope = Scope(live.spec_id, () if live.spec.is_unpartitioned else delete.partition)
        covered = [one.file for one in candidates if scope.covers(one.spec_id, one.file)]
        self._count_pairs(len(candidates))
        unknown = [file for file in covered if file.file_path not in known]
        if unknown or is_new:
            columns, keys = self._read_keys(delete)
            wanted = [KeyValues(column, *keys.list_values(place)) for place, column in enumerate(columns)]
            chosen = [file for file in unknown if all(one.may_be_in(file) for one in wanted)]
            self._count(delete.file_path, chosen)
            for file in chosen:
                known[file.file_path] = self._find_rows(file, keys)
                self.reader.count_positions(delete.file_path, len(known[file.file_path]))
        found = {file.file_path: known[file.file_path] for file in covered if file.file_path in known}
        return {path: positions for path, positions in found.items() if len(positions)}

    def _count(self, path: str, chosen: Sequence[DataFile]) -> None:
        self.read_bytes += sum(file.file_size_in_bytes for file in chosen)
        if self.read_bytes > MAX_READ_BYTES:
            raise BadRequest(
                f"To find the rows that {path!r} deletes, {len(chosen)} data files would have to be read: {self.read_bytes} bytes "
                f"with those read before, more than the {MAX_READ_BYTES} of a commit; delete by position, or in smaller commits."
            )

    def _count_pairs(self, count: int) -> None:
        self.pairs += count
        if self.pairs > MAX_PAIRS:
            raise BadRequest(
                f"More than {MAX_PAIRS} pairs of an equality-delete file and a data file would have to be compared; "
                "rewrite the data files first, or delete by position."
            )

    def _find_rows(self, file: DataFile, keys: Keys) -> Longs:
        uri = file.file_path
        if not self.reader.grounds.holds(uri) and uri not in self._published_paths():
            raise BadRequest(f"Data file {uri!r} lies where no file of the table may; write files in its location.")
        try:
            return find_equal_rows(self.reader.objects.open(uri, file.file_size_in_bytes), keys, self.names)
        except NotFound as error:
            raise BadRequest(f"Data file {uri!r} is missing: its rows cannot be compared; delete by position.") from error
        except Unsupported as error:
            raise BadRequest(f"Cannot compare the rows of {uri!r}: {error.message}") from error

    def _published_paths(self) -> frozenset[str]:
        if self.paths is None:
            self.paths = frozenset(live.file.file_path for live in self._list_data_files(self.published.values()))
        return self.paths
