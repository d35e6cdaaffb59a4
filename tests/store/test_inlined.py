"""Inlined rows, written by DuckDB with its default options and read as they were."""

import io
import math
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.errors import Unsupported
from duckicelake.store.derived_files import InlinedColumn, convert_rows, split_by_snapshot
from duckicelake.store.inlined_values import UnrepresentableValue
from tests.store.lake_rows import InlinedTable, read_inlined
from tests.store.values import by_bits, plain_values

NINES = "9999999999999999999999999999.9999999999"
HOUR = 3_600_000_000
INFINITE_DAYS, INFINITE_MICROS = 2**31 - 1, 2**63 - 1


def read_column(table: InlinedTable) -> list[object]:
    """The plain values of a table's only column."""
    _, rows = table.read()
    return plain_values(rows.column(0).combine_chunks())


EDGE_VALUES = [
    pytest.param("BOOLEAN", "(true), (false), (NULL)", [True, False, None], id="boolean"),
    pytest.param("TINYINT", "(-128), (127)", [-128, 127], id="int8"),
    pytest.param("UINTEGER", "(0), (4294967295)", [0, 4294967295], id="uint32"),
    pytest.param("UBIGINT", "(18446744073709551615)", [2**64 - 1], id="uint64"),
    pytest.param("HUGEINT", "(-170141183460469231731687303715884105728), (7)", by_bits([-(2.0**127), 7.0]), id="int128"),
    pytest.param("DECIMAL(38, 10)", f"(-{NINES})", [Decimal(f"-{NINES}")], id="decimal"),
    pytest.param("VARCHAR", "('it''s'), ('\\\\n'), ('a' || chr(0) || 'ü😀'), ('')", ["it's", "\\\\n", "a\0ü😀", ""], id="varchar"),
    pytest.param("BLOB", "('\\x00\\xFF\\x27A'::BLOB), (''::BLOB)", [b"\x00\xff'A", b""], id="blob"),
    pytest.param("JSON", """('{"a": [1, null]}'), ('null')""", ['{"a": [1, null]}', "null"], id="json"),
    pytest.param("UUID", "('ffffffff-ffff-ffff-ffff-fffffffffffe')", [b"\xff" * 15 + b"\xfe"], id="uuid"),
    pytest.param("DATE", "('5000-01-01 (BC)'), ('9999-12-31')", [-2545375, 2932896], id="date"),
    pytest.param("DATE", "('infinity'), ('-infinity')", [INFINITE_DAYS, -INFINITE_DAYS], id="date-infinity"),
    pytest.param("TIME", "('00:00:00'), ('23:59:59.999999'), ('24:00:00')", [0, 86_399_999_999, 86_400_000_000], id="time"),
    pytest.param("TIMETZ", "('01:00:00+00'), (NULL)", [3_600_000_000, None], id="timetz"),
    pytest.param(
        "STRUCT(t TIMETZ, l TIMETZ[])", "({'t': '01:00:00+00', 'l': ['02:00:00+00']})", [{"t": HOUR, "l": [2 * HOUR]}], id="nested"
    ),
    pytest.param("TIMESTAMP_S", "('1969-12-31 23:59:59'), ('infinity')", [-1_000_000, INFINITE_MICROS], id="timestamp_s"),
    pytest.param("TIMESTAMP_MS", "('2020-01-01 00:00:00.123')", [1577836800123000], id="timestamp_ms"),
    pytest.param("TIMESTAMP_NS", "('2020-01-01 00:00:00.123456789')", [1577836800123456789], id="timestamp_ns"),
    pytest.param("TIMESTAMP", "('290309-12-22 (BC) 00:00:00'), ('-infinity')", [-9223372022400000000, -INFINITE_MICROS], id="timestamp"),
    pytest.param("INTEGER[]", "([1, NULL]), ([]), (NULL)", [[1, None], [], None], id="list"),
    pytest.param("MAP(VARCHAR, DATE)", "(MAP {'k=1': DATE '1970-01-02', '': NULL}), (MAP {})", [[("k=1", 1), ("", None)], []], id="map"),
    pytest.param(
        "STRUCT(s VARCHAR, d DATE, f DOUBLE, b BLOB, l VARCHAR[], n STRUCT(u UUID, x DECIMAL(4, 1)))",
        """({'s': 'it''s' || chr(0), 'd': DATE '1970-01-02', 'f': 'nan'::DOUBLE, 'b': '\\x00\\x27'::BLOB, 'l': ['a''b', '}', NULL],
             'n': {'u': '00000000-0000-0000-0000-000000000001'::UUID, 'x': 1.5}}), (NULL),
           ({'s': NULL, 'd': NULL, 'f': NULL, 'b': NULL, 'l': NULL, 'n': NULL})""",
        [
            {"s": "it's\0", "d": 1, "f": b"nan", "b": b"\0'", "l": ["a'b", "}", None], "n": {"u": bytes(15) + b"\1", "x": Decimal("1.5")}},
            None,
            {"s": None, "d": None, "f": None, "b": None, "l": None, "n": None},
        ],
        id="unreadable-struct",
    ),
    pytest.param("STRUCT(a VARCHAR)[][]", "([[{'a': '}'}, NULL], [], NULL])", [[[{"a": "}"}, None], [], None]], id="unreadable-list"),
    pytest.param("MAP(INTEGER, STRUCT(a INTEGER[]))", "(MAP {1: {'a': [1]}, 2: NULL})", [[(1, {"a": [1]}), (2, None)]], id="map-of-struct"),
]


