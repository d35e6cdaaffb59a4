"""Locations that lie in each other are found by index, and are those that a comparison of all of them finds."""

from collections.abc import Iterator

import pytest
from psycopg import Connection

from duckicelake.lake.install import install
from duckicelake.lake.locations import find_overlapping_table, find_overlapping_view, find_owning_location, list_folders
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack

LONG = "s3://b/" + "ä" * 600
LOCATIONS = (
    *("s3://b/a", "s3://b/a/b/c", "s3a://b/n", "s3://b/a0", "s3://b/a!", "s3://c", "file:/x/y", "/z"),
    *(LONG, f"{LONG}/t", f"{LONG}0"),
)
ASKED = (
    *(*LOCATIONS, "s3://b", "s3://b/a/b", "s3://b/a/x", "s3://b/n/1", "s3://b/ab", "s3://c/d/e", "file:///x", "file:///x/y/z"),
    *(f"{LONG}/t/u", f"{LONG}/", LONG[:-1], "s3://b/a/b/c0", "s3:", "/", ""),
)


def to_plain(location: str) -> str:
    """The spelling in which locations are compared."""
    return location.replace("s3a://", "s3://").replace("file:/x", "file:///x") if "///" not in location else location


def overlaps(one: str, other: str) -> bool:
    """The rule: one is the other, or lies in it."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


@pytest.fixture(scope="module")
def located(stack: SharedStack) -> Iterator[Connection]:
    """A lake with a table, a table that was moved away, and a view at each location, each of which is live."""
    with make_lake(stack) as lake:
        conn = lake.psycopg()
        install(conn, lake.metadata_schema, lake.iceberg_path)
        for number, location in enumerate(LOCATIONS, 1000):
            row = {"id": number, "location": location, "name": f"t{number}"}
            conn.execute(
                "INSERT INTO ducklake_table (table_id, table_uuid, begin_snapshot, schema_id, table_name, path, path_is_relative)"
                " VALUES (%(id)s, gen_random_uuid(), 0, 0, %(name)s, 'x/', true)",
                row,
            )
            conn.execute("INSERT INTO iceberg_table VALUES (%(id)s, %(location)s, 2, 0, 1, 1, 0, '', 0)", row)
        yield conn


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_overlapping_tables_are_those_that_lie_in_each_other(located: Connection, asked: str) -> None:
    """Each table is compared with all others: it is found if and only if it overlaps."""
    plain = to_plain(asked)
    for number, location in enumerate(LOCATIONS, 1000):
        others = [n for n in range(1000, 1000 + len(LOCATIONS)) if n != number]
        with located.transaction(force_rollback=True):
            located.execute("DELETE FROM iceberg_table WHERE table_id = ANY(%s)", (others,))
            found = find_overlapping_table(located, -1, plain)
            assert (found is not None) == overlaps(plain, to_plain(location)), location
            located.execute("INSERT INTO iceberg_location VALUES (%s, 1, %s)", (number, location))
            located.execute("DELETE FROM iceberg_table")
            assert find_overlapping_table(located, -1, plain) == found
            assert find_overlapping_table(located, number, plain) is None


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_overlapping_views_are_those_that_lie_in_each_other(located: Connection, asked: str) -> None:
    """Where a view says that it is, and the folder of its metadata file, are found; not those of a dropped view."""
    plain = to_plain(asked)
    for location in LOCATIONS:
        for told, metadata_location in ((f"{location}/", "q/m"), ("q", f"{location}/v1.json")):
            with located.transaction(force_rollback=True):
                located.execute(
                    "INSERT INTO iceberg_view VALUES (1, 1, %s, json_build_object('location', %s::text), '', '', true)",
                    (metadata_location, told),
                )
                assert find_overlapping_view(located, plain) is None
                located.execute(
                    "INSERT INTO ducklake_view (view_id, view_uuid, begin_snapshot, schema_id, view_name, dialect, sql, column_aliases)"
                    " VALUES (1, gen_random_uuid(), 0, 0, 'v', 'duckdb', '', '')"
                )
                assert (find_overlapping_view(located, plain) is not None) == overlaps(plain, to_plain(location)), location


def test_files_are_found_in_the_location_of_their_table_alone(located: Connection) -> None:
    """A file lies in a location at any depth; a name that only begins like it is no folder."""
    assert find_owning_location(located, -1, ["s3://e/x", "s3://b/n/d/e/f.parquet"]) == "s3a://b/n"
    assert find_owning_location(located, -1, ["s3://b/nn/f.parquet", "s3://b/n", "file:///x/f"]) is None
    assert find_owning_location(located, 1000 + LOCATIONS.index("s3a://b/n"), ["s3://b/n/f.parquet"]) is None


def test_folders_of_many_files_are_listed_once() -> None:
    """Files of one folder share all folders."""
    assert list_folders(["s3://b/a", "s3://b/c/d", ""]) == ["s3:", "s3:/", "s3://b", "s3://b/a", "s3://b/c", "s3://b/c/d"]
