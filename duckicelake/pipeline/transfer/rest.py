"""A REST catalog as source and as target: the lake's own, or any other.

`transfer.job` calls it in the driver. Tables are read, created and registered by requests over REST. `write` and `take` write objects of
the copy to the store, with Spark or without; the table and its rows become visible afterwards, by one request.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from duckicelake.errors import BadRequest, CommitFailed, Forbidden, NoSuchTable, Unsupported
from duckicelake.iceberg.json_reader import as_object, find_text, get_text, list_objects
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot, parse_metadata
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.schema import format_schema
from duckicelake.iceberg.view_metadata import ViewMetadata, format_version, get_current_version, parse_view
from duckicelake.pipeline.common.rest import Rest, TableIdent, list_namespaces, list_pages
from duckicelake.pipeline.common.spark_sql import quote_ident
from duckicelake.pipeline.transfer.catalogs import Entry, EntryKind, ScratchCatalog, TransferTable, UnfinishedCopy
from duckicelake.pipeline.transfer.copies import Store, format_creation, format_staged_create, name_staged, write_rows
from duckicelake.pipeline.transfer.parquet_folders import take_files

_ANSWER = "the catalog's answer"
_VIEWS = "GET /v1/{prefix}/namespaces/{namespace}/views"
_RENEWAL = "client.refresh-credentials-"
"""How clients of a catalog get newer keys from it; the bench is none."""


@dataclass(frozen=True, slots=True)
class RestSide:
    """A catalog over REST; `settings` are those of Spark's catalog for it."""

    name: str
    connect: Callable[[], Rest]
    store: Store
    settings: Mapping[str, str]

    @property
    def identity(self) -> str:
        return self.name

    def ask_anything(self) -> None:
        """Have the catalog answer. Raises: ServiceUnavailable: it does not"""
        self.connect().ask("GET", "namespaces")

    def list_entries(self) -> Iterator[Entry]:
        """Yield every table and view; a namespace that the catalog lists and does not open is an entry with a reason."""
        rest = self.connect()
        for levels in list_namespaces(rest):
            try:
                found = [Entry(TableIdent(levels, name), kind) for kind in EntryKind for name in _list(rest, levels, kind)]
            except (BadRequest, Forbidden, NoSuchTable, Unsupported) as error:
                found = [Entry(TableIdent(levels[:-1], levels[-1]), EntryKind.table, fault=f"its tables cannot be listed: {error.message}")]
            yield from found

    def load(self, entry: Entry) -> TransferTable:
        """Return the table with all of its snapshots."""
        rest = self.connect()
        return _read_held(entry.ident, rest.ask("GET", rest.locate(entry.ident)))

    def load_view(self, entry: Entry) -> ViewMetadata:
        """Return the view as it is now."""
        rest = self.connect()
        answer = as_object(rest.ask("GET", rest.locate(entry.ident, EntryKind.view)), _ANSWER)
        return parse_view(as_object(answer.get("metadata"), f"the metadata of {_ANSWER}"))

    def find(self, ident: TableIdent) -> TransferTable | None:
        """Return the table of that name."""
        try:
            return self.load(Entry(ident))
        except NoSuchTable:
            return None

    def find_view(self, ident: TableIdent) -> ViewMetadata | None:
        """Return the view of that name."""
        try:
            return self.load_view(Entry(ident, EntryKind.view))
        except NoSuchTable:
            return None

    def open_rows(self, bench: ScratchCatalog, loaded: TransferTable) -> str:
        """Return the rows of the snapshot that was read; those that come now when its columns are not the present ones."""
        name = quote_ident(bench.add_catalog({**self.settings, **self.store.format_own(loaded.keys)}), loaded.ident)
        snapshot_id = _get_pinned_snapshot(loaded.metadata)
        return name if snapshot_id is None else f"{name} VERSION AS OF {snapshot_id}"

    def prepare(self, ident: TableIdent, asked: CreateTable) -> TransferTable:
        """Return a table that the catalog has described and not made."""
        self.make_namespace(ident.namespace)
        rest = self.connect()
        answer = rest.ask("POST", f"namespaces/{rest.format_namespace(ident.namespace)}/tables", format_staged_create(asked))
        loaded = _read_held(ident, answer)
        return replace(loaded, metadata_location=name_staged(loaded.metadata.location))

    def write(self, bench: ScratchCatalog, prepared: TransferTable, rows: str) -> TableMetadata:
        """Return files at the location that the catalog chose."""
        return write_rows(bench, self.store, prepared, rows, self.identity)

    def take(self, prepared: TransferTable, source: TableMetadata, files: Sequence[DataFile]) -> TableMetadata:
        """Return the prepared table with files that stay where they are."""
        return take_files(self.store, prepared, source, files, self.identity)

    def publish(self, prepared: TransferTable, written: TableMetadata) -> None:
        """Make the table and its rows in one commit."""
        rest = self.connect()
        rest.ask("POST", rest.locate(prepared.ident), format_creation(prepared.ident, written))

    def list_places(self, loaded: TransferTable) -> Iterable[str]:
        """Return the place that the catalog gave. Those that it gave before, and no more, it knows alone."""
        return [loaded.metadata.location]

    def give_up(self, begun: UnfinishedCopy, identity: str, *, is_there: bool) -> Collection[str]:
        """Return all of it where no table ever was: one that has been renamed since may have kept its place."""
        return [] if is_there or begun.beside else [*begun.metadata, *begun.data]

    def register(self, ident: TableIdent, metadata_location: str) -> None:
        """Take a table in where it is, with its history. Raises: CatalogError: the catalog does not."""
        self.make_namespace(ident.namespace)
        body = {"name": ident.name, "metadata-location": metadata_location}
        rest = self.connect()
        rest.ask("POST", f"namespaces/{rest.format_namespace(ident.namespace)}/register", body)

    def make_view(self, ident: TableIdent, view: ViewMetadata) -> None:
        """Make a view of the current version of another catalog's."""
        self.make_namespace(ident.namespace)
        version = get_current_version(view)
        schema = next(one for one in view.schemas if one.schema_id == version.schema_id)
        body = {"name": ident.name, "schema": format_schema(schema), "view-version": format_version(version)}
        body |= {"properties": dict(view.properties)}
        rest = self.connect()
        rest.ask("POST", f"namespaces/{rest.format_namespace(ident.namespace)}/views", body)

    def make_namespace(self, levels: tuple[str, ...]) -> None:
        """Make a namespace, and those around it, where they are missing."""
        rest = self.connect()
        for end in range(1, len(levels) + 1):
            try:
                rest.ask("GET", f"namespaces/{rest.format_namespace(levels[:end])}")
            except NoSuchTable:
                _make(rest, levels[:end])