@pytest.mark.parametrize(("sql_type", "values", "expected"), EDGE_VALUES)
def test_edge_values_are_read_as_inserted(table: InlinedTable, sql_type: str, values: str, expected: list[object]) -> None:
    """Each type at its ends, inlined by DuckDB's default options."""
    table.run(f"CREATE TABLE {{t}} (v {sql_type}); INSERT INTO {{t}} VALUES {values}")
    assert read_column(table) == expected


def test_floats_keep_nan_infinity_and_the_sign_of_zero(table: InlinedTable) -> None:
    """No float changes on the way."""
    table.run("CREATE TABLE {t} (f FLOAT, d DOUBLE)")
    table.run("INSERT INTO {t} VALUES ('nan', '-inf'), ('-0.0', '-0.0'), ('1e-45', '5e-324'), (0.1, 0.1)")
    _, rows = table.read()
    singles = [math.nan, -0.0, 2.0**-149, 13421773 / 2**27]
    assert plain_values(rows.column("f").combine_chunks()) == by_bits(singles)
    assert plain_values(rows.column("d").combine_chunks()) == by_bits([-math.inf, -0.0, 5e-324, 0.1])


def test_sessions_in_other_zones_mean_the_same_instant(table: InlinedTable) -> None:
    """The zone of the writer's session changes nothing."""
    table.run("CREATE TABLE {t} (z TIMESTAMPTZ)")
    for zone in ("America/New_York", "Asia/Kolkata", "Pacific/Chatham", "UTC"):
        table.run(f"SET TimeZone = '{zone}'; INSERT INTO {{t}} VALUES (TIMESTAMPTZ '1850-06-01 12:00:00+00')")
    assert read_column(table) == [-3_773_736_000_000_000] * 4


