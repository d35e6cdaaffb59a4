"""Row lineage (format version 3): a row's id and the snapshot that last changed it are DuckLake's own."""

from collections import Counter

from tests.differential.generator.kinds import quote
from tests.differential.generator.model import Table
from tests.differential.generator.predicates import key_column
from tests.support.readers import DuckLakeReader, SparkReader


def check_lineage(table: Table, duckdb: DuckLakeReader, spark: SparkReader) -> None:
    """Spark's `_row_id` and `_last_updated_sequence_number` are DuckDB's `rowid` and `snapshot_id`, row for row."""
    key = key_column(table).name
    expected = duckdb.conn.execute(f"SELECT {quote(key)}, rowid, snapshot_id FROM lake.{table.sql_name}").fetchall()
    asked = f"SELECT `{key.replace('`', '``')}`, _row_id, _last_updated_sequence_number FROM {spark.sql_name(table.ident)}"
    answer = spark.spark.arrow(asked)
    shown = zip(*(column.to_pylist() for column in answer.columns), strict=True)
    assert Counter(shown) == Counter(expected), f"{table.ident}: lineage differs"
