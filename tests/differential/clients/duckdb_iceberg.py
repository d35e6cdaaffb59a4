"""DuckDB's iceberg extension as a second writer: a step of a history as the same SQL, spoken to the catalog."""

from dataclasses import dataclass

from duckdb import DuckDBPyConnection

from tests.differential.generator.model import Lake
from tests.differential.generator.steps import Step


@dataclass(frozen=True, slots=True)
class DuckDBIcebergWriter:
    """A session with the catalog attached as `ice`."""

    conn: DuckDBPyConnection

    def commit(self, step: Step, lake: Lake) -> None:
        """Commit a step to the lake it starts from; several operations are one transaction."""
        statements, _ = step.run(lake)
        # A namespace with a dot in its name is found only after a listing.
        self.conn.execute("SELECT count(*) FROM duckdb_tables() WHERE database_name = 'ice'")
        self.conn.execute("USE ice")
        for statement in statements if len(statements) == 1 else ["BEGIN", *statements, "COMMIT"]:
            self.conn.execute(statement)
