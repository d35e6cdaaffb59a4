"""The protocol of catalogs that `import` and `export` work with, the scratch catalog in Spark, and unfinished copies in stores.

`transfer.job` and the modules of the catalogs use it in the driver. Spark reads and writes tables through the scratch catalog. Unfinished
copies are listed and removed in the target's store.

An Iceberg catalog in the session's memory (JDBC, on the Derby that Spark brings) opens tables by their metadata files alone. So every
source is read as one fixed metadata file, and a copy is an ordinary Iceberg table that is published only afterwards.

Each copy has two folders of its own below the table's location. The folder of metadata has `staged.metadata.json` from the beginning,
`publishing` from when the copy may be published, and neither when it is done.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import count
from typing import Protocol

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.metadata import TableMetadata, parse_metadata
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.view_metadata import ViewMetadata, parse_view
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_session import LazySpark
from duckicelake.pipeline.common.spark_sql import format_columns, format_needed_properties, quote, quote_ident, quote_text
from duckicelake.translate.locations import copy_folders, find_copy

NAMESPACE = "bench"
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
OWN = {
    "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
    "uri": "jdbc:derby:memory:{name};create=true",
    "jdbc.schema-version": "V1",
    "warehouse": "memory",
    "io-impl": "org.apache.iceberg.io.ResolvingFileIO",
}
"""A catalog that ends with the session; `{name}` is its name."""


@dataclass(frozen=True, slots=True)
class ScratchCatalog:
    """One run's session; catalogs are added to it as they are needed, one for each way to reach files."""

    spark: SparkSession
    run_id: str
    catalogs: dict[frozenset[tuple[str, str]], str] = field(default_factory=dict[frozenset[tuple[str, str]], str])
    numbers: Iterator[int] = field(default_factory=count)

    def add_catalog(self, settings: Mapping[str, str]) -> str:
        """Return the name of a Spark catalog of these settings."""
        known = frozenset(settings.items())
        if known not in self.catalogs:
            name = f"transfer_{self.run_id}_{len(self.catalogs)}"
            self.spark.conf.set(f"spark.sql.catalog.{name}", SPARK_CATALOG)
            for key, setting in ({"cache-enabled": "false"} | dict(settings)).items():
                self.spark.conf.set(f"spark.sql.catalog.{name}.{key}", setting.replace("{name}", name))
            self.catalogs[known] = name
        return self.catalogs[known]

    def open_file(self, metadata_location: str, files: Mapping[str, str]) -> str:
        """Return the table of a metadata file, as Spark's SQL names it; `files` say how to reach what it names."""
        catalog, ident = self.add_catalog(OWN | dict(files)), self._name()
        arguments = f"table => {quote_text(str(ident))}, metadata_file => {quote_text(metadata_location)}"
        self.spark.sql(f"CALL {quote(catalog)}.system.register_table({arguments})").collect()
        return quote_ident(catalog, ident)

    def describe(self, columns: StructType, partitions: str, location: str) -> str:
        """Return where the metadata is of a new table of such columns, which has no rows."""
        name = quote_ident(self.add_catalog(OWN), self._name())
        partitioned = f" PARTITIONED BY ({partitions})" if partitions else ""
        made = f"CREATE TABLE {name} ({format_columns(columns)}) USING iceberg{partitioned} LOCATION {quote_text(location)}"
        self.spark.sql(made + format_needed_properties(columns))
        return self._read_metadata_location(name)

    def insert(self, name: str, rows: str) -> str:
        """Append rows to a table on the bench; returns where its metadata is now."""
        self.spark.sql(f"INSERT INTO {name} SELECT * FROM {rows}")  # noqa: S608  quoted names
        return self._read_metadata_location(name)

    def _read_metadata_location(self, name: str) -> str:
        log = self.spark.sql(f"SELECT file FROM {name}.metadata_log_entries").collect()  # noqa: S608  a quoted name
        return str(log[-1]["file"])

    def _name(self) -> TableIdent:
        return TableIdent((NAMESPACE,), f"t{next(self.numbers)}")


@dataclass(slots=True)
class LazyScratchCatalog:
    """A run's bench, set up when something is first put on it, and again after its Java is gone."""

    run_id: str
    spark: LazySpark
    bench: ScratchCatalog | None = None

    def get(self) -> ScratchCatalog:
        """Return the bench."""
        if self.bench is None:
            self.bench = ScratchCatalog(self.spark.get(), self.run_id)
        return self.bench

    def close(self) -> None:
        """Clear it away, and Spark with it."""
        self.bench = None
        self.spark.close()


STAGED, PUBLISHING = "staged.metadata.json", "publishing"
UNFINISHED = (".part-", ".tmp")
"""How objects are called that were being written on a local disk when their writer died."""


class CopyFiles(Protocol):
    """The objects of one store, by URI. Raises: CatalogError: it does not do what is asked"""

    def list_modified(self, prefix_uri: str) -> Iterator[tuple[str, datetime]]:
        """Return each object in a folder and its folders, and when it was last written."""
        ...

    def read(self, uri: str) -> bytes:
        """Return an object."""
        ...

    def delete_many(self, uris: Iterable[str]) -> None:
        """Remove objects; those that are missing are fine."""
        ...


@dataclass(frozen=True, slots=True)
class UnfinishedCopy:
    """A copy that is not done: its objects with when they were written, and metadata of other tables in the same folder."""

    metadata: Mapping[str, datetime]
    data: Mapping[str, datetime]
    beside: Collection[str]

    @property
    def newest(self) -> datetime:
        """Return when its run last gave a sign of life."""
        return max([*self.metadata.values(), *self.data.values()])

    @property
    def staged(self) -> str | None:
        """The metadata that it was begun with, if they are still there."""
        return next((uri for uri in self.metadata if get_file_name(uri) == STAGED), None)

    @property
    def publishing(self) -> str | None:
        """The object that says where it may have become known, if it came so far."""
        return next((uri for uri in self.metadata if get_file_name(uri) == PUBLISHING), None)


