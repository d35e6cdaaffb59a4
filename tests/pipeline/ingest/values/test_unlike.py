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
