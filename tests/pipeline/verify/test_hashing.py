"""The numbers of rows: equal for equal values in whatever Arrow type, different for different ones."""

import hashlib
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import Unsupported
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType
from duckicelake.pipeline.verify.row_hashes import hash_rows, hash_values

STRING, LONG, DOUBLE = PrimitiveType("string"), PrimitiveType("long"), PrimitiveType("double")
LISTS = ListType(2, STRING, False)
MAPS = MapType(2, STRING, 3, LONG, False)
STRUCTS = StructType((NestedField(2, "a", LONG, False), NestedField(3, "b", LISTS, False)))
NAN = float("nan")


def numbers(values: Any, form: IcebergType) -> list[int]:
    """The numbers of an array's values."""
    return hash_values(values, form).tolist()


@pytest.mark.parametrize(
    ("form", "one", "other"),
    [
        pytest.param("int", pa.array([1, None, -1], pa.int8()), pa.array([1, None, -1], pa.int64()), id="whole"),
        pytest.param("string", pa.array(["", "x" * 3000, None]), pa.array(["", "x" * 3000, None], pa.string_view()), id="text"),
        pytest.param("string", pa.array(["a", "b", "a"]), pa.array(["a", "b", "a"]).dictionary_encode(), id="dictionary"),
        pytest.param("binary", pa.array([b"ab", None], pa.binary(2)), pa.array([b"ab", None], pa.large_binary()), id="bytes"),
        pytest.param("timestamp", pa.array([5, -1], pa.timestamp("s")), pa.array([5_000_000, -1_000_000], pa.timestamp("us")), id="stamps"),
        pytest.param(
            "timestamptz", pa.array([5], pa.timestamp("us", "UTC")), pa.array([5], pa.timestamp("us", "America/New_York")), id="zones"
        ),
        pytest.param("decimal(9, 2)", pa.array([Decimal("-1.50")]), pa.array([Decimal("-1.50")], pa.decimal128(38, 2)), id="decimals"),
        pytest.param("double", pa.array([NAN]), pa.array([-NAN]), id="nan"),
        pytest.param("double", pa.array([0.5, None], pa.float32()), pa.array([0.5, None]), id="float"),
    ],
)
def test_the_same_values_have_the_same_numbers(form: str, one: Any, other: Any) -> None:
    """Whatever width, unit or encoding an engine chooses."""
    assert numbers(one, PrimitiveType(form)) == numbers(other, PrimitiveType(form))


@pytest.mark.parametrize(
    ("form", "values"),
    [
        pytest.param(STRING, pa.array([None, "", "\0", "\0\0", "a", "a\0", "12345678", "123456789", "x" * 1024, "x" * 1025]), id="text"),
        pytest.param(DOUBLE, pa.array([0.0, -0.0, None, NAN, float("inf"), -float("inf"), 5e-324]), id="doubles"),
        pytest.param(PrimitiveType("boolean"), pa.array([True, False, None]), id="booleans"),
        pytest.param(LISTS, pa.array([None, [], [None], [""], ["", ""], ["a", "b"], ["b", "a"], ["ab"]]), id="lists"),
        pytest.param(
            MAPS,
            pa.array([None, [], [("a", None)], [("a", 1)], [("a", 1), ("b", 2)], [("a", 2), ("b", 1)]], pa.map_("str", "i8")),
            id="maps",
        ),
        pytest.param(
            STRUCTS,
            pa.array([None, {"a": None, "b": None}, {"a": None, "b": []}, {"a": 1, "b": None}, {"a": 1, "b": ["1"]}]),
            id="structs",
        ),
    ],
)
def test_different_values_have_different_numbers(form: IcebergType, values: Any) -> None:
    """NULL is not empty, and no zero is another."""
    assert len(set(numbers(values, form))) == len(values)


def test_entries_of_a_map_and_fields_of_a_struct_have_no_order() -> None:
    """Engines order them as they like."""
    one, other = ([("a", 1), ("b", None)], [("b", None), ("a", 1)])
    assert len(set(numbers(pa.array([one, other], pa.map_("str", "i8")), MAPS))) == 1
    assert numbers(pa.array([{"a": 1, "b": ["x"]}]), STRUCTS) == numbers(pa.array([{"c": 7, "b": ["x"], "a": 1}]), STRUCTS)


@given(st.lists(st.none() | st.lists(st.none() | st.text(max_size=20), max_size=4), min_size=1, max_size=12), st.data())
def test_a_number_depends_on_the_row_alone(rows: list[list[str | None] | None], data: st.DataObject) -> None:
    """A batch that is cut anywhere has the same numbers."""
    whole = pa.record_batch([pa.array(rows, pa.list_(pa.string())), pa.array(range(len(rows)))], names=["l", "i"])
    fields = (NestedField(1, "l", LISTS, False), NestedField(4, "i", LONG, True))
    cut = data.draw(st.integers(0, len(rows)))
    parts = [hash_rows(whole.slice(0, cut), fields).tolist(), hash_rows(whole.slice(cut), fields).tolist()]
    assert hash_rows(whole, fields).tolist() == parts[0] + parts[1]


