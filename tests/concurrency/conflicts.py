"""What an Iceberg client and DuckDB do to one table at once, and what it is afterwards when they do it one after the other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import LongType, StringType

from tests.crashes.asked import Stand, new_id
from tests.rest.writing.client import Client, set_ref

BASE = (
    "CREATE TABLE {t} (id BIGINT, n INTEGER, name VARCHAR)",
    "INSERT INTO {t} SELECT range, range, 'a' || range FROM range(20)",
    "INSERT INTO {t} SELECT range, range, 'b' || range FROM range(20, 40)",
    "INSERT INTO {t} SELECT range, range, 'c' || range FROM range(40, 60)",
    "INSERT INTO {t} SELECT range, range, 'd' || range FROM range(60, 80)",
    "INSERT INTO {t} VALUES (100, 100, 'inlined'), (101, NULL, NULL)",
    "DELETE FROM {t} WHERE id BETWEEN 62 AND 75",
    "DELETE FROM {t} WHERE id = 1",
)
"""Files without deletes, with a delete file, and with an inlined delete; inlined rows: every maintenance has work."""

Tables = Mapping[str, tuple[Sequence[str], Sequence[Any]]]
"""Of each table of a namespace the columns and the rows."""


@dataclass(frozen=True, slots=True)
class Side:
    """An Iceberg client and one of bare JSON in a namespace, and a DuckDB that finds files for them.

    What may be refused says whether it was done.
    """

    catalog: RestCatalog
    client: Client
    duck: DuckDBPyConnection
    namespace: str

    def append(self) -> None:
        """Add two rows."""
        self.catalog.load_table((self.namespace, "t")).append(ROWS)

    def overwrite(self) -> None:
        """Put two rows in the place of a whole file's."""
        self.catalog.load_table((self.namespace, "t")).overwrite(ROWS, "id >= 20 and id < 40")

    def delete(self) -> bool:
        """Delete rows of a file, by position."""
        [(path,)] = self.duck.execute(f"SELECT DISTINCT filename FROM {self.namespace}.t WHERE name = 'b20'").fetchall()
        return self._delete(path, [0, 1, 2])

    def delete_inlined(self) -> bool:
        """Delete an inlined row, by its position in the file that stands for it."""
        return self._delete(Stand(self.client, self.duck).find_derived_file(self._load()), [0])

    def _delete(self, path: str, positions: Sequence[int]) -> bool:
        metadata = self._load()
        file = Stand(self.client, self.duck).write_deletes(metadata, path, positions)
        return self._commit(self.client.append(metadata, new_id(), [], [file])) == 200

    def change(self, change: Callable[[UpdateSchema], object]) -> None:
        """Change columns."""
        with self.catalog.load_table((self.namespace, "t")).update_schema(allow_incompatible_changes=True) as schema:
            change(schema)

    def rename(self) -> None:
        """Call it u."""
        self.catalog.rename_table((self.namespace, "t"), (self.namespace, "u"))

    def drop(self) -> None:
        """Drop it."""
        self.catalog.drop_table((self.namespace, "t"))

    def create(self, name: str) -> None:
        """Make another table."""
        schema = {"type": "struct", "fields": [{"id": 1, "name": "own", "required": False, "type": "long"}]}
        assert self.client.post(f"namespaces/{self.namespace}/tables", {"name": name, "schema": schema}).status == 200

    def make_anew(self) -> None:
        """Drop it and make another one of its name."""
        self.drop()
        self.create("t")

    def set_property(self) -> None:
        """Set a property."""
        assert self._commit([{"action": "set-properties", "updates": {"k": "v"}}]) == 200

    def tag(self) -> None:
        """Set a tag."""
        assert self._commit([set_ref("then", self._load()["current-snapshot-id"], "tag")]) == 200

    def _load(self) -> Any:
        return self.client.server.get(f"namespaces/{self.namespace}/tables/t").json["metadata"]

    def _commit(self, updates: Sequence[Any]) -> int:
        answer = self.client.post(f"namespaces/{self.namespace}/tables/t", {"requirements": [], "updates": list(updates)})
        assert answer.status in (200, 409), answer.body
        return answer.status


ROWS = pa.table({"id": pa.array([200, 201]), "n": pa.array([200, None], pa.int32()), "name": ["ours", None]})
INSERTED = "INSERT INTO {t} VALUES (200, 200, 'ours'), (201, NULL, NULL)"


@dataclass(frozen=True, slots=True)
class Ours:
    """What an Iceberg client does, and the same in SQL."""

    do: Callable[[Side], bool | None]
    twin: Sequence[str]


OURS: Mapping[str, Ours] = {
    "append": Ours(Side.append, [INSERTED]),
    "delete": Ours(Side.delete, ["DELETE FROM {t} WHERE id BETWEEN 20 AND 22"]),
    "delete inlined": Ours(Side.delete_inlined, ["DELETE FROM {t} WHERE id = 100"]),
    "overwrite": Ours(Side.overwrite, ["DELETE FROM {t} WHERE id BETWEEN 20 AND 39", INSERTED]),
    "add column": Ours(
        lambda side: side.change(lambda to: to.add_column("more", StringType())), ["ALTER TABLE {t} ADD COLUMN more VARCHAR"]
    ),
    "drop column": Ours(lambda side: side.change(lambda to: to.delete_column("name")), ["ALTER TABLE {t} DROP COLUMN name"]),
    "rename column": Ours(lambda side: side.change(lambda to: to.rename_column("name", "label")), ["ALTER TABLE {t} RENAME name TO label"]),
    "retype column": Ours(lambda side: side.change(lambda to: to.update_column("n", LongType())), ["ALTER TABLE {t} ALTER n TYPE BIGINT"]),
    "rename table": Ours(Side.rename, ["ALTER TABLE {t} RENAME TO u"]),
    "drop table": Ours(Side.drop, ["DROP TABLE {t}"]),
    "make table again": Ours(Side.make_anew, ["DROP TABLE {t}", "CREATE TABLE {t} (own BIGINT)"]),
    "create table": Ours(lambda side: side.create("u"), ["CREATE TABLE {s}.u (own BIGINT)"]),
    "set property": Ours(Side.set_property, []),
    "set tag": Ours(Side.tag, []),
}

THEIRS: Mapping[str, str] = {
    "insert": "INSERT INTO {t} SELECT range, range, 'theirs' FROM range(300, 320)",
    "insert inlined": "INSERT INTO {t} VALUES (300, 300, 'theirs')",
    "delete": "DELETE FROM {t} WHERE id BETWEEN 21 AND 55",
    "delete inlined": "DELETE FROM {t} WHERE id IN (21, 41, 100)",
    "delete elsewhere": "DELETE FROM {t} WHERE id IN (41, 42)",
    "update": "UPDATE {t} SET n = n + 1000 WHERE id < 50",
    "truncate": "TRUNCATE {t}",
    "flush": "CALL ducklake_flush_inlined_data('lake', schema_name => '{s}', table_name => 't')",
    "merge": "CALL ducklake_merge_adjacent_files('lake', 't', schema => '{s}')",
    "rewrite": "CALL ducklake_rewrite_data_files('lake', 't', schema => '{s}', delete_threshold => 0)",
    "add column": "ALTER TABLE {t} ADD COLUMN more VARCHAR",
    "drop column": "ALTER TABLE {t} DROP COLUMN n",
    "rename column": "ALTER TABLE {t} RENAME name TO word",
    "rename table": "ALTER TABLE {t} RENAME TO u",
    "drop table": "DROP TABLE {t}",
    "create table": "CREATE TABLE {s}.u (own INTEGER)",
}
