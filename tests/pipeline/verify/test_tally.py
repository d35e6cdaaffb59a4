"""Checksums: of no order, added up piece by piece, apart by partition and bin; and what differs."""

import random
from collections import Counter
from datetime import date, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import ListType, MapType, NestedField, PrimitiveType, StructType, parse_type
from duckicelake.pipeline.verify import checksums as tally_module
from duckicelake.pipeline.verify.checksums import (
    VARIANT,
    CompareSpec,
    GroupDifference,
    GroupField,
    build_compare_spec,
    check_comparable,
    check_readable,
    checksum_batches,
    compare,
    find_examples,
    format_select,
    pick_batches,
)
from duckicelake.pipeline.verify.job import Finding, VerifyOptions, VerifyReport, VerifyVerdict, read_options

INT, DATE, STAMP = PrimitiveType("int"), PrimitiveType("date"), PrimitiveType("timestamp")
FIELDS = (NestedField(1, "i", INT, False), NestedField(2, "at", STAMP, False))
WHOLE, BINS, MONTHLY = CompareSpec(FIELDS), CompareSpec(FIELDS, by_bins=True), CompareSpec(FIELDS, (GroupField("at", STAMP, "month"),))
ROWS: list[dict[str, Any]] = [{"i": i, "at": datetime(1969 + i % 3, 1 + i % 4, 2)} for i in range(300)]  # noqa: DTZ001  as in the table
GIVEN = {"every_snapshot": False, "files": False, "examples": 5}


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as an engine gives them."""
    return pa.RecordBatch.from_pylist(rows, pa.schema([("i", pa.int32()), ("at", pa.timestamp("us"))]))


def find_others(rows: list[dict[str, Any]], known: list[dict[str, Any]]) -> list[Any]:
    """The rows that are not known, or known less often."""
    return list((Counter(str(row) for row in rows) - Counter(str(row) for row in known)).elements())


@pytest.mark.parametrize("look", [pytest.param(WHOLE, id="whole"), pytest.param(BINS, id="bins"), pytest.param(MONTHLY, id="groups")])
def test_order_and_batches_do_not_matter(look: CompareSpec) -> None:
    """Rows come in any order and in any pieces."""
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    pieces = checksum_batches((batch(shuffled[start : start + 70]) for start in range(0, 300, 70)), look)
    assert compare(pieces, checksum_batches([batch(ROWS)], look)) == ()
    assert pieces.rows == 300
    assert len(pieces.groups) == {WHOLE: 1, BINS: 0, MONTHLY: 12}[look]


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param([*ROWS[:-1], {"i": 299, "at": None}], id="value"),
        pytest.param(ROWS[:-1], id="missing"),
        pytest.param([*ROWS, ROWS[5]], id="twice"),
        pytest.param([*ROWS[:-1], ROWS[0]], id="another-twice"),
        pytest.param([*ROWS[:-2], ROWS[7], ROWS[7]], id="two-of-one-for-two"),
        pytest.param([*ROWS[:-2], ROWS[298] | {"i": 299}, ROWS[299] | {"i": 298}], id="swapped"),
        pytest.param(
            [ROWS[0] | {"i": 1}, ROWS[1] | {"i": 0, "at": ROWS[2]["at"]}, ROWS[2] | {"at": ROWS[1]["at"]}, *ROWS[3:]], id="turned"
        ),
    ],
)
def test_a_difference_is_seen_with_its_rows(changed: list[dict[str, Any]]) -> None:
    """As a whole, by partition and by bin, and the rows are found in the bins that differ."""
    for look in (WHOLE, MONTHLY):
        assert compare(checksum_batches([batch(ROWS)], look), checksum_batches([batch(changed)], look))
    parts = compare(checksum_batches([batch(ROWS)], BINS), checksum_batches([batch(changed)], BINS))
    assert 1 <= len(parts) <= 6
    bins = [int(part.name.split()[1]) for part in parts]
    picked = [[row for found in pick_batches([batch(rows)], BINS, bins) for row in found.to_pylist()] for rows in (ROWS, changed)]
    mine, theirs = find_examples(picked[0], picked[1], 9)
    assert (len(mine), len(theirs)) == (len(find_others(ROWS, changed)), len(find_others(changed, ROWS)))
    assert all('"i": ' in text for text in mine + theirs)


def pick(rows: list[dict[str, Any]], pieces: int = 1) -> list[dict[str, Any]]:
    """All rows, as they are picked."""
    batches = [batch(rows[start::pieces]) for start in range(pieces)]
    return [row for found in pick_batches(batches, BINS, range(4096)) for row in found.to_pylist()]


def test_rows_that_are_the_same_are_picked_once_a_batch() -> None:
    """However many there are, and each counts."""
    one, other = ROWS[:1] * 5000 + ROWS[:9], ROWS[:1] * 4997 + ROWS[:9]
    assert len(pick(one, 3)) <= 3 * 9
    mine, theirs = find_examples(pick(one, 3), pick(other, 2), 2)
    assert (len(mine), len(set(mine)), theirs) == (2, 1, [])
    assert len(find_examples(pick(one), pick(other), 9)[0]) == 3


@pytest.mark.parametrize("most", ["MOST_PICKED", "MOST_LETTERS"])
def test_no_more_rows_are_picked_than_memory_holds(most: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a side that has more nothing is shown, and why is said."""
    monkeypatch.setattr(tally_module, most, 100)
    taken = iter(pick(ROWS))
    with pytest.raises(Unsupported, match="too many different rows"):
        find_examples([], taken, 5)
    assert len(list(taken)) >= 300 - 101


