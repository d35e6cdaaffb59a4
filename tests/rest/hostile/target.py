"""A served lake to send anything to: it tells whether something changed, and is as it was before the next request."""

import json
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any
from uuid import uuid4

import pyarrow as pa
from duckdb import DuckDBPyConnection
from psycopg import Connection, sql
from pyiceberg.catalog import Catalog
from pyiceberg.table.metadata import TableMetadataUtil

from duckicelake.iceberg.manifest import DataFile
from duckicelake.rest.params import SEPARATOR
from tests.rest.hostile.recorded import Words
from tests.rest.serving import Answer, make_settings, serve
from tests.rest.writing.client import COLUMNS, Client, data_file, open_client, set_ref, write_file
from tests.rest.writing.views.requests import version
from tests.support.lakes import FreshLake, make_lake
from tests.support.readers import Served, quote_ident
from tests.support.shared_stack import SharedStack

Rows = dict[str, list[str]]
"""Rows of DuckLake's and our tables, as texts."""

# that a key was refused is noted: its copy is refused alike
SELECT_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'iceberg_idempotency' ORDER BY 1"
TABLES = "namespaces/ns/tables"
VIEWS = "namespaces/ns/views"
JSON = {"content-type": "application/json"}
PLAIN = ("int32", "int64", "bool", "string")
WRITTEN: Mapping[int, str] = {1: "long", 2: "string"}
"""The columns of data files by id: a client that says others of them gets a table that nobody can read."""
CHANGES_MAX = 60
"""A lake that has changed so often is left for a new one: it keeps all its history, and reading it whole takes longer each time."""


