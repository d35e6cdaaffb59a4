"""Bad rows are where the quarantine says: Python finds them there in the files, whatever blocks Spark reads these in."""

import gzip
import json
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from duckicelake.pipeline.ingest.file_source import FileReading, choose_reading
from duckicelake.pipeline.ingest.options import Format
from duckicelake.pipeline.ingest.row_checks import RowCount, RowRules, check_rows, keep_bad_files, select_bad
from duckicelake.pipeline.ingest.source import ROW, Taken
from tests.pipeline.ingest.mill import Mill
from tests.pipeline.ingest.test_avro import write_avro
from tests.support.spark import Spark, letting_go
from tests.support.tiers import long_after, long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]
COLUMNS_BEFORE = "raw string, reason string, source_file string, row_index bigint, run_id string, quarantined_at timestamp"
COLUMNS = StructType([StructField("id", LongType(), nullable=False), StructField("name", StringType())])
ENDS = ("\n", "\n", "\n", "\r\n", "\r")
BLANKS = {Format.csv: ("", " ", "\t \x01", "\x00\x1f"), Format.json: ("", "  ", "\t ")}
LINES = {
    Format.csv: (*["{n},g{n}"] * 4, "bad{n},x", '"bad{n}, x","say ""hi"""', "{n},too,many", "é{n}", "\xa0bad{n}", ",null{n}", "7"),
    Format.json: (
        *['{{"id":{n}}}'] * 4,
        '{{"id":"bad{n}"}}',
        "nothing{n}",
        "\x01{n}",
        '{{"name":"null{n}"}}',
        "{{",
        '{{"id":{n}',
        " é{n} ",
    ),
}


@contextmanager
def settings(spark: Spark, asked: Mapping[str, str]) -> Generator[None]:
    """Inside, the shared session has these."""
    before = {name: spark.session.conf.get(name, None) for name in asked}
    for name, text in asked.items():
        spark.session.conf.set(name, text)
    try:
        yield
    finally:
        for name, text in before.items():
            spark.session.conf.unset(name) if text is None else spark.session.conf.set(name, text)


def blocks(spark: Spark, size: int, *, packed: bool) -> AbstractContextManager[None]:
    """Inside, Spark reads files in blocks of so many bytes, several of them in one go or each alone."""
    told = {"spark.sql.files.maxPartitionBytes": str(size), "spark.sql.files.openCostInBytes": "0" if packed else str(size)}
    return settings(spark, told)


def read(spark: Spark, form: Format, paths: list[Path], given: Mapping[str, str] | None = None) -> FileReading:
    """The files as the job reads them for the quarantine."""
    files = [Taken(path.as_uri().replace("///", "/"), path.stat().st_size) for path in paths]
    reading = FileReading(spark.session, form, files, choose_reading(form, files, given or {}), lambda: [])
    apart = keep_bad_files(reading, {file.path: RowCount(1, 1) for file in files})
    assert isinstance(apart, FileReading)
    return apart


def find_bad(reading: FileReading) -> list[Row]:
    """What the quarantine gets of them."""
    with letting_go():
        return select_bad(check_rows(reading, COLUMNS, COLUMNS, RowRules()), reading, "run").collect()


def make_text(chance: Random, form: Format, *, header: bool, comment: str) -> str:
    """A file of text: rows good and bad, and between them what is none; each with a number of its own."""
    passed_over = [*BLANKS[form], *([f"{comment}up"] if comment else [])]
    kinds = [*LINES[form], *passed_over, *([f" {comment}{{n}}"] if comment else [])]
    above = [*chance.choices(passed_over, k=chance.randrange(3)), "id,name"] if header else []
    lines = [chance.choice(kinds) for _ in range(chance.randrange(25))]
    told = [(text, "\n") for text in above] + [
        (kind.format(n=100 + place) if "{" in kind else kind, chance.choice(ENDS)) for place, kind in enumerate(lines)
    ]
    whole = chance.choice(["", "\ufeff"]) + "".join(map("".join, told))
    return chance.choice([whole, whole.rstrip("\r\n")])


def is_row(form: Format, line: str, comment: str) -> bool:
    """Whether Spark makes a row of a line."""
    if form is Format.json:
        return bool(line.strip(" \t"))
    return any(letter > " " for letter in line) and not (comment and line.startswith(comment))


def find_expected(path: Path, reading: FileReading, comment: str) -> list[tuple[int, int, str]]:
    """Number, line and text of each bad row of a file, as Python sees it."""
    header = reading.options.get("header") == "true"
    with path.open(encoding=str(reading.options.get("encoding", "utf-8")).replace("utf-8", "utf-8-sig")) as file:
        lines = [line.rstrip("\n") for line in file]
    rows = [(line, text) for line, text in enumerate(lines, 1) if is_row(reading.form, text, comment)][int(header) :]
    return [(number, line, text) for number, (line, text) in enumerate(rows) if is_bad(reading.form, text)]


