import io
import json
import struct

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.reader import DEPTH_MAX, EMPTY_MAX, AvroReader, ReadBudget, read_long
from duckicelake.iceberg.avro.reader import build_reader as build_budgeted
from duckicelake.iceberg.avro.writer import encode_bytes, encode_long
from tests.iceberg.support.strategies import INTS, LONGS

PRIMITIVES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": INTS,
    "long": LONGS,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=5),
    "string": st.text(max_size=5),
}


def build_reader(schema: object, items: int = 1_000_000) -> AvroReader:
    """A reader of its own budget."""
    return build_budgeted(schema, ReadBudget(0, items))


def types(names):
    """Avro schemas with a strategy of their values, and how our reader says such a value."""
    plain = st.sampled_from([name for name in PRIMITIVES if name != "null"]).map(lambda name: (name, PRIMITIVES[name], lambda value: value))
    fixed = st.integers(1, 4).map(
        lambda size: ({"type": "fixed", "name": next(names), "size": size}, st.binary(min_size=size, max_size=size), lambda value: value)
    )
    return st.recursive(plain | fixed, lambda inner: st.one_of(arrays(inner), optionals(inner), records(inner, names)), max_leaves=5)


def arrays(inner):
    return inner.map(
        lambda found: (
            {"type": "array", "items": found[0]},
            st.lists(found[1], max_size=3),
            lambda value: [found[2](item) for item in value],
        )
    )


def optionals(inner):
    return inner.filter(lambda found: not isinstance(found[0], list)).map(
        lambda found: (["null", found[0]], st.none() | found[1], lambda value: None if value is None else found[2](value))
    )


def records(inner, names):
    def build(parts):
        fields = [{"name": f"f{i}", "type": part[0], "field-id": 10 + i} for i, part in enumerate(parts)]
        values = st.fixed_dictionaries({f"f{i}": part[1] for i, part in enumerate(parts)})
        return (
            {"type": "record", "name": next(names), "fields": fields},
            values,
            lambda value: {10 + i: part[2](value[f"f{i}"]) for i, part in enumerate(parts)},
        )

    # Two fields are a pair of key and value in an array: those have a test of their own.
    return st.lists(inner, min_size=1, max_size=4).filter(lambda parts: len(parts) != 2).map(build)


@given(st.data())
def test_values_are_what_fastavro_wrote(data):
    """Whatever the schema, a value that a foreign writer encodes is read back, by field id, to its last byte."""
    names = (f"n{i}" for i in range(1000))
    schema, values, expected = data.draw(types(names))
    value = data.draw(values)
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    found, end = build_reader(json.loads(json.dumps(schema))).read(stream.getvalue(), 0)
    assert found == expected(value)
    assert end == len(stream.getvalue())


@pytest.mark.parametrize("value_type", ["long", "bytes", "string", ["null", "long"], ["null", "bytes"]], ids=str)
@given(data=st.data())
def test_pairs_become_a_map(value_type, data):
    """An array of key and value records is how Iceberg spells a map; a null value says nothing of its key."""
    nullable = isinstance(value_type, list)
    values = PRIMITIVES[value_type[1] if nullable else value_type]
    pairs = data.draw(st.dictionaries(INTS, (st.none() | values) if nullable else values, max_size=4))
    fields = [{"name": "key", "type": "int", "field-id": 117}, {"name": "value", "type": value_type, "field-id": 118}]
    schema = {"type": "array", "items": {"type": "record", "name": "pair", "fields": fields}}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), [{"key": key, "value": value} for key, value in pairs.items()])
    reader = build_reader(schema)
    assert reader.kind == "pairs"
    assert reader.read(stream.getvalue(), 0) == ({key: value for key, value in pairs.items() if value is not None}, len(stream.getvalue()))


@given(LONGS)
def test_longs_come_back(number):
    """read_long(encode_long(x)) = x."""
    assert read_long(encode_long(number), 0) == (number, len(encode_long(number)))


def test_blocks_may_say_their_size():
    """A negative count has the block's bytes behind it, so that others can skip it."""
    content = encode_long(-2) + encode_long(2) + b"\x02\x04" + encode_long(1) + b"\x06" + b"\x00"
    assert build_reader({"type": "array", "items": "int"}).read(content, 0) == ([1, 2, 3], len(content))


def test_types_may_be_used_by_name_and_defined_twice():
    """Java uses a name again, PyIceberg defines it again."""
    fixed = {"type": "fixed", "name": "f", "namespace": "ns", "size": 2}
    by_name = {"type": "record", "name": "r", "fields": [{"name": "a", "type": fixed}, {"name": "b", "type": "ns.f"}]}
    defined = {"type": "record", "name": "r", "fields": [{"name": "a", "type": fixed}, {"name": "b", "type": {"type": fixed}}]}
    for schema in (by_name, defined):
        assert build_reader(schema).read(b"aabb", 0)[0] == {-1: b"aa", -2: b"bb"}