@dataclass
class Target:
    """The tables `t` and `u` with two snapshots and a tag each, the view `v` and a dropped table, in the namespace `ns`.

    `compares`: data files are there, and after a request that is done DuckDB and PyIceberg read the same rows of all tables in `ns`.
    """

    lake: FreshLake
    client: Client
    duck: DuckDBPyConnection
    conn: Connection
    queries: Mapping[str, sql.Composed]
    dropped: str = ""
    rows: Rows = field(default_factory=dict[str, list[str]])
    made: dict[str, Any] = field(default_factory=dict[str, Any])
    changes: int = 0
    compares: bool = False
    new_ids: Any = field(default_factory=lambda: count(7_000_000_000))

    def send(self, method: str, path: str, body: bytes | None) -> Answer:
        """Send bytes, as a client of JSON."""
        return self.client.server.ask(method, path, JSON, body)

    def post(self, path: str, body: Any) -> Answer:
        """Send JSON."""
        return self.send("POST", path, json.dumps(body).encode())

    def read_rows(self) -> Rows:
        """Every row of the lake, on one connection for all requests."""
        return {name: [row[0] for row in self.conn.execute(query).fetchall()] for name, query in self.queries.items()}

    def settle(self) -> None:
        """Make what is missing, remove what is too much, and remember all rows."""
        self.post("namespaces", {"namespace": ["ns"]})
        self._remove_others()
        for name in ("t", "u"):
            if self._find(f"{TABLES}/{name}") is None or self._find(f"{TABLES}/{name}") != self.made.get(name):
                self._make_table(name)
        if self._find(f"{VIEWS}/v") is None or self._find(f"{VIEWS}/v") != self.made.get("v"):
            self.send("DELETE", f"{VIEWS}/v", None)
            body = {"name": "v", "schema": COLUMNS, "view-version": version({"spark": "SELECT id, name FROM t"}), "properties": {}}
            assert self.post(VIEWS, body).status == 200
            self.made["v"] = self._find(f"{VIEWS}/v")
        if not self.dropped:
            location = self.post(TABLES, {"name": "dropped", "schema": COLUMNS}).json["metadata-location"]
            assert self.send("DELETE", f"{TABLES}/dropped", None).status == 204
            self.dropped = location
        self.rows = self.read_rows()

    def _find(self, path: str) -> Any:
        answer = self.client.server.get(path)
        return answer.json["metadata"] if answer.status == 200 else None

    def _make_table(self, name: str) -> None:
        self.send("DELETE", f"{TABLES}/{name}", None)
        metadata = self.post(TABLES, {"name": name, "schema": COLUMNS}).json["metadata"]
        for file in ("a", "b"):
            updates = self.client.append(metadata, next(self.new_ids), [self._write(metadata, file)])
            done = self.post(f"{TABLES}/{name}", {"requirements": [], "updates": updates})
            metadata = done.json["metadata"]
        kept = set_ref("kept", metadata["current-snapshot-id"], "tag")
        assert self.post(f"{TABLES}/{name}", {"requirements": [], "updates": [kept]}).status == 200
        self.made[name] = self._find(f"{TABLES}/{name}")

    def _write(self, metadata: Any, name: str) -> DataFile:
        """Return a data file of two rows of COLUMNS, which is there when somebody is to read it."""
        if not self.compares:
            return data_file(metadata, name)
        rows = {1: pa.array([1, 2], pa.int64()), 2: pa.array([name, None])}
        return write_file(self.client, metadata, f"{name}-{uuid4()}", rows)

    def _remove_others(self) -> None:
        server = self.client.server
        found = [levels for levels in server.get("namespaces").json["namespaces"] if levels not in (["main"], ["ns"])]
        for levels in [*found, ["ns"], ["main"]]:
            path = f"namespaces/{_quote(SEPARATOR.join(levels))}"
            for kind, kept in (("tables", ("t", "u")), ("views", ("v",))):
                for ident in server.get(f"{path}/{kind}").json["identifiers"]:
                    if levels != ["ns"] or ident["name"] not in kept:
                        assert self.send("DELETE", f"{path}/{kind}/{_quote(ident['name'])}", None).status == 204
            if levels in found:
                self._remove_namespace(levels)

    def _remove_namespace(self, levels: list[str]) -> None:
        path = _quote(SEPARATOR.join(levels))
        for child in self.client.server.get(f"namespaces?parent={path}").json["namespaces"]:
            self._remove_namespace(child)
        assert self.send("DELETE", f"namespaces/{path}", None).status in (204, 404)

    def words(self) -> Words:
        """What the names in recorded requests stand for now."""
        t, u, v = (self.made[name] for name in ("t", "u", "v"))
        new_id = next(self.new_ids)
        snapshot = self.client.add(t, new_id, [self._write(t, f"n{new_id}")])
        fresh = {**t, "location": f"{self.lake.iceberg_path}fresh", "snapshots": [], "last-sequence-number": 0}
        first = self.client.add(fresh, new_id, [self._write(fresh, "a")])
        return {
            "fresh-list": first["manifest-list"],
            "uuid": t["table-uuid"],
            "other-uuid": u["table-uuid"],
            "new-uuid": str(uuid4()),
            "snapshot": t["current-snapshot-id"],
            "other-snapshot": u["current-snapshot-id"],
            "old-snapshot": t["snapshots"][0]["snapshot-id"],
            "new-snapshot": new_id,
            "second-snapshot": next(self.new_ids),
            "sequence-number": snapshot["sequence-number"],
            "second-sequence-number": snapshot["sequence-number"] + 1,
            "first-row-id": 0,
            "manifest-list": snapshot["manifest-list"],
            "other-list": u["snapshots"][-1]["manifest-list"],
            "metadata-location": self.dropped,
            "other-metadata": f"{u['location']}/metadata/v1.metadata.json",
            "location": t["location"],
            "other-location": u["location"],
            "view-uuid": v["view-uuid"],
            "view-location": v["location"],
            "data-path": self.lake.data_path,
            "iceberg-path": self.lake.iceberg_path,
            "last-assigned-field-id": t["last-column-id"],
            "current-schema-id": t["current-schema-id"],
            "last-assigned-partition-id": t["last-partition-id"],
            "default-spec-id": t["default-spec-id"],
            "default-sort-order-id": t["default-sort-order-id"],
        }

    def check(self, answer: Answer) -> None:
        """No failure of the server; refusals in Iceberg's shape that changed nothing; whatever was done can be read by everybody."""
        assert answer.status < 500 or answer.status == 501, answer.body
        if answer.status >= 400:
            assert answer.error[0] == answer.status
        self.check_change(answer.status, answer.body)

    def check_change(self, status: int, said: bytes = b"") -> None:
        """Nothing changed when the request was refused; what was done, everybody can read."""
        if status >= 300:
            assert self.read_rows() == self.rows, said
        elif self.read_rows() != self.rows:
            self.changes += 1
            self._check_readable()
            self.settle()

    def _check_readable(self) -> None:
        server = self.client.server
        for levels in server.get("namespaces").json["namespaces"]:
            path = f"namespaces/{_quote(SEPARATOR.join(levels))}"
            for ident in server.get(f"{path}/tables").json["identifiers"]:
                loaded = server.get(f"{path}/tables/{_quote(ident['name'])}")
                assert loaded.status == 200, loaded.body
                TableMetadataUtil.parse_obj(loaded.json["metadata"])
                if self.compares and levels == ["ns"] and fits_files(loaded.json["metadata"]):
                    self._check_rows(ident["name"])
            for ident in server.get(f"{path}/views").json["identifiers"]:
                assert server.get(f"{path}/views/{_quote(ident['name'])}").status == 200
        self.duck.execute("SELECT count(*) FROM duckdb_columns() WHERE database_name = 'lake'").fetchall()

    def _check_rows(self, name: str) -> None:
        """Fail unless both readers have as many rows, and the same values in columns of plain types, by name: DuckDB orders them by id."""
        ours = self.duck.execute(f"FROM {quote_ident(('ns', name))}").to_arrow_table()
        theirs = self.catalog.load_table(("ns", name)).scan().to_arrow()
        assert (ours.num_rows, ours.num_columns) == (theirs.num_rows, theirs.num_columns), name
        for i, column in enumerate(theirs.schema):
            if str(column.type).removeprefix("large_") in PLAIN:
                found = [sorted(map(repr, values.to_pylist())) for values in (ours.column(column.name), theirs.column(i))]
                assert found[0] == found[1], (name, column.name)

    @cached_property
    def catalog(self) -> Catalog:
        """PyIceberg's way to the server."""
        return Served(self.lake, self.client.server).pyiceberg().catalog


