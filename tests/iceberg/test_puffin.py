import json
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile as OraclePuffin

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.puffin import (
    PuffinBlob,
    decode_deletion_vector,
    decode_puffin,
    encode_deletion_vector,
    encode_deletion_vectors,
    read_blob,
)
from tests.support.lakes import open_duckdb

VECTORS = st.lists(st.tuples(st.text(), st.sets(st.integers(0, 2**33))), max_size=4)
ONE = encode_deletion_vectors([("s3://b/a.parquet", [1, 2])])


def with_footer(content, **changes):
    """The file with its only blob's footer entry changed."""
    size = int.from_bytes(content[-12:-8], "little")
    footer = json.loads(content[-12 - size : -12])
    footer["blobs"][0] |= changes
    payload = json.dumps(footer).encode()
    return content[: -12 - size] + payload + len(payload).to_bytes(4, "little") + content[-8:]


@given(VECTORS)
def test_deletion_vectors_come_back(vectors):
    """Each blob is found where the file says, and holds its data file's positions."""
    file = encode_deletion_vectors(vectors)
    assert decode_puffin(file.content) == file.blobs
    assert decode_puffin(file.content[-file.footer_bytes :]) == file.blobs
    for (data_file, positions), blob in zip(vectors, file.blobs, strict=True):
        assert set(decode_deletion_vector(read_blob(file.content, blob))) == positions
        assert blob.properties == {"referenced-data-file": data_file, "cardinality": str(len(positions))}
        assert (blob.type, blob.snapshot_id, blob.sequence_number) == ("deletion-vector-v1", -1, -1)


@given(VECTORS)
def test_pyiceberg_reads_our_files(vectors):
    """PyIceberg finds the same positions for the same data files."""
    found = deletion_vectors_from_puffin_file(OraclePuffin(encode_deletion_vectors(vectors).content))
    assert [item.referenced_data_file for item in found] == [data_file for data_file, _ in vectors]
    for item, (_, positions) in zip(found, vectors, strict=True):
        assert [(key << 32) + low for key, bitmap in enumerate(item._bitmaps) for low in bitmap] == sorted(positions)


def lake(folder: Path):
    """A DuckLake on local files that holds rows 0–999 in one data file, and its catalog's connection."""
    con = open_duckdb("ducklake")
    con.execute(f"ATTACH 'ducklake:{folder}/lake.ducklake' AS lake (DATA_PATH '{folder}/data', DATA_INLINING_ROW_LIMIT 0)")
    con.execute("CALL lake.set_option('write_deletion_vectors', true)")
    con.execute("CREATE TABLE lake.t AS SELECT range AS a FROM range(1000)")
    con.execute("DELETE FROM lake.t WHERE a % 3 = 0 OR a BETWEEN 100 AND 200")
    return con


def deleted_rows():
    return {a for a in range(1000) if a % 3 == 0 or 100 <= a <= 200}


def test_ducklakes_bare_blobs_are_read(tmp_path):
    """What DuckLake writes as a Puffin delete file is one deletion-vector-v1 blob."""
    with lake(tmp_path):
        (path,) = (tmp_path / "data").rglob("*-delete.puffin")
        assert set(decode_deletion_vector(path.read_bytes())) == deleted_rows()


def test_same_vectors_give_the_same_bytes():
    """No clock, no version, no random in the file."""
    assert encode_deletion_vectors([("s3://b/a.parquet", {2, 1})]) == ONE


def test_compressed_blobs_are_read():
    """A statistics blob may be compressed with zstd."""
    stored = pyarrow.compress(b"sketch" * 100, "zstd", asbytes=True)
    blob = PuffinBlob("x", (1,), 1, 1, 4, len(stored), {}, "zstd")
    assert read_blob(b"PFA1" + stored, blob) == b"sketch" * 100


@pytest.mark.parametrize(
    ("build", "error"),
    [
        pytest.param(lambda: decode_puffin(b""), BadRequest, id="empty"),
        pytest.param(lambda: decode_puffin(encode_deletion_vector([1])), BadRequest, id="bare-blob"),
        pytest.param(lambda: decode_puffin(ONE.content[:-1]), BadRequest, id="cut"),
        pytest.param(lambda: decode_puffin(ONE.content[:-8] + b"\1\0\0\0PFA1"), Unsupported, id="compressed-footer"),
        pytest.param(lambda: decode_puffin(ONE.content[:-13] + b"!" + ONE.content[-12:]), BadRequest, id="no-json"),
        pytest.param(lambda: decode_puffin(ONE.content[:-12] + b"\xff" * 4 + ONE.content[-8:]), BadRequest, id="negative-size"),
        pytest.param(lambda: decode_puffin(with_footer(ONE.content, offset=-4)), BadRequest, id="negative-offset"),
        pytest.param(lambda: decode_puffin(with_footer(ONE.content, type=None)), BadRequest, id="no-type"),
        pytest.param(lambda: read_blob(ONE.content[:10], ONE.blobs[0]), BadRequest, id="file-too-short"),
        pytest.param(lambda: read_blob(b"12345678", PuffinBlob("x", (), 1, 1, 0, 4, {}, "lz4")), Unsupported, id="lz4"),
        pytest.param(lambda: read_blob(b"12345678", PuffinBlob("x", (), 1, 1, 0, 4, {}, "zstd")), BadRequest, id="no-zstd"),
    ],
)
def test_what_is_no_puffin_is_refused(build, error):
    """Damage is a bad request; what the format allows and nobody here reads is unsupported."""
    with pytest.raises(error):
        build()
