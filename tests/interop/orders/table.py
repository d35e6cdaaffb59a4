"""A table whose history is known by heart, filled by DuckDB."""

from dataclasses import dataclass

from tests.support.readers import Served

IDENT = ("shop", "orders")

# After CREATE SCHEMA (1) and CREATE TABLE (2), each makes one lake snapshot; all but ALTER make a snapshot of the table.
INSERT_MANY = 3
INSERT_ONE = 4
DELETE_MANY = 5
UPDATE_ONE = 6
ADD_COLUMN = 7
INSERT_LAST = 8
STATEMENTS = {
    INSERT_MANY: "INSERT INTO shop.orders SELECT i, 'item ' || i, i * 1.5 FROM range(100) t(i)",
    INSERT_ONE: "INSERT INTO shop.orders VALUES (100, 'extra', NULL)",
    DELETE_MANY: "DELETE FROM shop.orders WHERE id < 20",
    UPDATE_ONE: "UPDATE shop.orders SET item = 'changed' WHERE id = 50",
    ADD_COLUMN: "ALTER TABLE shop.orders ADD COLUMN note VARCHAR",
    INSERT_LAST: "INSERT INTO shop.orders VALUES (101, 'last', 7, 'hello'), (102, 'very last', 8, NULL)",
}
SNAPSHOTS = [INSERT_MANY, INSERT_ONE, DELETE_MANY, UPDATE_ONE, INSERT_LAST]
OPERATIONS = ["append", "append", "delete", "overwrite", "append"]
ROW_COUNTS = {INSERT_MANY: 100, INSERT_ONE: 101, DELETE_MANY: 81, UPDATE_ONE: 81, INSERT_LAST: 83}


@dataclass(frozen=True, slots=True)
class Orders:
    """The filled table behind its server."""

    served: Served

    def count_at(self, snapshot_id: int) -> int:
        """How many rows DuckDB sees at a lake snapshot."""
        conn = self.served.lake.duckdb()
        row = conn.execute(f"SELECT count(*) FROM shop.orders AT (VERSION => {snapshot_id})").fetchone()
        assert row is not None
        return row[0]


def fill_orders(served: Served) -> Orders:
    """Create and fill the table."""
    conn = served.lake.duckdb()
    conn.execute("CREATE SCHEMA shop")
    conn.execute("CREATE TABLE shop.orders (id BIGINT NOT NULL, item VARCHAR, price DECIMAL(9,2))")
    for statement in STATEMENTS.values():
        conn.execute(statement)
    return Orders(served)
