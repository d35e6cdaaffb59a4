"""Statistics column by column: for every file the bytes that it would get value by value."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckicelake.iceberg.avro.manifest_encoding import RowParts
from duckicelake.iceberg.manifest import encode_metrics as encode_one
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.read_files import read_column_stats, read_packed_column_stats
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow
from duckicelake.translate.bulk_files import encode_metrics
from duckicelake.translate.files import LeafTypes, to_data_file
from tests.translate.support.packed import pack
from tests.translate.support.room import Room
from tests.translate.test_files import UNBOUNDED_VALUES, VALUES, leaf_types

EMPTY = b"\x02\x00" + b"\x00" * 7
DIGITS = st.integers(-(2**63) - 5, 2**63 + 5).map(str)
CLOCKS = st.sampled_from(["00:00:00", "23:59:59.999999", "24:00:00", "12:01:02.5", "99:00:00", "12:01"])
DAYS = st.sampled_from(
    ["2026-01-02", "0001-01-01", "9999-12-31", "12000-01-01", "0044-03-15 (BC)", "infinity", "2026-02-31", "2026-1-1", "٢٠٢٦-01-01"]
)
ZONES = st.sampled_from(["", "+00", "+05:30", "-00:44", "+00 ", "+0000"])
FLOATS = (st.floats() | st.floats(width=32)).map(str) | st.sampled_from(
    ["1e39", "-0.0", "0.0", "inf", "-inf", "nan", "1e-50", "1e+22", "1_0"]
)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=2).map(lambda number: f"{number:f}") | st.sampled_from(
    ["-0.50", "0.5", "1", "NaN", "12345678901.00", "-0.00", "999999999999999999.99"]
)
STRINGS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40) | st.sampled_from(
    ["", "ü" * 20, "\U0010ffff" * 17, "x" * 15 + "\ud7ff" + "y", "z" * 16, "z" * 17, "a\r\nb\n", "\n"]
)
TEXTS: dict[str, st.SearchStrategy[str]] = {
    "boolean": st.sampled_from(["0", "1", "true", "false", "yes"]),
    "int": DIGITS | st.integers(-(2**31) - 2, 2**31 + 2).map(str),
    "long": DIGITS | st.sampled_from(["", "-", "+5", " 5", "5 ", "1.5", "0x1F", "1_000"]),
    "float": FLOATS,
    "double": FLOATS | DIGITS,
    "decimal(9, 2)": DECIMALS,
    "decimal(18, 2)": DECIMALS,
    "decimal(18, 18)": st.sampled_from(["0.999999999999999999", "-0.999999999999999999", "0.000000000000000001", "1.000000000000000000"]),
    "decimal(18, 0)": DIGITS,
    "decimal(38, 2)": DECIMALS | DIGITS,
    "date": DAYS,
    "time": CLOCKS,
    "timestamp": st.builds("{} {}".format, DAYS, CLOCKS) | DAYS,
    "timestamp_ns": st.builds("{} {}".format, DAYS, CLOCKS) | DAYS,
    "timestamptz": st.builds("{} {}{}".format, DAYS, CLOCKS, ZONES) | DAYS,
    "string": STRINGS,
    "uuid": st.uuids().map(str),
    "binary": st.just("\\xFF"),
    "fixed[4]": st.just("abcd"),
}
EDGES: dict[str, list[str]] = {
    "boolean": ["0", "1", "2"],
    "int": ["2147483647", "2147483648", "-2147483648", "-2147483649", "9999999999", "0", "-0", "007"],
    "long": ["999999999999999999", "9223372036854775807", "-9223372036854775808", "9223372036854775808"],
    "float": ["3.4028235e38", "3.4028236e38", "-0.0", "0.0", "1e-46", "inf", "nan"],
    "double": ["1.7976931348623157e308", "1e309", "-0.0", "0.0", "5e-324", "-inf", "nan"],
    "decimal(9, 2)": ["9999999.99", "10000000.00", "-9999999.99", "-10000000.00", "-0.01", "0.00", "1.28", "-1.28", "-1.29", "1.5", "1"],
    "decimal(18, 0)": ["999999999999999999", "1000000000000000000", "-128", "-129", "127", "128", "32768", "-32769"],
    "decimal(38, 2)": ["999999999999999999999999999999999999.99", "9999999999999999.99", "0.01"],
    "date": ["0001-01-01", "9999-12-31", "10000-01-01", "0001-01-01 (BC)", "infinity", "2026-02-30"],
    "time": ["00:00:00", "24:00:00", "23:59:59.999999", "23:59:59.9999999", "12:00:00+00"],
    "timestamp": ["1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01 00:00:00+01"],
    "timestamptz": ["1970-01-01 00:00:00+00", "1970-01-01 00:00:00+01", "1970-01-01 00:00:00-00", "1970-01-01 00:00:00"],
    "string": ["", "0123456789abcde", "0123456789abcdef", "0123456789abcdefg", "ü" * 16, "ü" * 17, "\U0010ffff" * 17, "\n", "a" * 63 + "ü"],
}
TYPES = {field_id: PrimitiveType(name) for field_id, name in enumerate(TEXTS, 1)}
COUNTS = st.none() | st.integers(0, 2**40)


@st.composite
def statistics(draw: st.DrawFn) -> list[ColumnStatsRow]:
    """Rows of some files: columns missing, columns nobody knows, texts of every kind."""
    places = draw(st.sets(st.tuples(st.integers(1, 6), st.integers(1, len(TYPES) + 1)), max_size=40))
    rows: list[ColumnStatsRow] = []
    for file_id, column_id in draw(st.permutations(sorted(places))):
        texts = st.none() | TEXTS[TYPES[column_id].name] if column_id in TYPES else st.just("1")
        counts = [draw(COUNTS) for _ in range(3)]
        rows.append(ColumnStatsRow(file_id, column_id, *counts, draw(texts), draw(texts), draw(st.none() | st.booleans())))
    return rows


def one_by_one(rows: Sequence[ColumnStatsRow], file_ids: Sequence[int], types: LeafTypes) -> list[bytes]:
    """The metrics of each file, value by value."""
    found: list[bytes] = []
    for file_id in file_ids:
        row = DataFileRow(file_id, 1, "f", True, 5, 100, 40, None, None, None, None, None)
        own = [stats for stats in rows if stats.data_file_id == file_id]
        found.append(encode_one(RowParts(), to_data_file(row, "s3://b/f", (), own, types)))
    return found


@settings(deadline=None)
@given(statistics())
def test_all_files_at_once_are_told_as_one_by_one(rows: list[ColumnStatsRow]) -> None:
    """Any text, usual, odd or garbage, gives the same bounds; files that are not asked for are passed over."""
    asked = [2, 3, 4, 5, 9]
    assert encode_metrics(pack(rows), asked, TYPES) == one_by_one(rows, asked, TYPES)


@settings(deadline=None)
@given(st.data())
def test_a_column_of_one_type(data: st.DataObject) -> None:
    """Many files with texts of one type: what is usual is converted together with what is not."""
    field_id = data.draw(st.sampled_from(sorted(TYPES)))
    texts = data.draw(st.lists(st.tuples(TEXTS[TYPES[field_id].name], TEXTS[TYPES[field_id].name]), min_size=1, max_size=30))
    rows = [ColumnStatsRow(n, field_id, 1, 1, 0, low, high, None) for n, (low, high) in enumerate(texts)]
    assert encode_metrics(pack(rows), range(len(rows)), TYPES) == one_by_one(rows, range(len(rows)), TYPES)


@pytest.mark.parametrize("name", EDGES)
def test_texts_at_the_edges_of_a_type(name: str) -> None:
    """Alone, and among the others: one that is out of the ordinary changes nothing for its neighbours."""
    field_id = next(key for key, type_ in TYPES.items() if type_.name == name)
    rows = [ColumnStatsRow(n, field_id, 1, 1, 0, text, text, None) for n, text in enumerate(EDGES[name])]
    expected = one_by_one(rows, range(len(rows)), TYPES)
    assert encode_metrics(pack(rows), range(len(rows)), TYPES) == expected
    for row in rows:
        assert encode_metrics(pack([row]), [row.data_file_id], TYPES) == [expected[row.data_file_id]]


@pytest.mark.parametrize("counts", [(0, 0), (0, 1), (1, 0), (None, 0), (0, None)])
@pytest.mark.parametrize("has_nan", [None, True, False])
def test_counts_are_told_when_something_was_counted(counts: tuple[int | None, int | None], has_nan: bool | None) -> None:
    """Nothing counted, one count missing, no word on NaN: as for a single file."""
    rows = [ColumnStatsRow(1, 5, 3, *counts, None, None, has_nan), ColumnStatsRow(2, 5, None, 2, 2, "1", "2", False)]
    assert encode_metrics(pack(rows), [1, 2], TYPES) == one_by_one(rows, [1, 2], TYPES)


def test_files_without_statistics() -> None:
    """None at all is fine: sizes are an empty map, which PyIceberg wants, the rest is null."""
    assert encode_metrics(pack([]), [1, 2], TYPES) == [EMPTY, EMPTY]
    assert encode_metrics(pack([]), [], TYPES) == []


@pytest.mark.parametrize("column_type", VALUES | UNBOUNDED_VALUES)
def test_what_postgres_packs_is_what_its_rows_say(room: Room, column_type: str) -> None:
    """DuckDB's own statistics of every type, NULLs and texts beyond ASCII and of any length included."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (k {column_type}, v VARCHAR)")
    for number, value in enumerate([*VALUES.get(column_type, []), *UNBOUNDED_VALUES.get(column_type, [])]):
        text = "ü" * number * 20 or "a"
        room.run(f"INSERT INTO {name} SELECT ({value})::{column_type}, CASE {number} WHEN 1 THEN NULL ELSE '{text}' END FROM range(11)")
    state = room.read(name)
    ids, types = sorted(row.data_file_id for row in room.files(state)), leaf_types(state)
    assert len(ids) > 1
    # those that follow each other are asked for otherwise
    for asked in (ids, [ids[0], ids[-1]], ids[-1:]):
        packed = read_packed_column_stats(room.postgres, state.table.table_id, asked)
        rows = read_column_stats(room.postgres, state.table.table_id, asked)
        assert encode_metrics(packed, asked, types) == one_by_one(rows, asked, types)
        assert len(packed.numbers) == 6 * 8 * len(rows)
