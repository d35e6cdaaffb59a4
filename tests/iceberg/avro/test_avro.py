import io

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.iceberg.avro.writer import (
    BLOCK_BYTES,
    CACHED_LONGS_MAX,
    EncodedLongs,
    count_rows,
    encode_bytes,
    encode_container,
    encode_long,
)
from tests.iceberg.support.oracles import fastavro_metadata, fastavro_rows
from tests.iceberg.support.strategies import LONGS

SCHEMA = '{"type":"record","name":"row","fields":[{"name":"text","type":"string","field-id":7}]}'


@given(LONGS)
def test_longs_are_remembered(number):
    """A number is encoded once; foreign readers find it."""
    longs = EncodedLongs()
    assert longs[number] == longs[number] == encode_long(number)
    assert fastavro.schemaless_reader(io.BytesIO(longs[number]), "long", None) == number


def test_memory_of_longs_is_bounded():
    """A file of millions of different numbers does not keep them all."""
    longs = EncodedLongs()
    for number in range(CACHED_LONGS_MAX + 10):
        assert longs[number] == encode_long(number)
    assert len(longs) <= CACHED_LONGS_MAX


@given(st.lists(st.text(), max_size=5))
def test_fastavro_reads_our_files(texts):
    """A foreign reader finds the metadata and every row."""
    content = encode_container({"key": "wért"}, SCHEMA, (encode_bytes(text.encode()) for text in texts))
    assert [row["text"] for row in fastavro_rows(content)] == texts
    assert fastavro_metadata(content)["key"] == "wért"


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


def test_a_number_without_end_is_none():
    """A block whose count never ends is no block, and costs no more than a look at it."""
    empty = encode_container({}, SCHEMA, ())
    assert count_rows(empty + b"\xff" * (1 << 22), empty) == -1