def deep(count):
    schema = "int"
    for i in range(count):
        schema = {"type": "record", "name": f"r{i}", "fields": [{"name": "a", "type": schema}]}
    return schema


def nothings(count):
    return {
        "type": "record",
        "name": "r",
        "fields": [{"name": f"f{i}", "type": "null"} for i in range(count)] + [{"name": "x", "type": "int"}],
    }


def doubling(count):
    """Two of two of two of nothing: a schema of a few bytes with values of no bytes by the million."""
    fields = [{"name": "f0", "type": {"type": "record", "name": "r0", "fields": []}}]
    for i in range(1, count):
        inner = [{"name": "a", "type": f"r{i - 1}"}, {"name": "b", "type": f"r{i - 1}"}]
        fields.append({"name": f"f{i}", "type": {"type": "record", "name": f"r{i}", "fields": inner}})
    return {"type": "record", "name": "top", "fields": fields}


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "r"]}]}, id="within-itself"),
        pytest.param(
            {"type": "record", "name": "n.r", "fields": [{"name": "a", "type": {"type": "array", "items": "r"}}]}, id="within-its-array"
        ),
        pytest.param(deep(DEPTH_MAX + 2), id="deep"),
        pytest.param({"type": "array", "items": "null"}, id="array-of-null"),
        pytest.param({"type": "array", "items": {"type": "record", "name": "r", "fields": []}}, id="array-of-empty-records"),
        pytest.param({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}, id="array-of-empty-bytes"),
        pytest.param(nothings(EMPTY_MAX + 1), id="many-nulls"),
        pytest.param(doubling(40), id="doubling"),
        pytest.param("unheard", id="unknown"),
        pytest.param({"type": "fixed", "name": "f", "size": -1}, id="negative-size"),
        pytest.param({"type": "fixed", "name": "f", "size": "2"}, id="text-size"),
        pytest.param({"type": "record", "name": "r"}, id="no-fields"),
        pytest.param({"type": "record", "name": "r", "fields": [1]}, id="no-field"),
        pytest.param({"type": "array"}, id="no-items"),
        pytest.param({}, id="nothing"),
        pytest.param(None, id="null"),
    ],
)
def test_schemas_that_could_take_forever_are_refused(schema):
    """Types within themselves, nesting without end and values of no bytes: none of them is read."""
    with pytest.raises(ValueError, match=r".+"):
        build_reader(schema)


def test_what_a_schema_may_still_hold():
    """The limits are above what anybody needs."""
    assert build_reader(deep(DEPTH_MAX // 2)).read(b"\x02", 0)[1] == 1
    assert build_reader(nothings(EMPTY_MAX)).read(b"\x02", 0)[1] == 1


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        pytest.param("long", b"", id="nothing"),
        pytest.param("long", b"\xff" * 10, id="endless-number"),
        pytest.param("long", b"\xff" * 9 + b"\x7f", id="number-of-70-bits"),
        pytest.param("bytes", encode_long(2**62), id="bytes-beyond-the-end"),
        pytest.param("bytes", encode_long(-1), id="bytes-before-the-start"),
        pytest.param("string", encode_bytes(b"\xff"), id="no-utf-8"),
        pytest.param("boolean", b"\x02", id="half-true"),
        pytest.param("double", b"1234567", id="short-double"),
        pytest.param({"type": "fixed", "name": "f", "size": 2**40}, b"", id="huge-fixed"),
        pytest.param(["null", "int"], b"\x04", id="no-such-branch"),
        pytest.param(["null", "int"], b"\x01", id="negative-branch"),
        pytest.param([], b"\x00", id="no-branches"),
        pytest.param({"type": "map", "values": "int"}, encode_long(1) + b"\x02a", id="map-cut"),
    ],
)
def test_values_that_cannot_be_are_refused(schema, content):
    """Nothing is made of bytes that are not there."""
    with pytest.raises((ValueError, LookupError, EOFError, struct.error)):
        build_reader(schema).read(content, 0)


PAIR = {"type": "record", "name": "p", "fields": [{"name": name, "type": "int", "field-id": i} for i, name in enumerate("kv")]}
COUNTED = [{"type": "map", "values": "int"}, {"type": "array", "items": "int"}, {"type": "array", "items": PAIR}]


@pytest.mark.parametrize("schema", COUNTED, ids=["map", "array", "pairs"])
def test_items_are_counted_before_they_are_read(schema):
    """A few bytes would fill the memory."""
    with pytest.raises(BadRequest, match="its arrays and maps hold more items than are taken at once"):
        build_reader(schema).read(encode_long(2**40) + b"\0" * 100, 0)


def test_arrays_within_arrays_count_too():
    """Items of all levels together."""
    schema = {"type": "array", "items": {"type": "array", "items": "int"}}
    content = encode_long(2) + (encode_long(2) + b"\2\2\0") * 2 + b"\0"
    assert build_reader(schema, items=6).read(content, 0)[0] == [[1, 1], [1, 1]]
    with pytest.raises(BadRequest):
        build_reader(schema, items=5).read(content, 0)
