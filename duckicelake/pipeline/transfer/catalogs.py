"""The protocol of catalogs that `import` and `export` read from and write to, and unfinished copies in their stores.

Each copy has two folders of its own below the table's location. The folder of metadata has `staged.metadata.json` from the beginning,
`publishing` from when the copy may be published, and neither when it is done.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.metadata import TableMetadata, parse_metadata
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.view_metadata import ViewMetadata, parse_view
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.transfer.scratch_catalog import ScratchCatalog
from duckicelake.translate.locations import copy_folders, find_copy

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
