import io
import zlib

import fastavro
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.encoding.avro import (
    BLOCK_BYTES,
    MEMO_MAX,
    Longs,
    decode_container,
    decode_long,
    encode_bytes,
    encode_container,
    encode_long,
)
from tests.iceberg.support.oracles import fastavro_metadata, fastavro_rows
from tests.iceberg.support.strategies import LONGS

SCHEMA = '{"type":"record","name":"row","fields":[{"name":"text","type":"string","field-id":7}]}'


def foreign(codec, rows=({"day": 3},), name="day"):
    """A file that fastavro wrote, with a logical type."""
    schema = {"type": "record", "name": "row", "fields": [{"name": name, "type": {"type": "int", "logicalType": "date"}, "field-id": 1}]}
    stream = io.BytesIO()
    fastavro.writer(stream, schema, rows, codec=codec, metadata={"who": "else"})
    return stream.getvalue()


@given(LONGS)
def test_longs_come_back(number):
    """decode_long(encode_long(x)) = x, through the memory of encoded numbers too."""
    assert decode_long(io.BytesIO(encode_long(number))) == number
    longs = Longs()
    assert longs[number] == longs[number] == encode_long(number)


def test_memory_of_longs_is_bounded():
    """A file of millions of different numbers does not keep them all."""
    longs = Longs()
    for number in range(MEMO_MAX + 10):
        assert longs[number] == encode_long(number)
    assert len(longs) <= MEMO_MAX


@given(st.lists(st.text(), max_size=5))
def test_fastavro_reads_our_files(texts):
    """A foreign reader finds the metadata and every row."""
    content = encode_container({"key": "wért"}, SCHEMA, (encode_bytes(text.encode()) for text in texts))
    assert [row["text"] for row in fastavro_rows(content)] == texts
    assert fastavro_metadata(content)["key"] == "wért"
    assert decode_container(content, "file")[1] == [{"f7": text} for text in texts]


def test_long_files_are_cut_into_blocks():
    """Rows are deflated a block at a time, so no reader needs them all at once."""
    rows = [encode_bytes(bytes([i]) * (BLOCK_BYTES // 4)) for i in range(40)]
    content = encode_container({}, SCHEMA.replace("string", "bytes"), rows)
    blocks = list(fastavro.block_reader(io.BytesIO(content)))
    assert len(blocks) == 10
    assert [len(list(block)) for block in blocks] == [4] * 10


def test_same_rows_give_the_same_bytes():
    """No clock and no random: the sync marker follows from the header."""
    assert encode_container({"a": "b"}, SCHEMA, [b"\x02a"]) == encode_container({"a": "b"}, SCHEMA, [b"\x02a"])
    assert encode_container({"a": "b"}, SCHEMA, [])[-16:] != encode_container({"a": "c"}, SCHEMA, [])[-16:]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_foreign_codecs_are_read(codec):
    """What other writers compress with is read, and dates stay numbers."""
    metadata, rows = decode_container(foreign(codec), "file")
    assert metadata["who"] == "else"
    assert rows == [{"f1": 3}]


def repacked(codec, compress):
    """A foreign file of one row, its block compressed anew."""
    content = foreign("null")
    header = content[: content.rindex(b"\x02\x02\x06")]
    name = encode_bytes(codec.encode())
    return header.replace(encode_bytes(b"null"), name) + b"\x02" + encode_bytes(compress(b"\x06")) + content[-16:]


def snappy(rows):
    """A snappy block ends with its checksum, which is not part of the rows."""
    return pyarrow.compress(rows, "snappy", asbytes=True) + zlib.crc32(rows).to_bytes(4, "big")


def test_snappy_and_zstandard_are_read():
    """Spark can be told to write manifests with these."""
    assert decode_container(repacked("snappy", snappy), "file")[1] == [{"f1": 3}]
    assert decode_container(repacked("zstandard", lambda rows: pyarrow.compress(rows, "zstd", asbytes=True)), "file")[1] == [{"f1": 3}]


def test_other_codecs_are_refused_by_name():
    """A codec nobody here reads is named."""
    with pytest.raises(Unsupported, match="bzip2"):
        decode_container(foreign("bzip2"), "file")


def test_types_defined_twice_are_read():
    """PyIceberg repeats a fixed type's definition where Avro wants its name; that is no reason to fail."""
    fixed = '{"type":"fixed","name":"f","size":2}'
    schema = f'{{"type":"record","name":"r","fields":[{{"name":"a","type":{fixed}}},{{"name":"b","type":{fixed}}}]}}'
    assert decode_container(encode_container({}, schema, [b"aabb"]), "file")[1] == [{"a": b"aa", "b": b"bb"}]


@given(st.data())
def test_damaged_files_are_bad_requests(data):
    """Cut or changed anywhere, a file is read or refused with BadRequest; nothing else is raised."""
    content = bytearray(encode_container({"key": "value"}, SCHEMA, [encode_bytes(b"text") for _ in range(3)]))
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    try:
        decode_container(bytes(content), "file")
    except (BadRequest, Unsupported):
        pass


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"PAR1" * 10, id="parquet"),
        pytest.param(b"Obj\x01\x00" + bytes(16), id="no-schema"),
        pytest.param(encode_container({}, "{}", []), id="empty-schema"),
        pytest.param(encode_container({}, "[" * 2000 + "]" * 2000, []), id="deep-schema"),
        pytest.param(encode_container({}, SCHEMA, [b"\x02a"])[:-1], id="cut"),
        pytest.param(encode_container({}, SCHEMA, [b"\x7f"]), id="row-too-short"),
    ],
)
def test_what_is_no_avro_is_a_bad_request(content):
    """Anything that is no Avro file is refused."""
    with pytest.raises(BadRequest):
        decode_container(content, "file")
