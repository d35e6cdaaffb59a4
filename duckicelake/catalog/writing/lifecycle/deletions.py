"""Which rows of a snapshot are deleted: by positions, vectors and equality, each where the sequence numbers let it count."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duckicelake.catalog.writing.ready.equality import EqualityResolver
from duckicelake.catalog.writing.ready.manifests import LiveFile, ManifestReader
from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import EQUALITY_DELETES
from duckicelake.translate.to_ducklake.deletes import unite
from duckicelake.translate.visibility import Longs

PARQUET, PUFFIN = "PARQUET", "PUFFIN"


@dataclass(frozen=True, slots=True)
class NumberedFile:
    """A live file of a snapshot with its data sequence number."""

    live: LiveFile
    number: int


def find_deleted(
    reader: ManifestReader, resolver: EqualityResolver, files: Mapping[str, NumberedFile], deletes: Sequence[NumberedFile]
) -> dict[str, Longs]:
    """Return the deleted positions of data files, by path.

    A delete file counts for data files of its own sequence number and below, one by equality only for those below. A deletion
    vector stands for all positions deleted in its file.

    Raises: BadRequest: a delete file is missing, malformed or of a format that is not taken
    Source: Iceberg spec «Scan Planning»
    """
    vectors: dict[str, Longs] = {}
    positions: dict[str, list[Longs]] = {}
    equal: dict[str, list[Longs]] = {}
    for delete in deletes:
        file = delete.live.file
        _check_format(delete)
        if file.content == EQUALITY_DELETES:
            older = [found.live for found in files.values() if found.number < delete.number]
            for path, rows in resolver.find_rows(delete.live, older).items():
                equal.setdefault(path, []).append(rows)
            continue
        for path, rows in reader.read_deletes(file).items():
            if path not in files or files[path].number > delete.number:
                continue
            if file.file_format != PUFFIN:
                positions.setdefault(path, []).append(rows)
            elif path in vectors:
                raise BadRequest(f"Data file {path!r} has two deletion vectors; a file has one at most.")
            else:
                vectors[path] = rows
    found = {path: [vectors[path]] if path in vectors else positions.get(path, []) for path in vectors.keys() | positions.keys()}
    return {path: unite((*found.get(path, ()), *equal.get(path, ()))) for path in sorted(found.keys() | equal.keys())}


def _check_format(delete: NumberedFile) -> None:
    file = delete.live.file
    if file.file_format != PARQUET and (file.file_format != PUFFIN or file.content == EQUALITY_DELETES):
        raise BadRequest(f"Delete file {file.file_path!r} has the format {file.file_format}, which is not taken; rewrite the deletes.")
