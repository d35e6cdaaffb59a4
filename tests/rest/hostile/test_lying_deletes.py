"""Manifest entries of position deletes that say what their file does not: refused, or what the file says is what counts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from duckicelake.iceberg.manifest import DataFile
from tests.crashes.asked import BASE_ROWS, Stand, new_id, require_main
from tests.rest.serving import Server
from tests.rest.writing.client import open_client, read_rows
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import long_after

FILE_PATH, POS = 2147483546, 2147483545
GONE = (0, 5, 19)

Lie = Callable[[Stand, DataFile], dict[str, Any]]


def bound(path: str, position: int) -> dict[int, bytes]:
    """A bound of both columns of a delete file."""
    return {FILE_PATH: path.encode(), POS: position.to_bytes(8, "little")}


LIES: list[Any] = [
    pytest.param(lambda stand, file: {"record_count": 1}, id="too few rows"),
    pytest.param(lambda stand, file: {"record_count": 1000}, id="too many rows"),
    pytest.param(lambda stand, file: {"record_count": 0}, id="no rows"),
    pytest.param(lambda stand, file: {"record_count": 2**40}, id="rows without end"),
    pytest.param(lambda stand, file: {"referenced_data_file": stand.find_file("u")}, id="a file of another table"),
    pytest.param(lambda stand, file: {"referenced_data_file": "s3://elsewhere/x.parquet"}, id="a file of nobody"),
    pytest.param(lambda stand, file: {"referenced_data_file": derived_file(stand)}, id="another file of the table"),
    pytest.param(
        lambda stand, file: {"lower_bounds": bound(stand.find_file("u"), 0), "upper_bounds": bound(stand.find_file("u"), 19)},
        id="bounds of another table's file",
    ),
    pytest.param(
        lambda stand, file: {"lower_bounds": bound(stand.find_file("t"), 50), "upper_bounds": bound(stand.find_file("t"), 60)},
        id="bounds of other positions",
    ),
    pytest.param(lambda stand, file: {"lower_bounds": {FILE_PATH: b"\xff\xfe", POS: b"1"}, "upper_bounds": {POS: b""}}, id="broken bounds"),
    pytest.param(lambda stand, file: {"file_size_in_bytes": 10}, id="too small a file"),
]


def derived_file(stand: Stand) -> str:
    """The file that stands for the table's inlined row."""
    return stand.find_derived_file(stand.client.load())


@pytest.mark.parametrize("lie", long_after(1, LIES))
def test_the_file_counts_and_not_what_its_manifest_says(server: Server, lake: FreshLake, lie: Lie) -> None:
    """Rows, counts and statistics are exact afterwards for both sides, or nothing has changed."""
    client = open_client(server, lake)
    stand = Stand(client, lake.duckdb())
    stand.make("u")
    base = stand.make("t")
    file = stand.write_deletes(base, stand.find_file("t"), GONE)
    before = read_rows(lake)
    answer = client.commit(client.append(base, new_id(), [], [replace(file, **lie(stand, file))]), [require_main(base)])
    if answer.status != 200:
        assert answer.error == (400, "BadRequestException")
        assert read_rows(lake) == before
        return
    left = [row for row in BASE_ROWS if row[0] not in GONE]
    duck = lake.duckdb()
    assert sorted(duck.execute("FROM t").fetchall()) == left
    assert duck.execute("SELECT count(*), min(id), max(id) FROM t").fetchall() == [(len(left), left[0][0], left[-1][0])]
    assert sorted(duck.execute("FROM u").fetchall()) == BASE_ROWS
    served = Served(lake, server).pyiceberg()
    arrow = served.read(("main", "t"))
    assert sorted(zip(*(column.to_pylist() for column in arrow.columns), strict=True)) == left
    assert lake.psycopg().execute("SELECT delete_count FROM ducklake_delete_file").fetchall() == [(len(GONE),)]
    summary = client.load()["snapshots"][-1]["summary"]
    assert (summary["added-position-deletes"], summary["total-position-deletes"]) == ("3", "3")
