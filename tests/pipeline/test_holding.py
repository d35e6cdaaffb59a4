"""What kills are judged by: a store holds what is named, and what is missing or named by nobody is told."""

import pyarrow as pa
import pytest

from tests.pipeline.holding import check_cleared, check_holding, clear_up
from tests.rest.writing.client import open_client
from tests.support.keys import open_s3
from tests.support.readers import Served
from tests.support.tiers import long_after


@pytest.fixture
def filled(served: Served) -> Served:
    """Rows in files and inlined ones, deletes of both, a table of a client's with a branch, a view, a table under another name."""
    duck = served.lake.duckdb()
    for statement in (
        "CREATE TABLE t AS SELECT range AS id FROM range(100)",
        "INSERT INTO t VALUES (100)",
        "DELETE FROM t WHERE id IN (1, 100)",
        "CREATE SCHEMA s",
        "CREATE TABLE s.old AS SELECT range AS id FROM range(100)",
        "ALTER TABLE s.old RENAME TO renamed",
        "CREATE VIEW s.v AS SELECT id FROM lake.s.renamed",
    ):
        duck.execute(statement)
    catalog = served.pyiceberg().catalog
    rows = pa.table({"id": [1, 2]})
    table = catalog.create_table("s.theirs", rows.schema)
    table.append(rows)
    table.manage_snapshots().create_branch(table.refresh().metadata.current_snapshot_id or 0, "dev").commit()
    table.append(rows, branch="dev")
    assert served.server.get("namespaces/s/views/v").status == 200
    return served


@pytest.mark.whole
def test_a_lake_holds_what_is_named(filled: Served) -> None:
    """Whoever made it; to clear up takes only what clients' commits were made by."""
    check_cleared(filled)
    check_cleared(filled)


@pytest.mark.whole
@pytest.mark.parametrize("place", long_after(1, ["data_path", "iceberg_path", "location"]))
def test_what_nobody_names_is_told_until_it_goes(filled: Served, place: str) -> None:
    """Wherever it lies; nothing looks after what lies below ICEBERG_PATH and is no table's."""
    clear_up(filled.lake)
    location = filled.server.get("namespaces/s/tables/theirs").json["metadata"]["location"]
    folder = location + "/data/" if place == "location" else f"{getattr(filled.lake, place)}stray/"
    objects = open_client(filled.server, filled.lake).objects
    objects.put_new(f"{folder}x.parquet", b"x")
    with pytest.raises(AssertionError, match="named by nobody"):
        check_holding(filled)
    check_holding(filled, f"{folder}x.parquet")
    clear_up(filled.lake)
    assert objects.exists(f"{folder}x.parquet") == (place == "iceberg_path")


def test_what_is_lost_is_told(filled: Served) -> None:
    """Rows that somebody has still to read."""
    clear_up(filled.lake)
    [(uri,)] = filled.lake.duckdb().execute("SELECT data_file FROM ducklake_list_files('lake', 'renamed', schema => 's')").fetchall()
    open_client(filled.server, filled.lake).objects.delete(uri)
    with pytest.raises(AssertionError, match="lost"):
        check_holding(filled)


@pytest.mark.whole
@pytest.mark.parametrize("place", long_after(1, ["data_path", "location"]))
def test_what_nobody_wrote_to_its_end_is_told_until_it_goes(filled: Served, place: str) -> None:
    """S3 keeps the parts of an object that somebody began, and nobody lists it."""
    clear_up(filled.lake)
    location = filled.server.get("namespaces/s/tables/theirs").json["metadata"]["location"]
    folder = filled.lake.data_path if place == "data_path" else f"{location}/data/"
    key = {"Bucket": filled.lake.store.bucket, "Key": f"{folder}begun.parquet".removeprefix(f"s3://{filled.lake.store.bucket}/")}
    upload = open_s3(filled.lake.store).create_multipart_upload(**key)["UploadId"]
    open_s3(filled.lake.store).upload_part(**key, UploadId=upload, PartNumber=1, Body=b"x")
    with pytest.raises(AssertionError, match="begun"):
        check_holding(filled)
    assert clear_up(filled.lake) == [f"{folder}begun.parquet"]
    check_holding(filled)
