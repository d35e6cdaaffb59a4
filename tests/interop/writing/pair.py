"""DuckDB's iceberg extension over REST beside DuckDB on the lake itself."""

from typing import Any

from tests.support.readers import Served


class Pair:
    """The same tables through both doors: `ice` is the REST catalog, `lake` the lake."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.ice = served.duckdb_iceberg().conn
        self.lake = served.lake.duckdb()

    def rows(self, name: str = "t") -> list[Any]:
        """The rows of a table in ns, on which both agree."""
        mine = self.ice.execute(f"FROM ice.ns.{name} ORDER BY ALL").fetchall()
        assert mine == self.lake.execute(f"FROM lake.ns.{name} ORDER BY ALL").fetchall()
        return mine