def list_unfinished_copies(files: CopyFiles, place: str) -> list[UnfinishedCopy]:
    """Return the copies in a place that are not done."""
    copies: dict[str, dict[str, datetime]] = {}
    beside: list[str] = []
    for uri, modified in files.list_modified(f"{place}/metadata"):
        copy = find_copy(place, uri)
        if copy is not None:
            copies.setdefault(copy, {})[uri] = modified
        elif not get_file_name(uri).startswith("."):
            beside.append(uri)
    begun = {copy: found for copy, found in copies.items() if not {STAGED, PUBLISHING}.isdisjoint(map(get_file_name, found))}
    return [UnfinishedCopy(found, dict(files.list_modified(copy_folders(place, copy)[0])), beside) for copy, found in begun.items()]


def list_partial_files(files: CopyFiles, place: str, before: datetime) -> list[str]:
    """Return partly written files in the metadata folder that are older than that time."""
    folder = f"{place}/metadata"
    names = ((uri, get_file_name(uri), modified) for uri, modified in files.list_modified(folder))
    return [uri for uri, name, at in names if at < before and name.startswith(UNFINISHED[0]) and name.endswith(UNFINISHED[1])]


def get_file_name(uri: str) -> str:
    """Return the last part of a URI."""
    return uri.rpartition("/")[2]


def remove(files: CopyFiles, uris: Collection[str]) -> None:
    """Remove objects of a copy, the marks of its progress last, so that the next run can clean up after one that is killed here."""
    marks = {mark: [uri for uri in uris if get_file_name(uri) == mark] for mark in (STAGED, PUBLISHING)}
    files.delete_many([uri for uri in uris if get_file_name(uri) not in marks])
    for found in marks.values():
        files.delete_many(found)


GZIP = b"\x1f\x8b"
UNZIP_EITHER = 47
"""zlib's word for a gzip header."""


class EntryKind(StrEnum):
    """The kinds of entries in a catalog."""

    table = "table"
    view = "view"


@dataclass(frozen=True, slots=True)
class Entry:
    """A table or a view that a catalog lists. `place`: where it is, in the catalog's own words; `fault`: why it cannot be had."""

    ident: TableIdent
    kind: EntryKind = EntryKind.table
    place: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class TransferTable:
    """A table as its catalog has it now, or will have it, and the file that says so. `keys`: what the catalog gave for its files."""

    ident: TableIdent
    metadata: TableMetadata
    metadata_location: str
    keys: Mapping[str, str]


class Catalog(Protocol):
    """A source of tables, a target of tables, or both. `name` is for people, and holds no secret; nor does `identity`, for no others."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str: ...

    def list_entries(self) -> Iterable[Entry]:
        """Return everything there is. Raises: CatalogError: it cannot be known."""
        ...

    def load(self, entry: Entry) -> TransferTable:
        """Return a table as it is now. Raises: CatalogError: it cannot be read."""
        ...

    def load_view(self, entry: Entry) -> ViewMetadata:
        """Return a view as it is now. Raises: CatalogError: it cannot be read."""
        ...

    def find(self, ident: TableIdent) -> TransferTable | None:
        """Return the table of that name, if there is one. Raises: CatalogError: it cannot be read."""
        ...

    def open_rows(self, bench: ScratchCatalog, loaded: TransferTable) -> str:
        """Return the rows of a table, as Spark's SQL names them."""
        ...

    def prepare(self, ident: TableIdent, asked: CreateTable) -> TransferTable:
        """Return a table that can be published later and is invisible until then. Raises: CatalogError: it cannot be prepared."""
        ...

    def write(self, bench: ScratchCatalog, prepared: TransferTable, rows: str) -> TableMetadata:
        """Return the prepared table with these rows, still invisible."""
        ...

    def publish(self, prepared: TransferTable, written: TableMetadata) -> None:
        """Make a written table known, at once. Raises: CommitFailed: there is one of that name."""
        ...

    def list_places(self, loaded: TransferTable) -> Iterable[str]:
        """Return where runs that died may have begun copies of a table, and no other table is. Raises: CatalogError: it cannot be known."""
        ...

    def give_up(self, begun: UnfinishedCopy, identity: str, *, is_there: bool) -> Collection[str]:
        """Return what goes of a copy that was about to become known in the catalog of that identity, and that no table known here names.

        `is_there`: a table is in that place.
        """
        ...


def parse_table_file(content: bytes, uri: str) -> TableMetadata:
    """Return what a metadata file says, packed or not. Raises: BadRequest: it is damaged, or of another kind."""
    return parse_metadata(_decode(content, uri))


def parse_view_file(content: bytes, uri: str) -> ViewMetadata:
    """Return what a view's metadata file says. Raises: BadRequest: it is damaged, or of another kind."""
    return parse_view(_decode(content, uri))


def _decode(content: bytes, uri: str) -> object:
    if content.startswith(GZIP):
        try:
            content = zlib.decompress(content, wbits=UNZIP_EITHER)
        except zlib.error as error:
            raise BadRequest(f"{uri} is damaged: {error}") from error
    return decode_json(content, uri)


def refuse_views(catalog: str) -> Unsupported:
    """Return the error for catalogs without views."""
    return Unsupported(f"{catalog} holds no views")
