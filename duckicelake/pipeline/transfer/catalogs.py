"""What a catalog is to a transfer: it lists tables and views, shows one as it is now, and may take one in."""

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.metadata import TableMetadata, parse_metadata
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.view_metadata import ViewMetadata, parse_view
from duckicelake.pipeline.rest import TableIdent
from duckicelake.pipeline.transfer.bench import ScratchCatalog
from duckicelake.pipeline.transfer.copies.found import UnfinishedCopy

GZIP = b"\x1f\x8b"
UNZIP_EITHER = 47
"""zlib's word for a gzip header."""


class EntryKind(StrEnum):
    """What a catalog holds."""

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
class LoadedTable:
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
        """Everything there is. Raises: CatalogError: it cannot be known."""
        ...

    def load(self, entry: Entry) -> LoadedTable:
        """A table as it is now. Raises: CatalogError: it cannot be read."""
        ...

    def load_view(self, entry: Entry) -> ViewMetadata:
        """A view as it is now. Raises: CatalogError: it cannot be read."""
        ...

    def find(self, ident: TableIdent) -> LoadedTable | None:
        """The table of that name, if there is one. Raises: CatalogError: it cannot be read."""
        ...

    def open_rows(self, bench: ScratchCatalog, loaded: LoadedTable) -> str:
        """The rows of a table, as Spark's SQL names them."""
        ...

    def prepare(self, ident: TableIdent, asked: CreateTable) -> LoadedTable:
        """A table that may become known; nobody sees it. Raises: CatalogError: it cannot."""
        ...

    def write(self, bench: ScratchCatalog, prepared: LoadedTable, rows: str) -> TableMetadata:
        """The prepared table with these rows, which nobody sees either."""
        ...

    def publish(self, prepared: LoadedTable, written: TableMetadata) -> None:
        """Make a written table known, at once. Raises: CommitFailed: there is one of that name."""
        ...

    def list_places(self, loaded: LoadedTable) -> Iterable[str]:
        """Where runs that died may have begun copies of a table, and no other table is. Raises: CatalogError: it cannot be known."""
        ...

    def give_up(self, begun: UnfinishedCopy, identity: str, *, is_there: bool) -> Collection[str]:
        """What goes of a copy that was about to become known in the catalog of that identity, and that no table known here names.

        `is_there`: a table is in that place.
        """
        ...


def parse_table_file(content: bytes, uri: str) -> TableMetadata:
    """What a metadata file says, packed or not. Raises: BadRequest: it is damaged, or of another kind."""
    return parse_metadata(_decode(content, uri))


def parse_view_file(content: bytes, uri: str) -> ViewMetadata:
    """What a view's metadata file says. Raises: BadRequest: it is damaged, or of another kind."""
    return parse_view(_decode(content, uri))


def _decode(content: bytes, uri: str) -> object:
    if content.startswith(GZIP):
        try:
            content = zlib.decompress(content, wbits=UNZIP_EITHER)
        except zlib.error as error:
            raise BadRequest(f"{uri} is damaged: {error}") from error
    return decode_json(content, uri)


def refuse_views(catalog: str) -> Unsupported:
    """What to raise where views have no place."""
    return Unsupported(f"{catalog} holds no views")
