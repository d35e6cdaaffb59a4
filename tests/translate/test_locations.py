"""Paths and URIs."""

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.lake.rows import TableRow
from duckicelake.translate.locations import (
    deletes_uri,
    file_uri,
    find_rewritten_path,
    format_manifest_name,
    has_empty_part,
    inlined_uri,
    list_spellings,
    manifest_list_uri,
    manifest_uri,
    metadata_uri,
    rewritten_uri,
    table_folder,
    table_location,
    to_uri,
    version_hint_uri,
)
from tests.support.lakes import FreshLake

ID = UUID("0198A1B2-C3D4-7E5F-8A9B-0C1D2E3F4A5B")
UUID_TEXT = "0198a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"


def place(schema_path: str | None, schema_is_relative: bool, path: str | None, is_relative: bool) -> TableRow:
    """A table whose folder is given so."""
    return TableRow(1, ID, "t", path, is_relative, "s", schema_path, schema_is_relative)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        pytest.param(place("s/", True, "t/", True), "s3://b/data/s/t/", id="all relative"),
        pytest.param(place(None, True, None, True), "s3://b/data/", id="no paths at all"),
        pytest.param(place(None, True, "t/", True), "s3://b/data/t/", id="no schema path"),
        pytest.param(place("s3://c/s/", False, "t/", True), "s3://c/s/t/", id="schema elsewhere"),
        pytest.param(place("s/", True, "s3://c/t/", False), "s3://c/t/", id="table elsewhere"),
        pytest.param(place("s3://c/s/", False, None, True), "s3://c/s/", id="table without path, schema elsewhere"),
    ],
)
def test_folders_are_joined_as_ducklake_joins_them(table: TableRow, expected: str) -> None:
    """Each part is put before the next only when the next is relative; nothing is normalised."""
    assert table_folder("s3://b/data/", table) == expected


def test_a_file_is_found_by_any_spelling() -> None:
    """Whichever of them DuckLake has, and whichever a client tells; a file in the table's folder by its relative path too."""
    s3 = ["s3://b/d/t/x", "s3a://b/d/t/x", "s3n://b/d/t/x"]
    assert all(list_spellings("", uri) == s3 for uri in s3)
    assert list_spellings("s3://b/d/t/", "s3n://b/d/t/x") == [*s3, "x"]
    local = ["file:///d/x", "file:/d/x", "/d/x"]
    assert all(list_spellings("/e/", uri) == local for uri in local)
    assert list_spellings("/d/", "/d/x") == [*local, "x"]
    assert [has_empty_part(uri) for uri in (*s3, *local)] == [False] * 6
    assert all(has_empty_part(uri) for uri in ("s3://b/d//x", "s3://b/d/x//", "file:///d//x", "/d//x"))


@pytest.mark.parametrize(
    ("path", "is_relative", "expected"),
    [
        pytest.param("k=a%20b/x.parquet", True, "s3://b/data/s/t/k=a%20b/x.parquet", id="relative, as it is"),
        pytest.param("s3://c/x.parquet", False, "s3://c/x.parquet", id="absolute"),
        pytest.param("/tmp/x y.parquet", False, "file:///tmp/x y.parquet", id="local"),
    ],
)
def test_files_are_named_by_uri(path: str, is_relative: bool, expected: str) -> None:
    """Local paths get the scheme `file`, everything else is as DuckLake has it."""
    assert file_uri("s3://b/data/s/t/", path, is_relative) == expected