def fits_files(metadata: Any) -> bool:
    """Whether a table's columns with the ids of those in data files have their types, too."""
    [schema] = [one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"]]
    return all(WRITTEN.get(column["id"], column["type"]) == column["type"] for column in schema["fields"])


def list_queries(lake: FreshLake) -> dict[str, sql.Composed]:
    """What reads each table of the lake whole."""
    names = [row[0] for row in lake.psycopg().execute(SELECT_TABLES, [lake.metadata_schema])]
    return {name: sql.SQL("SELECT x::text FROM {} x ORDER BY 1").format(sql.Identifier(name)) for name in names}


def _quote(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())


class Range:
    """Gives a settled target to each request, and a new lake when one has changed too often."""

    def __init__(self, stack: SharedStack, *, compares: bool = False) -> None:
        self.compares = compares
        self._stack, self._opened, self._target = stack, ExitStack(), None

    def target(self) -> Target:
        """The target as every request finds it."""
        if self._target is None or self._target.changes >= CHANGES_MAX:
            self._opened.close()
            lake = self._opened.enter_context(make_lake(self._stack))
            server = self._opened.enter_context(serve(make_settings(lake)))
            target = Target(lake, open_client(server, lake), lake.duckdb(), lake.psycopg(), list_queries(lake), compares=self.compares)
            target.settle()
            self._target = target
        return self._target

    def forget(self) -> None:
        """Leave the lake for a new one: it is not as it should be."""
        self._target = None

    def close(self) -> None:
        """Stop the server and drop the lake."""
        self._opened.close()


@contextmanager
def open_range(stack: SharedStack, *, compares: bool = False) -> Generator[Range]:
    """Targets until the end of the block."""
    made = Range(stack, compares=compares)
    try:
        yield made
    finally:
        made.close()
