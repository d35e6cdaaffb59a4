"""Files without field ids that only a tag or a branch still has: DuckLake forgot them, and readers map their names as before."""

import pytest

from tests.rest.writing.refs.maintenance import expire_everything
from tests.support.readers import Served
from tests.support.tiers import long_after


def add_file(served: Served, name: str, columns: str) -> None:
    """Add a file without field ids of twenty rows by `ducklake_add_data_files`."""
    duckdb, path = served.lake.duckdb(), served.lake.data_path.replace("/data/", "/outside/") + name
    duckdb.execute(f"COPY (SELECT {columns} FROM range(20) r(i)) TO '{path}' (FORMAT parquet)")
    duckdb.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}', allow_missing => true)")


@pytest.mark.parametrize("kind", long_after(1, ["tag", "branch"]))
@pytest.mark.parametrize("is_alone", long_after(1, [True, False]), ids=["alone", "beside another"])
def test_an_added_file_that_a_ref_keeps_is_read_by_name(served: Served, kind: str, is_alone: bool) -> None:
    """Its rows are rewritten for main, expired and cleaned up; another added file may have fewer columns."""
    duckdb = served.lake.duckdb()
    duckdb.execute("CREATE TABLE t (id BIGINT, s STRUCT(a INTEGER), b BIGINT)")
    add_file(served, "first.parquet", "i AS id, {'a': i::INTEGER} AS s, i * 2 AS b")
    table = served.pyiceberg().catalog.load_table("main.t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    refs = table.manage_snapshots()
    (refs.create_tag if kind == "tag" else refs.create_branch)(snapshot.snapshot_id, "kept").commit()
    duckdb.execute("DELETE FROM t WHERE id < 15")
    expire_everything(duckdb)
    if not is_alone:
        add_file(served, "second.parquet", "i AS id")
    table = served.pyiceberg().catalog.load_table("main.t")
    kept = table.scan(snapshot_id=table.refs()["kept"].snapshot_id).to_arrow()
    assert sorted(kept["b"].to_pylist()) == [i * 2 for i in range(20)]
    assert sorted(row["a"] for row in kept["s"].to_pylist()) == list(range(20))
    assert table.scan().to_arrow().num_rows == (5 if is_alone else 25)
