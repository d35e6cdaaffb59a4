"""Delta tables: folders with a log, which says what columns and rows they have now."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from urllib.parse import urlsplit

from duckicelake.errors import Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import get_current_schema
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.types import IcebergType
from duckicelake.pipeline.ingest.sources.s3 import S3Store
from duckicelake.pipeline.ingest.target import quote
from duckicelake.pipeline.transfer.bench import ScratchCatalog
from duckicelake.pipeline.transfer.catalogs import Entry, LoadedTable
from duckicelake.pipeline.transfer.files import describe_new
from duckicelake.pipeline.transfer.folders.delta_columns import MODE, UNMAPPED, check_mapping, make_spec, parse_columns
from duckicelake.pipeline.transfer.folders.delta_log import DeltaState, read_log
from duckicelake.pipeline.transfer.folders.delta_rows import read_rows
from duckicelake.pipeline.transfer.folders.in_place import REMEDY, FolderFile, describe_files
from duckicelake.pipeline.transfer.folders.reading import ReadFolders
from duckicelake.pipeline.transfer.hadoop import LOG, NO_KEYS, is_delta
from duckicelake.translate.locations import to_canonical

OWN = "delta."
"""How properties begin that are about the Delta table itself."""
_PARTITIONS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(("int", "long", "date", "timestamp"), int),
    "string": str,
    "decimal": Decimal,
    "boolean": "true".__eq__,
}
"""How values of partitions are read that the log's reader writes as Spark casts them."""


@dataclass(frozen=True, slots=True)
class DeltaFolders(ReadFolders):
    """A folder with a log is a table. `states`: the one that was read last, by place."""

    states: dict[str, DeltaState] = field(default_factory=dict[str, DeltaState], repr=False)

    def list_entries(self) -> Iterator[Entry]:
        """Every folder that is a table; the root may be the only one."""
        yield from self.list_tables_below(is_delta, lambda name: not name.startswith((".", "_")))

    def load(self, entry: Entry) -> LoadedTable:
        """The table as its log has it now; its state is its version.

        Raises: BadRequest, Unsupported: it is damaged, or has what a copy cannot have
        """
        state = read_log(entry.place, self.list_names(f"{entry.place}/{LOG}"), format_keys(self.open_s3()))
        check_mapping(state.configuration)
        schema = parse_columns(state.schema)
        properties = {name: text for name, text in state.configuration.items() if not name.startswith(OWN)}
        if state.description is not None:
            properties = {"comment": state.description} | properties
        asked = CreateTable(entry.ident.name, schema, make_spec(schema, state.partitions), properties=properties)
        metadata = replace(describe_new(asked, entry.place), table_uuid=state.table_id, current_snapshot_id=state.version)
        # One table is moved after another, and a state may be large.
        self.states.clear()
        self.states[entry.place] = state
        return LoadedTable(entry.ident, metadata, entry.place, NO_KEYS)

    def describe_files(self, loaded: LoadedTable) -> list[DataFile]:
        """What a manifest says of the files that the version has.

        Raises: Unsupported: it is not made of whole files alone, under their own names; and what `in_place.describe_files` raises
        """
        state = self.states[loaded.metadata_location]
        check_plain(state)
        columns = {item.name: item.type for item in get_current_schema(loaded.metadata).fields}
        files = [
            FolderFile(
                to_canonical(path), None, {name: parse_partition(columns[name], state.values[name][number]) for name in state.partitions}
            )
            for number, path in enumerate(state.paths)
        ]
        return describe_files(self.open(loaded.metadata_location), files, loaded.metadata)

    def open_rows(self, bench: ScratchCatalog, loaded: LoadedTable) -> str:
        """The rows of the version that was read, as a view of this session."""
        store = self.open_s3()
        rows = read_rows(bench.spark, self.states[loaded.metadata_location], {} if store is None else store.format_settings())
        name = f"delta_{bench.run_id}"
        rows.createOrReplaceTempView(name)
        return quote(name)


def check_plain(state: DeltaState) -> None:
    """Raises: Unsupported: the log says more of the files than which they are"""
    mode = state.configuration.get(MODE)
    if mode not in UNMAPPED:
        raise Unsupported(f"its columns are mapped by {mode}, of which its files know nothing: {REMEDY}")
    if state.read_vectors():
        raise Unsupported(f"rows of its files are deleted by vectors: purge them (REORG … PURGE), or {REMEDY}")


def parse_partition(type_: IcebergType, text: str | None) -> object:
    """The value of a partition as Iceberg has it; the empty text is NULL. Raises: Unsupported: that cannot be told for certain"""
    if text in (None, ""):
        return None
    name = str(type_).partition("(")[0]
    if name not in _PARTITIONS:
        raise Unsupported(
            f"it is partitioned by a column of the type {type_}, which DuckDB does not read from names of folders alike: {REMEDY}"
        )
    return _PARTITIONS[name](text)


def format_keys(store: S3Store | None) -> Mapping[str, str]:
    """What `deltalake` is told of a store."""
    if store is None:
        return {}
    keys = {"AWS_ACCESS_KEY_ID": store.keys.key_id, "AWS_SECRET_ACCESS_KEY": store.keys.secret, "AWS_REGION": store.region}
    if store.keys.token is not None:
        keys["AWS_SESSION_TOKEN"] = store.keys.token
    if store.endpoint is not None:
        # AWS_ENDPOINT_URL_S3 of the environment would win over the other one.
        keys |= {"AWS_ENDPOINT_URL": store.endpoint, "AWS_ENDPOINT_URL_S3": store.endpoint}
        keys["AWS_ALLOW_HTTP"] = str(urlsplit(store.endpoint).scheme == "http").lower()
    return keys