def to_arrow(form: IcebergType) -> pa.DataType:
    """The type in Arrow."""
    match form:
        case StructType(fields):
            return pa.struct([(field.name, to_arrow(field.type)) for field in fields])
        case ListType():
            return pa.list_(to_arrow(form.element_type))
        case MapType():
            return pa.map_(to_arrow(form.key_type), to_arrow(form.value_type))
        case PrimitiveType():
            return pa.string() if form == STRING else pa.int64()


def make_hollow(form: pa.DataType) -> Any:
    """No values, as Java gives them: offsets take no bytes, and what lies behind them belongs to others."""
    nothing = pa.py_buffer(b"\xf9" * 64).slice(0, 0)
    inner = [make_hollow(form.field(place).type) for place in range(form.num_fields)]
    buffers = [None] if pa.types.is_struct(form) else [None, nothing, nothing] if form == pa.string() else [None, nothing]
    return pa.Array.from_buffers(form, 0, buffers, children=inner)


def deepen(inner: st.SearchStrategy[IcebergType]) -> st.SearchStrategy[IcebergType]:
    """Lists, maps and structs of these types."""
    return st.one_of(
        inner.map(lambda form: ListType(2, form, False)),
        inner.map(lambda form: MapType(2, STRING, 3, form, False)),
        inner.map(lambda form: StructType((NestedField(2, "a", form, False), NestedField(3, "b", LONG, False)))),
    )


@given(st.recursive(st.sampled_from((STRING, LONG)), deepen, max_leaves=6), st.lists(st.booleans(), max_size=4))
def test_values_that_hold_nothing_need_nothing_within(form: IcebergType, nulls: list[bool]) -> None:
    """Where all lists or maps of a batch are empty or NULL, Java leaves out even the offsets of what they would hold."""
    arrow = to_arrow(form)
    assert numbers(make_hollow(arrow), form) == []
    bits, offsets = pa.array([not null for null in nulls], pa.bool_()).buffers()[1], pa.py_buffer(b"\0" * 4 * (len(nulls) + 1))
    hollow = pa.Array.from_buffers(pa.list_(arrow), len(nulls), [bits, offsets], children=[make_hollow(arrow)])
    whole = pa.array([None if null else [] for null in nulls], pa.list_(arrow))
    assert numbers(hollow, ListType(9, form, False)) == numbers(whole, ListType(9, form, False))


def test_a_column_counts_by_its_place() -> None:
    """Values that change columns make another row."""
    fields = tuple(NestedField(place, name, LONG, False) for place, name in enumerate("ab", 1))
    one, other = (pa.record_batch([pa.array([x]), pa.array([y])], names=["a", "b"]) for x, y in ((1, 2), (2, 1)))
    assert hash_rows(one, fields).tolist() != hash_rows(other, fields).tolist()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param([1, None], [None, 1], id="null"),
        pytest.param([None, None], [None, 42], id="nulls"),
        pytest.param([1, 2], [2, 1], id="values"),
    ],
)
@pytest.mark.parametrize("before", [pytest.param(0, id="first-block"), pytest.param(30, id="later-block")])
def test_what_is_missing_counts_by_its_place(one: list[int | None], other: list[int | None], before: int) -> None:
    """Hashing passes over NULL, and marks do not; a later block goes on from its own row's number."""
    fields = tuple(NestedField(place, f"c{place}", LONG, False) for place in range(before + 2))
    columns = [pa.array([5, 6], pa.int64())] * before + [pa.array([x, y], pa.int64()) for x, y in zip(one, other, strict=True)]
    found = hash_rows(pa.record_batch(columns, names=[field.name for field in fields]), fields).tolist()
    alone = [
        hash_rows(pa.record_batch([column.slice(row, 1) for column in columns], names=[f.name for f in fields]), fields) for row in (0, 1)
    ]
    assert found == [number for numbers in alone for number in numbers.tolist()]
    assert found[0] != found[1]


def test_places_count_in_lists_without_nulls() -> None:
    """The same elements in another order are another list, and -0.0 in a list is another element."""
    assert len(set(numbers(pa.array([["a", "b"], ["b", "a"]]), LISTS))) == 2
    doubles = ListType(2, DOUBLE, False)
    assert len(set(numbers(pa.array([[0.0, -0.0], [-0.0, 0.0], [0.0, 0.0]]), doubles))) == 3


def test_a_text_is_not_the_sum_that_stands_for_a_longer_one() -> None:
    """Whoever writes the MD5 itself writes another value."""
    long = "x" * 5000
    known = hashlib.md5(long.encode(), usedforsecurity=False).hexdigest()
    assert len(set(numbers(pa.array([long, known, long + "x"]), STRING))) == 3


def test_a_type_without_a_form_is_refused() -> None:
    """Nothing is called equal that was not looked at."""
    with pytest.raises(Unsupported, match="variant"):
        numbers(pa.array([b""]), PrimitiveType("variant"))
