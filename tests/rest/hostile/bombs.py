"""Small files that would fill the memory. Read by `python -m tests.rest.hostile.bombs NAME FILE`, which says by how much it grew.

Each is read in a process of its own, because a process never says that it shrank.
"""

import io
import json
import resource
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from duckicelake.catalog.incoming.client_manifests import MAX_POSITIONS, ManifestReader, decode_vector
from duckicelake.catalog.location_rules import AllowedLocations
from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest
from duckicelake.iceberg.avro.writer import encode_bytes, encode_long
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.manifest import DataFile, ManifestHeader
from duckicelake.iceberg.manifest_list import WrittenManifest, build_manifest_file
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.requests.bodies import parse_commit_table
from duckicelake.iceberg.schema import Schema
from duckicelake.rest.layers import body_limit
from duckicelake.store.equality_deletes import KeyColumn, read_keys
from duckicelake.store.objects import StoreSettings, open_objects
from duckicelake.store.parquet import read_position_deletes

MIB = 1024 * 1024
FIELDS = (("file_path", "string", 100), ("file_format", "string", 101), ("record_count", "long", 103), ("file_size_in_bytes", "long", 104))
ENTRY = b"\x02" + encode_bytes(b"x") + encode_bytes(b"PARQUET") + b"\x02\x02"


def field(name: str, kind: Any, field_id: int) -> dict[str, Any]:
    """A field of an Avro record."""
    return {"name": name, "type": kind, "field-id": field_id}


def make_manifest(extra: dict[str, Any], rows: bytes) -> bytes:
    """A deflated manifest of one entry with one more field."""
    fields = [field(*FIELDS[0]), field(*FIELDS[1]), field("partition", {"type": "record", "name": "p", "fields": []}, 102)]
    record = {"type": "record", "name": "f", "fields": [*fields, field(*FIELDS[2]), field(*FIELDS[3]), extra]}
    schema = {"type": "record", "name": "e", "fields": [field("status", "int", 0), field("data_file", record, 2)]}
    header = {"schema": '{"type":"struct","schema-id":0,"fields":[]}', "partition-spec": "[]", "avro.schema": json.dumps(schema)}
    header["avro.codec"] = "deflate"
    pairs = b"".join(encode_bytes(key.encode()) + encode_bytes(value.encode()) for key, value in header.items())
    block = zlib.compress(ENTRY + rows, wbits=-15)
    return b"Obj\x01" + encode_long(len(header)) + pairs + b"\0" + b"s" * 16 + encode_long(1) + encode_bytes(block) + b"s" * 16


def make_array() -> bytes:
    """A manifest whose one entry has 100,000,000 split offsets."""
    return make_manifest(field("o", {"type": "array", "items": "long"}, 132), encode_long(100 * MIB) + b"\2" * (100 * MIB) + b"\0")


def make_text() -> bytes:
    """A manifest of 300 MiB of blanks."""
    return make_manifest(field("s", "string", 9999), encode_bytes(b" " * (300 * MIB)))