def _list(rest: Rest, levels: tuple[str, ...], kind: EntryKind) -> list[str]:
    if kind is EntryKind.view and rest.serves(_VIEWS) is False:
        return []
    try:
        found = list_pages(rest, f"namespaces/{rest.format_namespace(levels)}/{kind}s", "identifiers", {})
        return [get_text(as_object(item, _ANSWER), "name", _ANSWER) for item in found]
    except (NoSuchTable, Unsupported, BadRequest):
        # Not every catalog has views, and not every one says so.
        if kind is EntryKind.view and rest.serves(_VIEWS) is None:
            return []
        raise


def _make(rest: Rest, levels: tuple[str, ...]) -> None:
    try:
        rest.ask("POST", "namespaces", {"namespace": list(levels), "properties": {}})
    except CommitFailed:
        return  # another session just did


def _read_held(ident: TableIdent, answer: object) -> TransferTable:
    node = as_object(answer, _ANSWER)
    metadata = parse_metadata(as_object(node.get("metadata"), f"the metadata of {_ANSWER}"))
    return TransferTable(ident, metadata, find_text(node, "metadata-location", _ANSWER) or "", read_keys(node))


def read_keys(answer: Mapping[str, object]) -> dict[str, str]:
    """Return what a catalog gives for the files of a table. Raises: BadRequest: it cannot be read."""
    given = dict(as_object(answer.get("config") or {}, f"the config of {_ANSWER}"))
    for keys in list_objects(answer, "storage-credentials", _ANSWER):
        given |= as_object(keys.get("config"), f"the storage-credentials of {_ANSWER}")
    return {name: str(text) for name, text in given.items() if name.startswith(("s3.", "client.")) and not name.startswith(_RENEWAL)}


def _get_pinned_snapshot(metadata: TableMetadata) -> int | None:
    """Return the snapshot whose rows are the table's, under its present columns; None: there is none."""
    snapshot = find_snapshot(metadata, metadata.current_snapshot_id)
    return snapshot.snapshot_id if snapshot is not None and snapshot.schema_id == metadata.current_schema_id else None


def check_unchanged(catalog: RestSide, loaded: TransferTable) -> None:
    """Raises: CommitFailed: the rows that came are perhaps not of the state that was read."""
    if _get_pinned_snapshot(loaded.metadata) is not None:
        return
    now = catalog.load(Entry(loaded.ident)).metadata
    states = [(one.table_uuid, one.current_snapshot_id, one.current_schema_id) for one in (loaded.metadata, now)]
    if states[0] != states[1]:
        raise CommitFailed(f"others wrote to {loaded.ident} meanwhile: run again")
