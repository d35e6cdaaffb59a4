import io
import zlib

import fastavro
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.reader import (
    DECODE_ERRORS,
    HEADER_BYTES_MAX,
    SCHEMA_LENGTH_MAX,
    SCHEMAS_MAX,
    AvroLimits,
    ReaderPool,
    open_avro,
    read_rows,
)
from duckicelake.iceberg.avro.writer import encode_bytes, encode_container, encode_long

SCHEMA = '{"type":"record","name":"row","fields":[{"name":"text","type":"string","field-id":7}]}'
LIMITS = AvroLimits()


def read(content, limits=LIMITS):
    return list(read_rows(open_avro(content, limits)))


def foreign(codec, count=1):
    """A file that fastavro wrote, with a logical type."""
    schema = {"type": "record", "name": "row", "fields": [{"name": "day", "type": {"type": "int", "logicalType": "date"}, "field-id": 1}]}
    stream = io.BytesIO()
    fastavro.writer(stream, schema, [{"day": 3}] * count, codec=codec, metadata={"who": "else"})
    return stream.getvalue()


def repacked(codec, compress, rows=b"\x06", row_count=1):
    """A foreign file with a block of other rows, compressed otherwise."""
    content = foreign("null")
    header = content[: content.rindex(b"\x02\x02\x06")]
    name = encode_bytes(codec.encode())
    return header.replace(encode_bytes(b"null"), name) + encode_long(row_count) + encode_bytes(compress(rows)) + content[-16:]


def deflate(rows):
    """A deflated block has no header and no checksum."""
    return zlib.compress(rows, wbits=-15)


def snappy(rows):
    """A snappy block ends with the checksum of its rows."""
    return pyarrow.compress(rows, "snappy", asbytes=True) + zlib.crc32(rows).to_bytes(4, "big")


def zstandard(rows):
    """A zstandard block is one frame."""
    return pyarrow.compress(rows, "zstd", asbytes=True)


CODECS = {"null": bytes, "deflate": deflate, "snappy": snappy, "zstandard": zstandard}


@given(st.lists(st.text(), max_size=5))
def test_our_files_are_read(texts):
    """read(encode(x)) = x."""
    content = encode_container({"key": "wért"}, SCHEMA, (encode_bytes(text.encode()) for text in texts))
    assert read(content) == [{7: text} for text in texts]
    assert open_avro(content, LIMITS).metadata["key"] == "wért"


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_foreign_files_are_read(codec):
    """Many rows in many blocks; dates stay numbers."""
    content = foreign(codec, 40_000)
    assert open_avro(content, LIMITS).metadata["who"] == "else"
    assert read(content) == [{1: 3}] * 40_000
    assert len(open_avro(content, LIMITS).blocks) > 1


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_read(codec):
    """Spark can be told to write manifests with any of these."""
    assert read(repacked(codec, CODECS[codec])) == [{1: 3}]


def test_other_codecs_are_refused_by_name():
    """A codec nobody here reads is named."""
    with pytest.raises(BadRequest, match="'bzip2'; write it with deflate"):
        open_avro(foreign("bzip2"), LIMITS)


def test_damage_that_snappy_cannot_see_is_found():
    """The checksum behind the rows is checked."""
    with pytest.raises(ValueError, match="damaged block"):
        read(repacked("snappy", lambda rows: snappy(rows)[:-1] + b"?"))


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "null"])
def test_a_small_file_cannot_fill_the_memory(codec):
    """A block that would grow beyond the limit is not unpacked any further than that."""
    bomb = repacked(codec, CODECS[codec], rows=b"\x06" * 2_000_000, row_count=2_000)
    assert len(bomb) < 100_000
    with pytest.raises(BadRequest, match="bytes; split it"):
        read(bomb, AvroLimits(bytes=1_000_000))


def test_many_small_blocks_count_together():
    """The limit is the file's, not the block's."""
    content = encode_container({}, SCHEMA, [encode_bytes(b"a" * 70_000)] * 5)
    assert len(read(content, AvroLimits(bytes=360_000))) == 5
    with pytest.raises(BadRequest, match="it holds more than 340000 bytes; split it"):
        read(content, AvroLimits(bytes=340_000))