@pytest.mark.parametrize("look", [pytest.param(WHOLE, id="whole"), pytest.param(BINS, id="bins"), pytest.param(MONTHLY, id="groups")])
def test_pairs_are_seen(look: CompareSpec) -> None:
    """Two of one row are not two of another, though both are nothing by exclusive or."""
    one, other = ([*ROWS, ROWS[place], ROWS[place]] for place in (5, 17))
    assert compare(
        checksum_batches([batch(one[:200]), batch(one[200:])], look), checksum_batches([batch(other[:100]), batch(other[100:])], look)
    )


def test_partitions_that_differ_have_names() -> None:
    """Also those before 1970 and of NULL."""
    one, other = checksum_batches([batch(ROWS)], MONTHLY), checksum_batches([batch([*ROWS[1:], {"i": 7, "at": None}])], MONTHLY)
    assert compare(one, other) == (GroupDifference("at=NULL", 0, 1), GroupDifference("month(at)=1969-01", 25, 24))


@pytest.mark.parametrize(
    ("transform", "label"),
    [("year", "year(d)=1969"), ("month", "month(d)=1969-12"), ("day", "day(d)=1969-12-31"), ("identity", "d=1969-12-31")],
)
def test_dates_are_grouped_by_every_transform(transform: str, label: str) -> None:
    """Two days of one year, month or day are together."""
    look = CompareSpec((NestedField(1, "d", DATE, False),), (GroupField("d", DATE, transform),))
    rows = pa.record_batch([pa.array([date(1969, 12, 31), date(1969, 12, 31), date(1970, 1, 1), None])], names=["d"])
    found = checksum_batches([rows], look)
    assert {found.labels[key]: total.rows for key, total in found.groups.items()}[label] == 2
    assert len(found.groups) == 3


def test_what_is_compared_follows_from_the_schema() -> None:
    """Types as Iceberg has them; parts of the partition that have no name are left out; a column that Spark does not read is named."""
    schema = Schema(0, (NestedField(1, 'a"b', INT, True), NestedField(2, "u", parse_type("uuid"), False)))
    assert format_select(schema, "t", 7) == 'SELECT CAST("a""b" AS INTEGER) AS "a""b", CAST("u" AS VARCHAR) AS "u" FROM t AT (VERSION => 7)'
    spec = {"fields": [{"source-id": 1, "transform": "bucket[4]"}, {"source-id": 2, "transform": "identity"}]}
    assert [group.column for group in build_compare_spec(schema, spec).groups] == ["u"]
    check_readable(schema)
    with pytest.raises(Unsupported, match="column t is time, which Spark does not read"):
        check_readable(Schema(0, (NestedField(1, "t", PrimitiveType("time"), False),)))