def is_bad(form: Format, line: str) -> bool:
    """Whether a line is no row of the columns."""
    if form is Format.csv:
        values = line.split(",")
        return len(values) != len(COLUMNS) or not values[0].isdecimal()
    try:
        return not isinstance(json.loads(line)["id"], int)
    except (ValueError, KeyError):
        return True


def to_text(form: Format, raw: str) -> str:
    """The line that a row was that Spark could read."""
    try:
        row = json.loads(raw)
        name = row["name"] if row["id"] is None else None
    except (ValueError, KeyError, TypeError):
        name = None
    return raw if name is None else f",{name}" if form is Format.csv else f'{{"name":"{name}"}}'


@pytest.mark.parametrize(
    ("form", "how"),
    long_but(
        [
            pytest.param(Format.csv, {}, id="csv"),
            pytest.param(Format.csv, {"header": "false", "comment": "#"}, id="csv-comments"),
            pytest.param(Format.csv, {"comment": "#", "encoding": "ISO-8859-1"}, id="csv-latin", marks=pytest.mark.long),
            pytest.param(Format.json, {}, id="json"),
        ],
        "csv",
    ),
)
@pytest.mark.parametrize(
    "rounds", long_after(1, [pytest.param(range(2), id="some"), pytest.param(range(2, 22), id="many", marks=pytest.mark.long)])
)
def test_bad_lines_are_where_they_are_said_to_be(spark: Spark, tmp_path: Path, form: Format, how: dict[str, str], rounds: range) -> None:
    """Number and line are those by which Python finds the raw text, in files of any blocks with anything between the rows."""
    comment, header = how.get("comment", ""), form is Format.csv and how.get("header") != "false"
    paths = [tmp_path / f"{number} %é.txt" for number in range(40)]
    for seed in rounds:
        chance, found = Random(seed), 0
        for path in paths:
            text = make_text(chance, form, header=header, comment=comment)
            shown = text if "encoding" not in how else text.removeprefix("\ufeff")
            path.write_bytes(shown.encode(how.get("encoding", "utf-8")))
        with blocks(spark, chance.randint(24, 90), packed=seed % 2 == 0):
            reading = read(spark, form, paths, how)
            rows = find_bad(reading)
        for path in paths:
            expected = find_expected(path, reading, comment)
            own = [row for row in rows if unquote(row["source_file"]) == f"file:{path}"]
            here = sorted((row["row_index"], row["line"], to_text(form, row["raw"])) for row in own)
            assert here == expected, (seed, path.read_bytes())
            found += len(expected)
        assert found > 100


@pytest.mark.parametrize("packed", long_but([True, False], True))
@pytest.mark.parametrize("form", long_after(1, [Format.orc, Format.avro]))
def test_rows_of_binary_files_are_numbered(spark: Spark, tmp_path: Path, form: Format, packed: bool) -> None:
    """From 0 in each file, across its blocks; there are no lines."""
    paths = {tmp_path / f"a.{form}": 0, tmp_path / f"b.{form}": 7}
    for path, offset in paths.items():
        rows = [{"id": None if i % 10_000 == offset else i * 2**33, "name": f"{path.name} {i}"} for i in range(40_000)]
        if form is Format.orc:
            orc.write_table(pa.Table.from_pylist(rows), path, stripe_size=1 << 10, batch_size=1024)
        else:
            write_avro(path, [{"name": "id", "type": ["null", "long"]}, {"name": "name", "type": "string"}], rows, sync_interval=1 << 12)
    with blocks(spark, min(path.stat().st_size for path in paths) // 5, packed=packed):
        reading = read(spark, form, list(paths))
        rows = find_bad(reading)
        with letting_go():
            told = reading.read(COLUMNS).select(f"{ROW}.block", F.spark_partition_id().alias("part")).distinct().collect()
    expected = [(path.name, i, None, f"{path.name} {i}") for path, offset in paths.items() for i in range(offset, 40_000, 10_000)]
    assert (
        sorted((Path(row["source_file"]).name, row["row_index"], row["line"], json.loads(row["raw"])["name"]) for row in rows) == expected
    )
    assert len({row["block"] for row in told}) > 3
    assert len({row["part"] for row in told}) > 1


CASES = [
    pytest.param(Format.csv, {"multiLine": "true"}, 'id,name\n1,"a\n\nb"\n\nx,c\n', [(1, None, "x,c")], id="multiline"),
    pytest.param(Format.json, {"multiLine": "true"}, '[{"id":1},\n{"name":"a"}]', [(1, None, '{"id":null,"name":"a"}')], id="json-whole"),
    pytest.param(Format.csv, {"lineSep": "|"}, "id,name|1,a||x,b\n|2,c", [(1, None, "x,b")], id="separator"),
    pytest.param(Format.csv, {"lineSep": "\n"}, "id,name\n\n1,a\nx,b\r\n", [(1, 4, "x,b")], id="unix"),
    pytest.param(Format.json, {}, '{"id":1}\n[{"id":2},{"id":3}]\n[]\nx\n', [(3, None, "x")], id="json-list"),
    pytest.param(Format.json, {}, '{"id":1}\n//\n[{"id":2}]\n', [(1, None, "//")], id="json-short-list"),
    pytest.param(Format.json, {"allowComments": "true"}, '//\n/**/[{"id":1},{"id":2}]\nx\n', [(2, None, "x")], id="json-comment"),
    pytest.param(Format.json, {}, '//\n{"id":1}\n\nx\n', [(0, 1, "//"), (2, 4, "x")], id="json-no-comment"),
    pytest.param(Format.csv, {"encoding": "Shift_JIS"}, "id,name\n1,ソ表\n\nソ,b\n", [(1, None, "ソ,b")], id="shift-jis"),
    pytest.param(Format.csv, {"encoding": "UTF-16", "multiLine": "true"}, "id,name\n1,a\nx,b\n", [(1, None, "x,b")], id="utf-16"),
    pytest.param(Format.csv, {"comment": "é"}, "id,name\né\nx,b\n", [(0, None, "x,b")], id="odd-comment"),
]


@pytest.mark.parametrize(("form", "how", "text", "expected"), long_but(CASES, "unix", "json-no-comment"))
def test_lines_are_told_where_they_are_known(
    spark: Spark, tmp_path: Path, form: Format, how: dict[str, str], text: str, expected: list[tuple[int, int | None, str]]
) -> None:
    """Rows have numbers whatever the options are; NULL is a line that is none, or with nobody knows what above it."""
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(text.encode(how.get("encoding", "utf-8"))))
    with settings(spark, {"spark.sql.legacy.javaCharsets": "true"}):
        rows = find_bad(read(spark, form, [path], how))
    # Spark 3.5 leaves what is blank at the end of a line.
    assert sorted((row["row_index"], row["line"], row["raw"].rstrip()) for row in rows) == expected