def test_what_duckdb_reads_right_we_read_alike(table: InlinedTable) -> None:
    """DuckDB's own reading of inlined rows is another judge, where it has no defect."""
    table.run("CREATE TABLE {t} (a INTEGER, b VARCHAR, c DECIMAL(9, 2), d DATE, e TIMESTAMP, l VARCHAR[], m MAP(VARCHAR, INTEGER), u UUID)")
    table.run("""INSERT INTO {t} SELECT i, 'x' || i, i / 3, DATE '2000-01-01' + i::INTEGER, TIMESTAMP '2000-01-01' + to_seconds(i),
                 ['a,' || i, NULL], MAP {'k': i}, ('00000000-0000-0000-0000-00000000000' || i)::UUID FROM range(9) r(i)""")
    _, rows = table.read()
    ours = [tuple(row.values()) for row in rows.select(range(8)).to_pylist()]
    assert ours == [(*row[:6], list(row[6].items()), row[7]) for row in table.fetch("FROM {t} ORDER BY a")]


def test_every_snapshot_has_its_own_rows(table: InlinedTable) -> None:
    """Inserts and updates of several snapshots come apart, an updated row keeps its id, and order is by snapshot and id."""
    table.run("CREATE TABLE {t} (i INTEGER)")
    for change in ("INSERT INTO {t} VALUES (1), (2)", "INSERT INTO {t} VALUES (3)", "UPDATE {t} SET i = 10 WHERE i = 1"):
        table.run(change)
    _, rows = table.read()
    parts = [(snapshot_id, part.to_pydict()) for snapshot_id, part in split_by_snapshot(rows)]
    first = parts[0][0]
    assert parts == [
        (first, {"i": [1, 2], "_row_id": [0, 1], "_last_updated_sequence_number": [first] * 2}),
        (first + 1, {"i": [3], "_row_id": [2], "_last_updated_sequence_number": [first + 1]}),
        (first + 2, {"i": [10], "_row_id": [0], "_last_updated_sequence_number": [first + 2]}),
    ]
    assert list(split_by_snapshot(rows.slice(0, 0))) == []


@pytest.mark.parametrize(
    ("sql_type", "value", "told"),
    [
        pytest.param("INTERVAL", "INTERVAL 1 MONTH", r"'v' has type interval", id="interval"),
        pytest.param("STRUCT(i INTERVAL)", "{'i': INTERVAL 1 MONTH}", r"'v\.i' has type interval", id="nested-interval"),
    ],
)
def test_what_iceberg_cannot_say_is_refused_by_name(table: InlinedTable, sql_type: str, value: str, told: str) -> None:
    """The refusal names the column, its type and the remedy."""
    table.run(f"CREATE TABLE {{t}} (v {sql_type}); INSERT INTO {{t}} VALUES ({value})")
    with pytest.raises(Unsupported, match=told + ".*(drop the column|change)"):
        table.read()


INEXACT = [
    pytest.param("HUGEINT", "9007199254740993", 1, 2.0**53, id="double"),
    pytest.param("HUGEINT[]", "[9007199254740993]", 2, [2.0**53], id="double-in-a-list"),
    pytest.param(
        "STRUCT(a INTEGER, t TIMETZ)", "{'a': 1, 't': '01:00:00+05:30'}", 3, {"a": 1, "t": 70_200_000_000}, id="offset-in-a-struct"
    ),
    pytest.param("TIMETZ", "'24:00:00+00'", 1, 0, id="midnight-at-the-end"),
]


@pytest.mark.parametrize(("sql_type", "value", "field_id", "stored"), INEXACT)
def test_an_inexact_value_is_named_where_it_is_shown(table: InlinedTable, sql_type: str, value: str, field_id: int, stored: object) -> None:
    """Of a column that no schema shows, the derived file has what DuckDB's own files hold."""
    table.run(f"CREATE TABLE {{t}} (v {sql_type}); INSERT INTO {{t}} VALUES ({value})")
    columns, rows = read_inlined(table.psycopg, table.name)
    with pytest.raises(UnrepresentableValue) as found:
        convert_rows(columns, rows)
    assert found.value.field_id == field_id
    hidden = convert_rows([hide(column) for column in columns], rows)
    assert plain_values(hidden.column(0).combine_chunks()) == by_bits([stored])


