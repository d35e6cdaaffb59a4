"""What a delete file holds: positions of one data file that is there, ascending, each once, as many as the manifest says."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import fastavro
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from tests.differential.checks.manifests import list_snapshots, read_bytes


@dataclass(frozen=True, slots=True)
class Targets:
    """What deletes may mean: data files by path; and where each deletion vector says it is, which PyIceberg 0.12 does not tell."""

    data_files: Mapping[str, DataFile]
    vectors: Mapping[str, tuple[str, int, int]]


def list_targets(table: IcebergTable, data_files: Mapping[str, DataFile]) -> Targets:
    """The targets of all deletes in all of a table's snapshots."""
    manifests = (manifest for snapshot in list_snapshots(table) for manifest in snapshot.manifests(table.io))
    paths = {manifest.manifest_path for manifest in manifests if manifest.content == ManifestContent.DELETES}
    vectors: dict[str, tuple[str, int, int]] = {}
    for path in paths:
        for entry in fastavro.reader(io.BytesIO(read_bytes(table.io, path))):
            assert isinstance(entry, dict)
            found = entry["data_file"]
            if found["file_format"] == "PUFFIN":
                place = found["referenced_data_file"], found["content_offset"], found["content_size_in_bytes"]
                assert vectors.setdefault(found["file_path"], place) == place
    return Targets(data_files, vectors)


def check_deletes(data_file: DataFile, content: bytes, targets: Targets) -> None:
    """Compare a delete file with its manifest entry, and with the data file that it means."""
    place = targets.vectors.get(data_file.file_path)
    target, positions = _read_positions(data_file, content) if place is None else _read_vector(place, content)
    assert target in targets.data_files, f"{data_file.file_path} deletes rows of {target}, which is not there"
    assert len(positions) == data_file.record_count, f"{data_file.file_path} has {len(positions)} positions"
    assert list(positions) == sorted(set(positions)), f"{data_file.file_path}: positions out of order"
    assert positions[-1] < targets.data_files[target].record_count, f"{data_file.file_path} deletes row {positions[-1]} of {target}"


def _read_positions(data_file: DataFile, content: bytes) -> tuple[str, Sequence[int]]:
    rows = pq.read_table(io.BytesIO(content))
    assert rows.column_names == ["file_path", "pos"]
    ids = [int((field.metadata or {})[b"PARQUET:field_id"]) for field in rows.schema]
    assert ids == [2147483546, 2147483545], f"{data_file.file_path} has the field ids {ids}"
    (target,) = set(rows["file_path"].to_pylist())
    return target, rows["pos"].to_pylist()


def _read_vector(place: tuple[str, int, int], content: bytes) -> tuple[str, Sequence[int]]:
    referenced, offset, size = place
    puffin = PuffinFile(content)
    pairs = zip(deletion_vectors_from_puffin_file(puffin), puffin.footer.blobs, strict=True)
    (vector,) = (vector for vector, blob in pairs if (blob.offset, blob.length) == (offset, size))
    assert vector.referenced_data_file == referenced
    return referenced, vector.to_vector().to_pylist()