def test_a_file_of_a_local_lake_is_found_where_ducklake_put_it(local_lake: FreshLake) -> None:
    """Odd names of schemas, tables and partitions included."""
    session, conn = local_lake.duckdb(), local_lake.psycopg()
    session.execute('CREATE SCHEMA "s. x"')
    session.execute('CREATE TABLE "s. x"."t/1" (k VARCHAR, i INTEGER)')
    session.execute('ALTER TABLE "s. x"."t/1" SET PARTITIONED BY (k)')
    session.execute('INSERT INTO "s. x"."t/1" SELECT \'a b/%c\', range FROM range(100)')
    query = """
        SELECT t.table_id, t.table_uuid, t.table_name, t.path, t.path_is_relative, s.schema_name, s.path, s.path_is_relative,
               f.path, f.path_is_relative
          FROM ducklake_data_file f JOIN ducklake_table t USING (table_id) JOIN ducklake_schema s USING (schema_id)
    """
    row = conn.execute(query).fetchone()
    assert row is not None
    uri = file_uri(table_folder(local_lake.data_path, TableRow(*row[:8])), *row[8:])
    assert Path(uri.removeprefix("file://")).is_file()


@pytest.mark.parametrize(
    ("schema_name", "table_name", "expected"),
    [
        pytest.param("main", "flights_2013-b", f"main/flights_2013-b-{UUID_TEXT}", id="plain names"),
        pytest.param("a.b", "t", f"t-{UUID_TEXT}", id="dot in the namespace"),
        pytest.param("main", "a*", f"main/{UUID_TEXT}", id="wildcard in the name"),
        pytest.param("é", "a b", UUID_TEXT, id="neither is plain"),
        pytest.param("..", "..", UUID_TEXT, id="parent folders"),
        pytest.param("a" * 65, "t\n", UUID_TEXT, id="too long, line end"),
        pytest.param("", "", UUID_TEXT, id="empty"),
    ],
)
def test_a_location_has_plain_names_only(schema_name: str, table_name: str, expected: str) -> None:
    """Paths go into access policies; the uuid, in lower case, tells tables apart."""
    assert table_location("s3://b/iceberg/", ID, schema_name, table_name) == f"s3://b/iceberg/{expected}"


def test_a_local_location_is_a_uri() -> None:
    """A folder becomes a `file` URI once."""
    assert table_location("/lake/iceberg/", ID, "main", "t") == f"file:///lake/iceberg/main/t-{UUID_TEXT}"
    assert to_uri("file:///x") == "file:///x"


@given(st.text(max_size=70), st.text(max_size=70), st.uuids(), st.uuids())
def test_no_location_holds_another(schema_name: str, table_name: str, one: UUID, other: UUID) -> None:
    """Whatever tables are called, no table's folder lies in another's."""
    locations = [table_location("s3://b/i/", uuid, schema_name, table_name) + "/" for uuid in (one, other)]
    assert one == other or not locations[0].startswith(locations[1])
    assert all(location.count("/") <= 6 and "//" not in location.removeprefix("s3://") for location in locations)


def test_a_derived_file_names_the_original() -> None:
    """Each revision has a name of its own. Names of the first revision, without a number, are known too."""
    path = "é/" + 200 * "x"
    uri = rewritten_uri("s3://b/t", path, 17, 2)
    assert uri.startswith("s3://b/t/data/variants-2-17/")
    assert find_rewritten_path(uri) == find_rewritten_path(uri.replace("variants-2-", "variants-")) == path
    assert find_rewritten_path("s3://b/t/data/variants-x/abc.parquet") is None


def test_object_names() -> None:
    """Metadata is named as path readers expect it; everything else by its snapshot and digest."""
    location = "s3://b/i/t"
    assert metadata_uri(location, 12) == "s3://b/i/t/metadata/v12.metadata.json"
    assert version_hint_uri(location) == "s3://b/i/t/metadata/version-hint.text"
    assert manifest_uri(location, "d") == "s3://b/i/t/metadata/d-m0.avro"
    assert manifest_list_uri(location, 7, "d") == "s3://b/i/t/metadata/snap-7-d.avro"
    assert inlined_uri(location, 7, "d") == "s3://b/i/t/data/inlined-7-d.parquet"
    assert format_manifest_name(b"") == "e3b0c442-98fc-1c14-9afb-f4c8996fb924", "readers keep objects with a UUID in their name"
    assert deletes_uri(location, "d", "puffin") == "s3://b/i/t/data/deletes-d.puffin"
