"""The raw files: flights as they were reported, month by month, and the orders of a shop, if DuckDB's `tpch` is there to make them."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from demo.flights import find_files
from demo.load import FLIGHTS, TABLES
from duckicelake.embedded.ducklake import connect_duckdb, quote

FIRST_MONTHS, LATER_MONTHS = range(1, 11), range(11, 13)
BROKEN_LINE = "2013,10,31,the line was cut o\n"
LOOKED_UP = ("airlines", "weather")
SHOP = ("orders", "lineitem")
_SPARKS = {"VARCHAR": "STRING", "TIMESTAMPTZ": "TIMESTAMP"}


def list_columns(table: str) -> str:
    """The columns of a table of flights, in Spark's words."""
    columns = TABLES[table]
    for name, sparks in _SPARKS.items():
        columns = columns.replace(name, sparks)
    return columns


def write_flights(folder: Path, flights: int) -> Mapping[str, Path]:
    """A CSV file for each table that flights are looked up in; of flights one for each month, about so many in all, one line broken."""
    files = find_files(folder)
    (folder / "flights").mkdir()
    step = max(1, FLIGHTS // flights)
    source = f"read_csv({quote(str(files['flights']))}, all_varchar = true)"
    with connect_duckdb(folder / "extensions", ()) as duck:
        duck.execute(
            f"CREATE TABLE raw AS SELECT * EXCLUDE n FROM (SELECT *, row_number() OVER () AS n FROM {source}) WHERE n % {step} = 0"
        )
        for month in (*FIRST_MONTHS, *LATER_MONTHS):
            duck.execute(f"COPY (FROM raw WHERE month = '{month}') TO {quote(str(find_month(folder, month)))} (HEADER)")
    with find_month(folder, FIRST_MONTHS[-1]).open("a") as file:
        file.write(BROKEN_LINE)
    return {name: files[name] for name in LOOKED_UP}


def find_month(folder: Path, month: int) -> Path:
    """Where a month's file lies."""
    return folder / "flights" / f"2013-{month:02}.csv"


def write_shop(folder: Path, scale: float) -> Mapping[str, Path]:
    """A Parquet file for each table of TPC-H; none when the extension is not installed."""
    if find_spec("duckdb_extension_tpch") is None:
        return {}
    with connect_duckdb(folder / "extensions", ("tpch",)) as duck:
        duck.execute(f"CALL dbgen(sf = {scale})")
        for table in SHOP:
            duck.execute(f"COPY {table} TO {quote(str(folder / f'{table}.parquet'))}")
    return {table: folder / f"{table}.parquet" for table in SHOP}
