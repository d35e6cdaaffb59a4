"""The states of a table that both sides can show: an Iceberg snapshot with the DuckLake snapshot of the same rows.

`verify` and `profile` call this in the driver. Iceberg's side comes over REST; DuckLake's side is read from Postgres through DuckDB.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from duckdb import DuckDBPyConnection

from duckicelake.errors import BadRequest
from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.pipeline.common.rest import Rest, TableIdent, list_namespaces, list_pages
from duckicelake.pipeline.verify.checksums import quote_duckdb
from duckicelake.translate.namespaces import fold_name, to_schema_name

LAKE_SNAPSHOT = "ducklake.snapshot-id"

_SNAPSHOTS = "SELECT snapshot_id FROM {meta}.ducklake_snapshot"
_MOVES = """
SELECT lake_snapshot_id, snapshot_id FROM {meta}.iceberg_move WHERE table_id = {table_id} ORDER BY lake_snapshot_id
"""
_BESIDE = "SELECT snapshot_id FROM {meta}.iceberg_kept WHERE table_id = {table_id} AND manifest_list IS NOT NULL"
_COLUMNS = "SELECT column_id, column_name, begin_snapshot, end_snapshot FROM {meta}.ducklake_column WHERE table_id = {table_id}"
_COUNT_TABLES = "SELECT count(*) FROM {meta}.ducklake_table WHERE end_snapshot IS NULL"
_TABLE = """
SELECT t.table_id FROM {meta}.ducklake_table t JOIN {meta}.ducklake_schema s USING (schema_id)
WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL
    -- Names are compared as DuckDB does; its lower() folds other letters than those of ASCII too.
    AND translate(t.table_name, $upper, $lower) = $table AND translate(s.schema_name, $upper, $lower) = $namespace