def test_files_of_one_request_count_together():
    """What one has taken is not there for the next."""
    content = encode_container({}, SCHEMA, [encode_bytes(b"a" * 70_000)])
    shared = AvroLimits(bytes=100_000).budget()
    assert len(list(read_rows(open_avro(content, LIMITS, shared)))) == 1
    with pytest.raises(BadRequest, match="bytes; split it"):
        list(read_rows(open_avro(content, LIMITS, shared)))


ARRAYS = '{"type":"record","name":"row","fields":[{"name":"n","type":{"type":"array","items":"int"},"field-id":7}]}'


def test_what_read_a_file_reads_the_next_within_its_own_budget():
    """Schemas are put together once; what a file may hold is asked of the file."""
    readers, content = ReaderPool(), encode_container({}, ARRAYS, [encode_long(3) + b"\2\4\6\0"])
    first = open_avro(content, LIMITS, None, readers)
    assert list(read_rows(first)) == [{7: [1, 2, 3]}]
    beside = open_avro(content, LIMITS, None, readers)
    assert beside.compiled is not first.compiled
    first.close()
    small = open_avro(content, AvroLimits(items=2), None, readers)
    assert small.compiled is first.compiled
    with pytest.raises(BadRequest, match="more items than are taken at once"):
        list(read_rows(small))
    assert list(read_rows(beside)) == [{7: [1, 2, 3]}]


def test_few_schemas_are_remembered():
    """Clients may send as many as they like, and long ones."""
    readers = ReaderPool()
    names = [f"{place:0>{length}}" for length in (3, SCHEMA_LENGTH_MAX) for place in range(SCHEMAS_MAX + 9)]
    for name in names:
        open_avro(encode_container({}, ARRAYS.replace("row", "r" + name), []), LIMITS, None, readers).close()
    assert 0 < len(readers) <= SCHEMAS_MAX


def test_a_header_has_its_size():
    """Nothing of it is kept beyond that."""
    with pytest.raises(BadRequest, match="its header has more than"):
        open_avro(encode_container({"key": "x" * HEADER_BYTES_MAX}, SCHEMA, []), LIMITS)


def test_rows_are_counted_before_they_are_read():
    """A file of more entries than anybody commits is refused by its counts."""
    with pytest.raises(BadRequest, match="it has 1000000000 entries, more than 250000; split it"):
        open_avro(repacked("null", bytes, row_count=10**9), LIMITS)


def test_rows_come_one_at_a_time():
    """Whoever reads decides how many rows there are at once."""
    rows = read_rows(open_avro(foreign("deflate", 100), LIMITS))
    assert next(rows) == {1: 3}


@given(st.data())
def test_damaged_files_are_read_or_refused(data):
    """Cut or changed anywhere, a file is read or refused; nothing unexpected is raised."""
    content = bytearray(encode_container({"key": "value"}, SCHEMA, [encode_bytes(b"text") for _ in range(3)]))
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    try:
        read(bytes(content))
    except (BadRequest, *DECODE_ERRORS):
        pass


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(bytes(100_000), id="zeros"),
        pytest.param(b"PAR1" * 10, id="parquet"),
        pytest.param(b"Obj\x01\x00" + bytes(16), id="no-schema"),
        pytest.param(encode_container({}, "{}", []), id="empty-schema"),
        pytest.param(encode_container({}, '{"type":"record","name":"r","fields":[]}', []), id="rows-of-nothing"),
        pytest.param(encode_container({}, "[" * 2000 + "]" * 2000, []), id="deep-schema"),
        pytest.param(encode_container({}, '{"type":' * 5000 + '"int"' + "}" * 5000, []), id="deeper-schema"),
        pytest.param(encode_container({}, SCHEMA, [b"\x02a"])[:-1], id="cut"),
        pytest.param(encode_container({}, SCHEMA, [b"\x7f"]), id="row-too-short"),
        pytest.param(encode_container({}, SCHEMA, [b"\x02ab"]), id="row-too-long"),
    ],
)
def test_what_is_no_avro_is_refused(content):
    """Anything that is no Avro file is refused."""
    with pytest.raises(DECODE_ERRORS):
        read(content)