def make_vector() -> bytes:
    """A deletion vector that marks 2³² rows, in less than a MiB."""
    count = 65536
    starts = (4 + count // 8 + 8 * count + 6 * place for place in range(count))
    runs = struct.pack("<I", 12347 | (count - 1) << 16) + b"\xff" * (count // 8)
    runs += b"".join(struct.pack("<HH", key, 65535) for key in range(count)) + struct.pack(f"<{count}I", *starts)
    marked = bytes.fromhex("D1D33964") + struct.pack("<QI", 1, 0) + runs + struct.pack("<HHH", 1, 0, 65535) * count
    return len(marked).to_bytes(4, "big") + marked + zlib.crc32(marked).to_bytes(4, "big")


def make_deletes() -> bytes:
    """A position-delete file of 64 Mi rows."""
    sink = io.BytesIO()
    paths: Any = pa.DictionaryArray.from_arrays(pa.array(np.zeros(MIB, dtype=np.int32)), pa.array(["s3://x/" + "a" * 1000]))
    table = pa.table({"file_path": paths, "pos": pa.array(np.zeros(MIB, dtype=np.int64))})
    with pq.ParquetWriter(sink, table.schema, compression="zstd") as writer:
        for _ in range(64):
            writer.write_table(table)
    return sink.getvalue()


def make_keys() -> bytes:
    """An equality-delete file in which 100,000 rows hold one long text."""
    sink = io.BytesIO()
    texts: Any = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, dtype=np.int32)), pa.array(["a" * 65536]))
    schema = pa.schema([pa.field("k", texts.type, metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.Table.from_arrays([texts], schema=schema), sink)
    return sink.getvalue()


def make_prefixes() -> bytes:
    """A position-delete file in which each of 100,000 rows repeats one long path by saying so."""
    sink = io.BytesIO()
    table = pa.table({"file_path": ["a" * 65536] * 500, "pos": range(500)})
    with pq.ParquetWriter(
        sink, table.schema, compression="zstd", use_dictionary=False, column_encoding={"file_path": "DELTA_BYTE_ARRAY"}
    ) as writer:
        for _ in range(200):
            writer.write_table(table)
    return sink.getvalue()


def make_nodes() -> bytes:
    """A body of as many objects and items as are read, and long texts beside them."""
    nodes = b",".join(b'{"%d":"%d"}' % (i, i) for i in range(body_limit.MAX_NODES - 10))
    items = b",".join(b'"%06d"' % i for i in range(body_limit.MAX_ITEMS - body_limit.MAX_NODES))
    return b'{"updates":[' + nodes + b"," + items + b"]}"


def read_body(content: bytes) -> object:
    """Read a commit that the door lets in."""
    assert len(content) <= body_limit.MAX_BODY_BYTES
    assert not body_limit.has_too_many_nodes(content)
    return parse_commit_table(decode_json(content))


def read_vector(content: bytes) -> object:
    """Read a deletion vector whose manifest says what it marks."""
    whole = {"content_offset": 0, "content_size_in_bytes": len(content), "referenced_data_file": "x"}
    return decode_vector(DataFile(1, "p", "PUFFIN", (), 2**32, len(content), **whole), content, MAX_POSITIONS)


BOMBS: tuple[tuple[str, Callable[[], bytes], Callable[[bytes], object]], ...] = (
    ("vector", make_vector, read_vector),
    ("keys", make_keys, lambda content: read_keys(content, [KeyColumn(1, "string")], 1_000_000)),
    ("deletes", make_deletes, lambda content: read_position_deletes(content, MAX_POSITIONS)),
    ("prefixes", make_prefixes, lambda content: read_position_deletes(content, MAX_POSITIONS)),
    ("array", make_array, decode_manifest),
    ("text", make_text, decode_manifest),
    ("nodes", make_nodes, read_body),
)


def open_zeros(file: Path, *, is_list: bool) -> object:
    """Read a file of many zeros as a manifest, or a list of them, that a client names in its table."""
    objects = open_objects(StoreSettings(None, None, None, None))
    reader, uri = ManifestReader(objects, AllowedLocations((file.parent.as_uri(),))), file.as_uri()
    if is_list:
        return reader.read_list(uri)
    header = ManifestHeader(Schema(0, ()), PartitionSpec(0, ()), 2, 0)
    return reader.read_manifest(build_manifest_file(header, (), WrittenManifest(uri, file.stat().st_size, 1, 1)))


ZEROS: Mapping[str, Callable[[Path], object]] = {
    "zeros": partial(open_zeros, is_list=False),
    "list of zeros": partial(open_zeros, is_list=True),
}
"""What reads a file by its place."""


def read_peak_mib() -> int:
    """The most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def set_off(read: Callable[[], object]) -> dict[str, Any]:
    """Read a bomb, and tell how it was refused and what that took."""
    before = read_peak_mib()
    try:
        read()
        said = ""
    except (BadRequest, Unsupported) as error:
        said = error.message
    return {"said": said, "mib": read_peak_mib() - before}


def find_reader(name: str, file: Path) -> Callable[[], object]:
    """Return what reads a bomb: its content, which is in memory by then, or the file by its place."""
    if name in ZEROS:
        return partial(ZEROS[name], file)
    [(_, _, read)] = [bomb for bomb in BOMBS if bomb[0] == name]
    return partial(read, file.read_bytes())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(set_off(find_reader(sys.argv[1], Path(sys.argv[2])))))
