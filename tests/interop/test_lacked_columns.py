"""Files that lack a column with a default, though they came later than it: all readers take the default for its values."""

from typing import Any

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.io.pyarrow import _dataframe_to_data_files  # pyright: ignore[reportPrivateUsage]

from tests.rest.writing.refs.maintenance import EVERYTHING
from tests.support.readers import Ident, Served
from tests.support.tiers import whole_after

T: Ident = ("main", "t")


def read_all(served: Served) -> list[list[tuple[Any, ...]]]:
    """The rows of DuckDB, of PyIceberg and of DuckDB's `iceberg` extension."""
    duck = sorted(served.lake.duckdb().execute("FROM t").fetchall(), key=repr)
    others = [reader.read(T).to_pylist() for reader in (served.pyiceberg(), served.duckdb_iceberg())]
    return [duck, *(sorted((tuple(row.values()) for row in rows), key=repr) for rows in others)]


def check_alike(served: Served, said: str) -> None:
    """Fail unless all have the same rows."""
    duck, *others = read_all(served)
    assert [rows == duck for rows in others] == [True, True], (said, duck, others)


@pytest.mark.whole
@pytest.mark.parametrize("limit", whole_after(1, [pytest.param(0, id="files"), pytest.param(10, id="inlined")]))
def test_rewritten_files_have_none_of_a_later_column(served: Served, limit: int) -> None:
    """DuckLake rewrites files by the columns that they had: when the older ones have expired, only the new ones tell."""
    duck = served.lake.duckdb()
    duck.execute(f"CALL lake.set_option('data_inlining_row_limit', {limit})")
    duck.execute("CREATE TABLE t (id INTEGER, name VARCHAR)")
    duck.execute("INSERT INTO t SELECT i, 'x' FROM range(20) r(i)")
    duck.execute("ALTER TABLE t ADD COLUMN more INTEGER DEFAULT 5")
    duck.execute("UPDATE t SET name = 'y' WHERE id < 5")
    duck.execute("DELETE FROM t WHERE id = 7")
    check_alike(served, "before")
    for statement in EVERYTHING:
        duck.execute(statement)
        check_alike(served, statement)
    duck.execute("INSERT INTO t VALUES (100, 'z', NULL)")
    check_alike(served, "one more")
    assert (100, "z", None) in read_all(served)[1]


def test_a_column_is_not_lacked_by_what_came_after_its_end(served: Served) -> None:
    """No file has it any more then, and no reader looks for it there: the table stays as it was."""
    duck = served.lake.duckdb()
    fill(duck, "CREATE TABLE t (id INTEGER)", "ALTER TABLE t ADD COLUMN more INTEGER DEFAULT 5", "INSERT INTO t VALUES (1, 2)")
    fill(duck, "ALTER TABLE t DROP COLUMN more", "INSERT INTO t VALUES (3)")
    check_alike(served, "dropped")
    assert served.server.get("namespaces/main/tables/t").json["metadata"]["format-version"] == 2


def fill(duck: DuckDBPyConnection, *statements: str) -> None:
    """Each to files."""
    duck.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
    for statement in statements:
        duck.execute(statement)


def test_files_that_clients_wrote_before_the_column_came(served: Served) -> None:
    """They are committed after it, to a table that was empty when it came."""
    duck = served.lake.duckdb()
    fill(duck, "CREATE TABLE t (id INTEGER)")
    table = served.pyiceberg().catalog.load_table(T)
    with table.transaction() as transaction:
        rows = pa.table({"id": pa.array([2, 3], pa.int32())})
        files = list(_dataframe_to_data_files(transaction.table_metadata, rows, table.io))
        fill(duck, "ALTER TABLE t ADD COLUMN more INTEGER DEFAULT 5")
        with transaction.update_snapshot().fast_append() as append:
            for file in files:
                append.append_data_file(file)
    check_alike(served, "late")
    assert (2, 5) in read_all(served)[0]
    duck.execute("INSERT INTO t VALUES (100, NULL)")
    check_alike(served, "one more")