def hide(column: InlinedColumn) -> InlinedColumn:
    """The column and all its parts, in no schema any more."""
    return replace(column, children=tuple(hide(child) for child in column.children), is_shown=False)


@pytest.mark.parametrize(
    ("sql_type", "value"), [("INTERVAL", "INTERVAL 1 MONTH"), ("MAP(VARCHAR, INTERVAL)", "MAP {'a': INTERVAL 1 HOUR}")]
)
def test_a_hidden_column_of_any_type_is_in_nobodys_way(table: InlinedTable, sql_type: str, value: str) -> None:
    """It holds no value of a type that Iceberg does not have; the other columns are as they were."""
    table.run(f"CREATE TABLE {{t}} (i INTEGER, v {sql_type}); INSERT INTO {{t}} VALUES (7, {value})")
    columns, rows = read_inlined(table.psycopg, table.name)
    converted = convert_rows([columns[0], hide(columns[1])], rows)
    assert converted.column(0).to_pylist() == [7]
    assert "1" not in repr(converted.column(1).to_pylist())


@pytest.mark.parametrize("ducklake_type", ["variant", "geometry", "time_ns", "unknown", "decimal(x)", ""])
def test_types_nobody_inlines_are_refused(ducklake_type: str) -> None:
    """A type we do not know is no guess."""
    with pytest.raises(Unsupported, match="'c' has type"):
        convert_rows([InlinedColumn(1, "c", ducklake_type)], [])


def test_types_of_ducklake_1_1() -> None:
    """Nanoseconds with a zone are texts in Postgres; a column of NULLs has none but NULLs."""
    columns = [InlinedColumn(1, "at", "timestamptz_ns"), InlinedColumn(2, "n", "null")]
    converted = convert_rows(columns, [(0, 1, "1969-12-31 23:59:59.999999999+00", None), (1, 1, "1970-01-01 02:00:00.000000001+02", None)])
    assert converted.column(0).cast(pa.int64()).to_pylist() == [-1, 1]
    assert converted.column(1).to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("ducklake_type", "value"),
    [
        pytest.param("int32", 2**31, id="int32"),
        pytest.param("varchar", b"\xff", id="varchar"),
        pytest.param("date", "2020-02-30", id="date"),
        pytest.param("uuid", "no uuid", id="uuid"),
        pytest.param("decimal(4, 1)", Decimal("1000"), id="decimal"),
        pytest.param("uint64", "-1", id="uint64"),
        pytest.param("boolean", "yes", id="boolean"),
    ],
)
def test_a_poisoned_value_is_refused_by_name(ducklake_type: str, value: object) -> None:
    """A value outside its type is an answer to the user, not a crash."""
    with pytest.raises(Unsupported, match="'c'"):
        convert_rows([InlinedColumn(1, "c", ducklake_type)], [(0, 1, value)])


def test_columns_count_by_place(table: InlinedTable) -> None:
    """DuckLake folds a name's case in the inlined table; the derived file has the real one and the field ids."""
    table.run('CREATE TABLE {t} ("MyCol" INTEGER, "Sel ect" INTEGER); INSERT INTO {t} VALUES (1, 2)')
    [file] = table.read_files().values()
    assert pq.read_table(io.BytesIO(file.content)).column_names == ["MyCol", "Sel ect", "_row_id", "_last_updated_sequence_number"]


def test_a_column_may_bear_a_reserved_name(table: InlinedTable) -> None:
    """Readers go by field id, and no file has two columns of one name."""
    table.run("CREATE TABLE {t} (_row_id INTEGER); INSERT INTO {t} VALUES (5)")
    [file] = table.read_files().values()
    schema = pq.read_schema(io.BytesIO(file.content))
    assert {(field.metadata or {})[b"PARQUET:field_id"]: field.name for field in schema} == {
        b"1": "_row_id",
        b"2147483540": "_ducklake_internal_row_id",
        b"2147483539": "_last_updated_sequence_number",
    }