@pytest.mark.long
def test_a_header_that_spark_takes_for_a_row_moves_no_line(spark: Spark, tmp_path: Path) -> None:
    """When nothing but blank lines is in a file's first block it is one more row than there should be, and lines are not told."""
    odd, even = tmp_path / "odd.csv", tmp_path / "even.csv"
    odd.write_text(" \n" * 40 + "id,name\nx,a\n")
    even.write_text("id,name\nx,a\n")
    with blocks(spark, 30, packed=True):
        rows = find_bad(read(spark, Format.csv, [odd, even]))
    found = sorted((Path(row["source_file"]).name, row["row_index"], row["line"], row["raw"]) for row in rows)
    assert found == [("even.csv", 0, 2, "x,a"), ("odd.csv", 0, None, "id,name"), ("odd.csv", 1, None, "x,a")]


@pytest.mark.long
def test_files_without_bad_rows_are_not_read_again(spark: Spark, tmp_path: Path) -> None:
    """And Parquet numbers its rows itself."""
    paths = [tmp_path / "a b.csv", tmp_path / "c.csv"]
    for path in paths:
        path.write_text("id,name\nx,a\n")
    reading = read(spark, Format.csv, paths)
    apart = keep_bad_files(reading, {reading.files[0].path: RowCount(1, 1), reading.files[1].path: RowCount(1, 0)})
    assert isinstance(apart, FileReading)
    assert ([file.path for file in apart.files], apart.is_numbered) == ([reading.files[0].path], True)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": pa.array([1, None], pa.int64()), "name": ["a", "b"]}), path)
    numbered = read(spark, Format.parquet, [path])
    assert not numbered.is_numbered
    assert [(row["row_index"], row["line"]) for row in find_bad(numbered)] == [(1, None)]


@pytest.mark.long
def test_a_quarantine_of_an_earlier_version_gets_its_column(mill: Mill) -> None:
    """Its rows stay as they are, and have no line."""
    name = f"{mill.catalog}.raw.trips__quarantine"
    mill.spark.session.sql(f"CREATE NAMESPACE {mill.catalog}.raw")
    mill.spark.session.sql(f"CREATE TABLE {name} ({COLUMNS_BEFORE}) USING iceberg")
    mill.spark.session.sql(f"INSERT INTO {name} VALUES ('y,a', 'it was bad', 'file:/a.csv', NULL, 'run', TIMESTAMP '2026-01-01 00:00:00')")
    mill.write("a.csv", "id,name\n1,a\n\nx,b\n")
    assert mill.run(schema="id BIGINT, name STRING").rows_quarantined == 1
    assert mill.rows("trips__quarantine", "raw, row_index, line") == [("x,b", 1, 4), ("y,a", None, None)]