def test_columns_are_read_by_the_names_that_ducklake_has() -> None:
    """At a lake snapshot with other names than the snapshot's, at every level; NULL stays NULL, and what is gone is named."""
    inner = StructType((NestedField(3, "b", INT, False), NestedField(4, "it's", INT, False)))
    kept = StructType((NestedField(9, "k", INT, False),))
    fields = (
        *(NestedField(1, "a", INT, False), NestedField(2, "s", inner, False), NestedField(5, "l", ListType(6, inner, False), False)),
        *(NestedField(7, "m", MapType(10, INT, 11, inner, False), False), NestedField(8, "k", kept, False)),
    )
    names = {1: "a b", 2: "s", 3: "B 1", 4: "c'", 5: "list", 7: "m", 8: "k", 9: "k"}
    struct = "{'c''': 2, 'B 1': 1, 'later': 0}"
    with duckdb.connect() as duck:
        row = f"7 AS \"a b\", {struct} AS s, [{struct}, NULL] AS list, MAP {{5: {struct}}} AS m, {{'k': 1}} AS k"
        duck.execute(f"CREATE TABLE s AS SELECT {row}")
        duck.execute("INSERT INTO s VALUES (NULL, NULL, NULL, NULL, NULL)")
        found = duck.execute(format_select(Schema(0, fields), "s", None, names)).to_arrow_table().to_pylist()
    value = {"b": 1, "it's": 2}
    assert found[0] == {"a": 7, "s": value, "l": [value, None], "m": [(5, value)], "k": {"k": 1}}
    assert found[1] == dict.fromkeys("aslmk")
    with pytest.raises(Unsupported, match="column it's"):
        format_select(Schema(0, fields), "s", None, {one: name for one, name in names.items() if one != 4})


def test_contradicting_options_are_refused() -> None:
    """A snapshot belongs to one table."""
    assert str(read_options(["a.b"], 7, GIVEN).tables[0]) == "a.b"
    for tables, given in ((["a.b"], GIVEN | {"every_snapshot": True}), ([], GIVEN), (["ab"], GIVEN), (["a.b"], GIVEN | {"examples": -1})):
        with pytest.raises(BadRequest):
            read_options(tables, 7, given)
    assert VerifyOptions().examples == 5


def test_the_worst_finding_decides() -> None:
    """A difference before what could not be seen, and that before all is well."""
    same, unknown, differs = (
        Finding("a.b", "now", verdict) for verdict in (VerifyVerdict.same, VerifyVerdict.unknown, VerifyVerdict.differs)
    )
    statuses = [VerifyReport(found).status for found in ((same,), (same, unknown), (unknown, differs), ())]
    assert statuses == [0, 3, 1, 0]
    assert VerifyReport(message="nobody answers").status == 3
    assert [VerifyReport(found).verdict for found in ((same,), ())] == [VerifyVerdict.same, VerifyVerdict.nothing]
    assert VerifyReport((same, unknown)).describe()[-1] == "1 same, 1 could-not-look"


def test_why_no_rows_are_shown_is_said() -> None:
    """Below the difference, which it is nonetheless."""
    found = Finding("a.b", "now", VerifyVerdict.differs, iceberg_rows=2, ducklake_rows=1, message="boo")
    assert found.describe() == ["a.b now: differs: 2 rows in Iceberg, 1 in DuckLake", "  boo"]


def test_variants_are_readable_and_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.1 writes and measures tables with them; older releases cannot. DuckDB's values have another form."""
    schema = Schema(0, (NestedField(1, "v", VARIANT, False),))
    monkeypatch.setattr(tally_module, "READS_VARIANTS", True)
    check_readable(schema)
    with pytest.raises(Unsupported, match="column v is variant, whose values in Spark and DuckDB are not compared"):
        check_comparable(schema)
    monkeypatch.setattr(tally_module, "READS_VARIANTS", False)
    with pytest.raises(Unsupported, match="column v is variant, which Spark reads from 4.1 on"):
        check_readable(schema)
