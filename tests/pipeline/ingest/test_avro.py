"""Avro files: everything that the other formats have, with Spark's own types, and no row lost to what Spark passes over."""

import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.file_checks import read_avro_headers
from duckicelake.pipeline.ingest.options import Evolve, IngestMode, Status
from duckicelake.pipeline.ingest.schema_evolution import EvolutionRefused
from duckicelake.pipeline.ingest.source import Taken
from tests.pipeline.ingest.mill import TABLE, Mill

LOGICAL = [
    {"name": "d", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "local_at", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "number", "type": ["null", "int", "long"]},
    {"name": "odd", "type": ["null", "string", "int"]},
    {"name": "fixed", "type": {"type": "fixed", "name": "Two", "size": 2}},
    {"name": "tags", "type": {"type": "map", "values": "string"}},
    {"name": "list", "type": {"type": "array", "items": ["null", "double"]}},
]
VALUES: dict[str, Any] = {
    **{"d": 20515, "at": 1772323200123, "local_at": 1772323200123456, "price": (12345).to_bytes(2, "big"), "kind": "B"},
    **{"number": 2**40, "odd": 7, "fixed": b"xy", "tags": {"k": "v"}, "list": [1.5, None]},
}


def write_avro(path: Path, fields: list[dict[str, Any]], rows: list[dict[str, Any]], **how: Any) -> Path:
    """A file of records; logical types are written as what they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = json.loads(json.dumps(fields))
    schema = {"type": "record", "name": "row", "fields": plain}
    with path.open("wb") as sink:
        fastavro.writer(sink, fastavro.parse_schema(schema), rows, **how)
    return path


def write_ids(path: Path, *ids: int, form: Any = "int") -> Path:
    """A file of one column, a block for each row."""
    return write_avro(path, [{"name": "id", "type": form}], [{"id": i} for i in ids], sync_interval=1)


def to_taken(path: Path) -> Taken:
    """A file as it is listed."""
    return Taken(path.as_uri(), path.stat().st_size, 0)


@pytest.mark.parametrize("lost", [1, 16, 17, 18, 19])
def test_a_file_that_was_cut_says_so(tmp_path: Path, lost: int) -> None:
    """Wherever that was, but for the end of a block, which is the end of another file."""
    path = write_ids(tmp_path / "a.avro", 1, 2, 3)
    whole = path.read_bytes()
    looks = read_avro_headers([to_taken(path)], lambda _: path.open("rb"), counts=True)
    assert [look.rows for look in looks.values()] == [3]
    path.write_bytes(whole[:-lost])
    for counts in (True, False):
        if lost == 19:
            assert read_avro_headers([to_taken(path)], lambda _: path.open("rb"), counts=counts)
            continue
        with pytest.raises(BadRequest, match=r"a\.avro cannot be read as Avro.*cut"):
            read_avro_headers([to_taken(path)], lambda _: path.open("rb"), counts=counts)


def test_files_of_other_columns_are_told_apart_by_the_schema_in_their_headers(tmp_path: Path) -> None:
    """Columns are asked of one file for each schema, so two schemas that seem to be one would lose the columns of the second."""
    whole = write_ids(tmp_path / "a.avro", 1)
    more = write_avro(tmp_path / "b.avro", [{"name": "id", "type": "int"}, {"name": "city", "type": "string"}], [{"id": 1, "city": "x"}])
    files = {to_taken(path).uri: path for path in (whole, more)}
    for counts in (True, False):
        looks = read_avro_headers(list(map(to_taken, files.values())), lambda file: files[file.uri].open("rb"), counts=counts)
        named = [[field["name"] for field in json.loads(looks[uri].schema)["fields"]] for uri in files]
        assert named == [["id"], ["id", "city"]]


@pytest.mark.parametrize(
    "content", [b"", b"Obj", b"Obj\x02", b"PAR1 is something else", b"Obj\x01\xff" + b"\xff" * 20, b"Obj\x01\x03\x01\x01"]
)
def test_what_is_no_avro_says_so(tmp_path: Path, content: bytes) -> None:
    """Empty files too: a file of Avro without rows has a header."""
    path = tmp_path / "a.avro"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=r"a\.avro cannot be read as Avro"):
        read_avro_headers([to_taken(path)], lambda _: path.open("rb"), counts=True)


@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.long
def test_avro_is_taken_as_spark_reads_it(mill: Mill) -> None:
    """Logical types, unions and enums; files of several schemas at once; columns of paths; evolution; a file that was cut; none twice."""
    write_avro(mill.folder / "day=1/a.avro", [{"name": "id", "type": "int"}, *LOGICAL], [{"id": 1} | VALUES], codec="deflate")
    write_avro(
        mill.folder / "day=2/b.avro", [{"name": "id", "type": "long"}, {"name": "more", "type": "string"}], [{"id": 2**40, "more": "m"}]
    )
    done = mill.run()
    assert (done.files, done.rows_in, done.rows_out) == (2, 2, 2)
    shown = 'id, d::VARCHAR, epoch_ms("at"), local_at::VARCHAR, price::VARCHAR, kind, number, odd, fixed, tags, list, more, day'
    first = (1, "2026-03-03", 1772323200123, "2026-03-01 00:00:00.123456", "123.45", "B", 2**40)
    assert mill.rows(columns=shown) == [
        (*first, {"member0": None, "member1": 7}, b"xy", {"k": "v"}, [1.5, None], None, 1),
        (2**40, *[None] * 10, "m", 2),
    ]
    cut = write_ids(mill.folder / "day=3/c.avro", 3, 4, 5)
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-20])
    with pytest.raises(BadRequest, match=r"day=3/c\.avro cannot be read as Avro: it was cut"):
        mill.run()
    cut.write_bytes(whole)
    assert mill.run().rows_out == 3
    write_avro(
        mill.folder / "day=3/d.avro", [{"name": "id", "type": ["null", "long"]}, {"name": "new", "type": "int"}], [{"id": 6, "new": 1}]
    )
    with pytest.raises(EvolutionRefused, match="column new"):
        mill.run()
    assert mill.run(evolve=Evolve.add).rows_out == 1
    assert len(mill.rows()) == 6
    assert mill.run().status == Status.nothing_new


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_avro_knows_the_other_modes(mill: Mill) -> None:
    """Rows without a key go to the quarantine, rows of known keys are updated; columns that do not go together are named."""
    fields = [{"name": "id", "type": ["null", "int"]}, {"name": "name", "type": "string"}]
    write_avro(mill.folder / "a.avro", fields, [{"id": 1, "name": "a"}, {"id": None, "name": "b"}])
    done = mill.run(mode=IngestMode.upsert, key=("id",))
    assert (done.rows_in, done.rows_out, done.rows_quarantined) == (2, 1, 1)
    write_avro(mill.folder / "b.avro", fields, [{"id": 1, "name": "c"}, {"id": 2, "name": "d"}])
    mill.run(mode=IngestMode.upsert, key=("id",))
    assert mill.rows() == [(1, "c"), (2, "d")]
    assert mill.rows("trips__quarantine", "raw") == [('{"id":null,"name":"b"}',)]
    write_ids(mill.folder / "c.avro", 1)
    write_avro(mill.folder / "d.avro", [{"name": "id", "type": "string"}], [{"id": "x"}])
    with pytest.raises(BadRequest, match=r"column id of .*d\.avro is string, and others int"):
        mill.run(table=TABLE.with_suffix("_2"))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_files_beside_folders_of_values_are_refused(mill: Mill) -> None:
    """Spark would pass over their rows."""
    mill.write("a.csv", "id\n1\n")
    mill.write("day=1/b.csv", "id\n2\n")
    with pytest.raises(BadRequest, match="take these files apart from each other"):
        mill.run()
