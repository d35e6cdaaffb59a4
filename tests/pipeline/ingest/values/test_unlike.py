"""Files of Parquet and ORC that have one column under several types."""

import pyarrow as pa
import pytest
from pyarrow import orc

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.options import Evolve
from tests.pipeline.ingest.mill import Mill

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]


@pytest.mark.parametrize("form", ["parquet", pytest.param("orc", marks=pytest.mark.long)])
def test_files_that_do_not_go_together_are_told_apart(mill: Mill, form: str) -> None:
    """The column is named, nothing is made, and what is advised works."""
    for name, kind in (("a", pa.int32()), ("b", pa.int64())):
        columns = {"id": pa.array([1 << (kind.bit_width - 2)], kind)}
        if form == "orc":
            orc.write_table(pa.table(columns), mill.folder / f"{name}.orc")
        else:
            mill.write_parquet(f"{name}.parquet", **columns)
    with pytest.raises(
        BadRequest, match="column id is (int|bigint) in some files and (int|bigint) in others.*--evolve widen; nothing was taken"
    ):
        mill.run(evolve=Evolve.widen)
    assert mill.ask("SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'raw'") == [(0,)]
    for name in ("a", "b"):
        assert mill.run(source=str(mill.folder / f"{name}.{form}"), evolve=Evolve.widen).rows_out == 1
    assert mill.rows() == [(1 << 30,), (1 << 62,)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("lines", "schema", "said"),
    [
        (['{"a":1}', '{"A":2}'], None, "A and a"),
        (['{"s":{"x":1}}', '{"s":{"X":2}}'], None, r"s\.X and s\.x"),
        (['{"l":[{"x":1,"X":2}]}'], None, r"l\.X and l\.x"),
        (['{"Id":1}'], "id bigint", "Id and id"),
    ],
    ids=["lines", "inside", "one object", "given"],
)
def test_names_of_json_that_differ_by_capitals_are_refused(mill: Mill, lines: list[str], schema: str | None, said: str) -> None:
    """Spark reads the values of one of them, and NULL for the others."""
    mill.write("a.jsonl", "\n".join(lines) + "\n")
    with pytest.raises(BadRequest, match=f"names {said} .*nothing was taken"):
        mill.run(schema=schema)
    assert mill.ask("SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'raw'") == [(0,)]


@pytest.mark.long
def test_names_of_json_may_be_written_otherwise_than_the_tables(mill: Mill) -> None:
    """All files of a run alike; keys of maps are values, and no names."""
    mill.ask("CREATE SCHEMA raw; CREATE TABLE raw.trips (id BIGINT, m MAP(VARCHAR, BIGINT))")
    mill.write("a.jsonl", '{"ID":1,"M":{"k":1,"K":2}}\n')
    assert mill.run().rows_out == 1
    assert mill.rows() == [(1, {"k": 1, "K": 2})]
