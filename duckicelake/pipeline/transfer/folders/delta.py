"""Delta tables: folders with a log, which says what columns and rows they have now."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.pipeline.ingest.sources.s3 import S3Store
from duckicelake.pipeline.ingest.target import quote
from duckicelake.pipeline.transfer.bench import Bench
from duckicelake.pipeline.transfer.catalogs import Entry, Held
from duckicelake.pipeline.transfer.files import describe_new
from duckicelake.pipeline.transfer.folders.delta_columns import check_mapping, make_spec, parse_columns
from duckicelake.pipeline.transfer.folders.delta_log import DeltaState, read_log
from duckicelake.pipeline.transfer.folders.delta_rows import read_rows
from duckicelake.pipeline.transfer.folders.reading import ReadFolders
from duckicelake.pipeline.transfer.hadoop import LOG, NO_KEYS, is_delta

OWN = "delta."
"""How properties begin that are about the Delta table itself."""


@dataclass(frozen=True, slots=True)
class DeltaFolders(ReadFolders):
    """A folder with a log is a table. `states`: the one that was read last, by place."""

    states: dict[str, DeltaState] = field(default_factory=dict[str, DeltaState], repr=False)

    def list_entries(self) -> Iterator[Entry]:
        """Every folder that is a table; the root may be the only one."""
        yield from self.find_entries(is_delta, lambda name: not name.startswith((".", "_")))

    def load(self, entry: Entry) -> Held:
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
        return Held(entry.ident, metadata, entry.place, NO_KEYS)

    def open_rows(self, bench: Bench, held: Held) -> str:
        """The rows of the version that was read, as a view of this session."""
        store = self.open_s3()
        rows = read_rows(bench.spark, self.states[held.metadata_location], {} if store is None else store.format_settings())
        name = f"delta_{bench.run_id}"
        rows.createOrReplaceTempView(name)
        return quote(name)


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
