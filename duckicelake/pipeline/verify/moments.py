"""Which tables there are, and the states of one that both sides can show: at head and at snapshots."""

import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.pipeline.rest import Ident, Rest

_LEVEL = "\x1f"
LAKE_SNAPSHOT = "ducklake.snapshot-id"


@dataclass(frozen=True, slots=True)
class Moment:
    """A state of a table: its columns then, and the lake snapshot that has the same rows. `snapshot_id` None: as it is now."""

    schema: Schema
    snapshot_id: int | None = None
    lake_snapshot_id: int | None = None

    def __str__(self) -> str:
        return "now" if self.snapshot_id is None else f"at snapshot {self.snapshot_id}"


@dataclass(frozen=True, slots=True)
class TableState:
    """What the catalog says of a table; `version` changes with anything that does."""

    version: str
    metadata: Mapping[str, Any]

    @property
    def spec(self) -> Mapping[str, Any]:
        """What new files are partitioned by."""
        return next(spec for spec in self.metadata["partition-specs"] if spec["spec-id"] == self.metadata["default-spec-id"])

    @property
    def head(self) -> Moment:
        """The table as it is now, under its present columns."""
        return Moment(self._find_schema(self.metadata["current-schema-id"]))

    def get(self, snapshot_id: int) -> Moment:
        """The table at a snapshot. Raises: BadRequest: it has none of that id, or DuckLake never had these rows."""
        snapshot = next((item for item in self._snapshots() if item["snapshot-id"] == snapshot_id), None)
        if snapshot is None:
            raise BadRequest(f"there is no snapshot {snapshot_id}")
        if not self._is_shared(snapshot):
            raise BadRequest(f"snapshot {snapshot_id} never was the table's main state in DuckLake")
        return self._make(snapshot)

    def list_moments(self) -> list[Moment]:
        """Every snapshot that both sides can show, oldest first: not those of branches, nor of foreign history."""
        return sorted(map(self._make, filter(self._is_shared, self._snapshots())), key=lambda moment: moment.lake_snapshot_id or 0)

    def _snapshots(self) -> list[Mapping[str, Any]]:
        return self.metadata.get("snapshots", [])

    def _is_shared(self, snapshot: Mapping[str, Any]) -> bool:
        """Whether it was or is on main: what is beside it exists in Iceberg alone."""
        logged = {entry["snapshot-id"] for entry in self.metadata.get("snapshot-log", ())}
        return snapshot["snapshot-id"] in logged and LAKE_SNAPSHOT in snapshot.get("summary", {})

    def _make(self, snapshot: Mapping[str, Any]) -> Moment:
        schema = self._find_schema(snapshot.get("schema-id", self.metadata["current-schema-id"]))
        return Moment(schema, snapshot["snapshot-id"], int(snapshot["summary"][LAKE_SNAPSHOT]))

    def _find_schema(self, schema_id: int) -> Schema:
        return parse_schema(next(schema for schema in self.metadata["schemas"] if schema["schema-id"] == schema_id))


def load_state(rest: Rest, ident: Ident) -> TableState:
    """The table with all of its snapshots. Raises: NoSuchTable."""
    answer = rest.ask("GET", f"namespaces/{_format_namespace(ident.namespace)}/tables/{urllib.parse.quote(ident.name, safe='')}")
    return TableState(answer["metadata-location"], answer["metadata"])


def load_keys(rest: Rest, ident: Ident) -> Mapping[str, str]:
    """What the catalog says about how to reach the table's files."""
    config: Mapping[str, str] = rest.load_whole(ident).get("config", {})
    return config


def list_tables(rest: Rest) -> list[Ident]:
    """Every table of the catalog."""
    return [
        Ident(levels, item["name"])
        for levels in list_namespaces(rest)
        for item in list_pages(rest, f"namespaces/{_format_namespace(levels)}/tables", "identifiers", {})
    ]


def list_namespaces(rest: Rest, parent: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every namespace below one, each before what is below it."""
    for levels in list_pages(rest, "namespaces", "namespaces", {"parent": _LEVEL.join(parent)} if parent else {}):
        yield tuple(levels)
        yield from list_namespaces(rest, tuple(levels))


def list_pages(rest: Rest, path: str, key: str, query: Mapping[str, str]) -> Iterator[Any]:
    """What a listing has under a key, page by page."""
    token: str | None = ""
    while token is not None:
        answer = rest.ask("GET", f"{path}?{urllib.parse.urlencode({**query, 'pageToken': token})}")
        yield from answer[key]
        token = answer.get("next-page-token") or None


def _format_namespace(levels: tuple[str, ...]) -> str:
    return urllib.parse.quote(_LEVEL.join(levels), safe="")