"""


@dataclass(frozen=True, slots=True)
class SnapshotPair:
    """A state of a table: its columns then, and the lake snapshot that has the same rows, with the names that DuckLake has there by
    field id, which are others when main came later to what a branch had. `snapshot_id` None: as it is now.

    `is_expired`: DuckLake has let go of every lake snapshot that had them.
    """

    schema: Schema
    snapshot_id: int | None = None
    lake_snapshot_id: int | None = None
    is_expired: bool = False
    names: Mapping[int, str] | None = None

    def __str__(self) -> str:
        return "now" if self.snapshot_id is None else f"at snapshot {self.snapshot_id}"


@dataclass(frozen=True, slots=True)
class LakeHistory:
    """DuckLake's history of a table: the lake snapshots there are, those that moved main to a snapshot, by that and the oldest
    first, and the snapshots that were made on branches, whose own numbers are of lake snapshots without their rows. `columns` are
    ids and names, each with the lake snapshots that it begins and ends with.
    """

    lake_snapshot_ids: frozenset[int] = frozenset()
    moves: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    beside: frozenset[int] = frozenset()
    columns: Sequence[tuple[int, str, int, int | None]] = ()

    def find(self, snapshot_id: int) -> int | None:
        """Return a lake snapshot that has the rows of a snapshot of main; None: all have expired."""
        own = () if snapshot_id in self.beside else (snapshot_id,)
        return next((one for one in (*own, *self.moves.get(snapshot_id, ())) if one in self.lake_snapshot_ids), None)

    def list_names(self, lake_snapshot_id: int) -> Mapping[int, str]:
        """Return the columns at a lake snapshot, at every level."""
        return {
            one: name for one, name, begin, end in self.columns if begin <= lake_snapshot_id and (end is None or end > lake_snapshot_id)
        }


def name_metadata(metadata_schema: str) -> str:
    """Return the schema of DuckLake's own tables, in DuckDB's SQL."""
    return f"__ducklake_metadata_lake.{quote_duckdb(metadata_schema)}"


def read_table_id(duck: DuckDBPyConnection, meta: str, ident: TableIdent) -> int:
    """Return the id of a live table, by which Postgres is asked for its rows alone; -1, which no table has, when it was dropped."""
    names = {"table": fold_name(ident.name), "namespace": fold_name(to_schema_name(ident.namespace))}
    asked = {**names, "upper": ascii_uppercase, "lower": ascii_lowercase}
    found = duck.execute(_TABLE.format(meta=meta), asked).fetchone()
    return -1 if found is None else int(found[0])


def count_tables(duck: DuckDBPyConnection, metadata_schema: str) -> int:
    """Return how many tables the lake has, also those that this account may not see."""
    found = duck.execute(_COUNT_TABLES.format(meta=name_metadata(metadata_schema))).fetchone()
    return 0 if found is None else int(found[0])


def read_history(duck: DuckDBPyConnection, metadata_schema: str, ident: TableIdent) -> LakeHistory:
    """Return what DuckLake's rows and our `iceberg_*` tables say of a table's history."""
    meta = name_metadata(metadata_schema)
    table_id = read_table_id(duck, meta, ident)
    moves: dict[int, list[int]] = {}
    for lake_snapshot_id, snapshot_id in duck.execute(_MOVES.format(meta=meta, table_id=table_id)).fetchall():
        moves.setdefault(snapshot_id, []).append(lake_snapshot_id)
    beside = duck.execute(_BESIDE.format(meta=meta, table_id=table_id)).fetchall()
    known = duck.execute(_SNAPSHOTS.format(meta=meta)).fetchall()
    columns = duck.execute(_COLUMNS.format(meta=meta, table_id=table_id)).fetchall()
    return LakeHistory(frozenset(one for (one,) in known), moves, frozenset(one for (one,) in beside), columns)


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table's metadata from the catalog; `version` changes with anything that does."""

    version: str
    metadata: Mapping[str, Any]

    @property
    def spec(self) -> Mapping[str, Any]:
        """Return what new files are partitioned by."""
        return next(spec for spec in self.metadata["partition-specs"] if spec["spec-id"] == self.metadata["default-spec-id"])

    @property
    def head(self) -> SnapshotPair:
        """The table as it is now, under its present columns."""
        return SnapshotPair(self._get_schema(self.metadata["current-schema-id"]))

    def get(self, snapshot_id: int, history: LakeHistory) -> SnapshotPair:
        """The table at a snapshot. Raises: BadRequest: it has none of that id, or DuckLake does not have these rows, or not any more."""
        snapshot = next((item for item in self._snapshots() if item["snapshot-id"] == snapshot_id), None)
        if snapshot is None:
            raise BadRequest(f"there is no snapshot {snapshot_id}")
        if not self._is_shared(snapshot):
            raise BadRequest(f"snapshot {snapshot_id} never was the table's main state in DuckLake")
        pair = self._make(snapshot, history)
        if pair.is_expired:
            raise BadRequest(f"DuckLake has expired snapshot {snapshot_id}; without --snapshot the table is looked at as it is now")
        return pair

    def list_pairs(self, history: LakeHistory) -> list[SnapshotPair]:
        """Return every snapshot of main, oldest first: not those of branches, nor of foreign history; the expired ones come first."""
        made = (self._make(snapshot, history) for snapshot in self._snapshots() if self._is_shared(snapshot))
        return sorted(made, key=lambda pair: pair.lake_snapshot_id or 0)

    def list_manifest_lists(self, pair: SnapshotPair, *, is_all: bool) -> list[str]:
        """Return where the lists are of the manifests of a moment, or of every snapshot there is."""
        at = self.metadata.get("current-snapshot-id") if pair.snapshot_id is None else pair.snapshot_id
        return [snapshot["manifest-list"] for snapshot in self._snapshots() if is_all or snapshot["snapshot-id"] == at]

    def _snapshots(self) -> list[Mapping[str, Any]]:
        return self.metadata.get("snapshots", [])

    def _is_shared(self, snapshot: Mapping[str, Any]) -> bool:
        """Return True if it was or is on main: snapshots of other branches exist in Iceberg alone."""
        logged = {entry["snapshot-id"] for entry in self.metadata.get("snapshot-log", ())}
        return snapshot["snapshot-id"] in logged and LAKE_SNAPSHOT in snapshot.get("summary", {})

    def _make(self, snapshot: Mapping[str, Any], history: LakeHistory) -> SnapshotPair:
        schema = self._get_schema(snapshot.get("schema-id", self.metadata["current-schema-id"]))
        lake_snapshot_id = history.find(snapshot["snapshot-id"])
        names = None if lake_snapshot_id is None else history.list_names(lake_snapshot_id)
        return SnapshotPair(schema, snapshot["snapshot-id"], lake_snapshot_id, lake_snapshot_id is None, names)

    def _get_schema(self, schema_id: int) -> Schema:
        return parse_schema(next(schema for schema in self.metadata["schemas"] if schema["schema-id"] == schema_id))


def load_state(rest: Rest, ident: TableIdent) -> CatalogTable:
    """Return the table with all of its snapshots. Raises: NoSuchTable."""
    answer = rest.ask("GET", rest.locate(ident))
    return CatalogTable(answer["metadata-location"], answer["metadata"])


def load_keys(rest: Rest, ident: TableIdent) -> Mapping[str, str]:
    """Return what the catalog says about how to reach the table's files."""
    config: Mapping[str, str] = rest.load_whole(ident).get("config", {})
    return config


def list_tables(rest: Rest) -> list[TableIdent]:
    """Return every table of the catalog."""
    return [
        TableIdent(levels, item["name"])
        for levels in list_namespaces(rest)
        for item in list_pages(rest, f"namespaces/{rest.format_namespace(levels)}/tables", "identifiers", {})
    ]
