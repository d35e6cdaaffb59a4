"""Postgres' values that Spark has no day or moment for: infinity is no day of the year 9999."""

import json
from typing import Any

import pyspark
import pytest

from duckicelake.errors import BadRequest, CatalogError
from tests.pipeline.ingest.mill import TABLE, Mill
from tests.pipeline.ingest.test_jdbc import Shop

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]

COLUMNS = 'id int, d date, t timestamp, "it\'s" timestamptz, l date[], c time'


def make_days(shop: Shop, *rows: str) -> dict[str, Any]:
    """A table of days and moments, and the options of the job that takes it."""
    shop.conn.execute(f"CREATE TABLE shop.days ({COLUMNS})".encode())
    for row in rows:
        shop.conn.execute(f"INSERT INTO shop.days VALUES ({row})".encode())
    return shop.options(reading=shop.login | {"dbtable": "shop.days"})


def list_bad(mill: Mill) -> list[tuple[int, str]]:
    """The ids of rows in quarantine, with what is said of them."""
    return [(json.loads(raw)["id"], reason) for raw, reason in mill.rows("trips__quarantine", "raw, reason")]


@pytest.mark.long
def test_infinite_days_are_quarantined(mill: Mill) -> None:
    """They were days of the years 1 and 9999; moments without a zone, at which Spark fails, and what is in lists are bad too."""
    good = "'9999-12-31', '2026-03-01 12:00:00.5', '2026-03-01 12:00:00+00', '{2026-03-01,NULL}', '10:30'"
    odd = ["'infinity'", "'-infinity'", "NULL, 'infinity'", "NULL, NULL, '-infinity'", "NULL, NULL, NULL, '{2026-03-01,infinity}'"]
    options = make_days(Shop(mill), f"0, {good}", *(f"{place}, {row}" for place, row in enumerate(odd, 1)), "6")
    done = mill.run(**options)
    assert (done.rows_in, done.rows_out, done.rows_quarantined) == (7, 2, 5)
    # Which of a moment and a time of day has a zone is not the same in all releases of Spark.
    assert mill.rows(columns="""id, d::VARCHAR, t::VARCHAR, left("it's"::VARCHAR, 19), l::VARCHAR, left(c::VARCHAR, 19)""") == [
        (0, "9999-12-31", "2026-03-01 12:00:00.5", "2026-03-01 12:00:00", "[2026-03-01, NULL]", "1970-01-01 10:30:00"),
        (6, None, None, None, None, None),
    ]
    assert list_bad(mill) == [
        (1, "column d must have a date, and no infinity"),
        (2, "column d must have a date, and no infinity"),
        (3, "column t must have a moment, and no infinity"),
        (4, "column it's must have a moment, and no infinity"),
        (5, "column l must have dates or moments, and no infinity"),
    ]
    assert '"d":"-infinity"' in mill.rows("trips__quarantine", "raw")[1][0]
    with pytest.raises(BadRequest, match="5 rows are bad"):
        mill.run(**options, table=TABLE.with_suffix("_2"), max_quarantined=4)


@pytest.mark.long
def test_an_infinite_bookmark_stops_the_run(mill: Mill) -> None:
    """The least one too, which came as a day of the year 1; another column's is quarantined once."""
    shop = Shop(mill)
    options = make_days(shop, "1, '2026-03-01', 'infinity'", "2, '-infinity'") | {"incremental_by": "D"}
    # Spark 3.5 overflows at such a day, and rows are chosen by what is in the column.
    is_read = not pyspark.__version__.startswith("3.")
    told = "1 rows of .* have no d, or one that has no place in its order" if is_read else "(?s)integer overflow.*Nothing was taken"
    with pytest.raises(CatalogError, match=told):
        mill.run(**options)
    assert mill.served.server.get("namespaces/raw/tables/trips").status == 404
    shop.conn.execute("UPDATE shop.days SET d = '2026-03-02' WHERE id = 2")
    done = mill.run(**options)
    assert (done.rows_out, done.rows_quarantined) == (1, 1)
    assert mill.rows(columns="id, d::VARCHAR") == [(2, "2026-03-02")]


@pytest.mark.long
def test_parts_by_a_day_have_each_row_once(mill: Mill) -> None:
    """Infinite ones lie in the outer parts; as a text, if one asks for that, infinity is a value like others."""
    options = make_days(Shop(mill), *(f"{day}, '2026-03-0{day}'" for day in range(1, 6)), "6, 'infinity'", "7, '-infinity'", "8")
    parts = {"partitionColumn": "d", "lowerBound": "2026-03-01", "upperBound": "2026-03-06", "numPartitions": "3"}
    done = mill.run(**options | {"reading": options["reading"] | parts})
    assert (done.rows_in, done.rows_out, done.rows_quarantined) == (8, 6, 2)
    assert sorted(one for one, _ in list_bad(mill)) == [6, 7]
    said = options["reading"] | {"dbtable": "(SELECT id, d FROM shop.days) x", "customSchema": "d STRING"}
    assert mill.run(**options | {"reading": said, "table": TABLE.with_suffix("_2")}).rows_quarantined == 0
    assert ("infinity",) in mill.rows("trips_2", "d")
