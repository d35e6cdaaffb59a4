"""Requests to the store, signed for whoever may do what they say with a table's files."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duckicelake.catalog.keys.scopes import find_owner, owns_file, read_folders, read_staged_folder
from duckicelake.catalog.memory import Published
from duckicelake.catalog.tables import Ident, LoadedTable, publish_table
from duckicelake.catalog.warehouse import Warehouse, to_client_properties
from duckicelake.errors import BadRequest, Forbidden, NoSuchTable, NotServed
from duckicelake.lake.connect import reading
from duckicelake.lake.rows import TableRow
from duckicelake.store.keys.asks import Ask, Told, parse_ask
from duckicelake.store.keys.policy import KeyScope
from duckicelake.store.place import parse_uri
from duckicelake.translate.locations import to_folder_uri

__all__ = ["May", "Signed", "Told", "find_signed_table", "find_signing_config", "is_signed", "sign_request"]

PLAIN = re.compile(r"[A-Za-z0-9_.~/=-]+")
"""Keys that are spelled alike with and without escapes: of others, one signature could open two. `=` is in the names of partitions, and a
signature for it opens no key that has `%3D` in its name.
"""


@dataclass(frozen=True, slots=True)
class May:
    """What somebody may do with the files of a table."""

    reads: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class Signed:
    """Where to send a request, and the headers to add to it. `is_kept`: the same request may use them again, while they hold."""

    uri: str
    headers: Mapping[str, str]
    is_kept: bool


def find_signed_table(warehouse: Warehouse, told: Told, now_s: float) -> Ident | None:
    """Return the table that a request to the store is about, where its URI alone decides it; None: it does not, or it is another's store.

    Raises: Forbidden: nobody gets it signed
    """
    if warehouse.signer is None:
        return None
    try:
        ask = parse_ask(warehouse.signer.store, told, now_s)
    except BadRequest:
        return None
    with reading(warehouse.lake) as conn:
        return find_owner(conn, ask.spellings[0])


def sign_request(warehouse: Warehouse, ident: Ident, told: Told, may: May, now_s: float) -> Signed:
    """Return a request to the store, signed.

    Raises: NoSuchTable: there is none, nor was one staged there. NotServed: nothing is signed here. BadRequest, Forbidden: this is not
    """
    signer = warehouse.signer
    if signer is None:
        raise NotServed("Nothing is signed for this warehouse (require_auth, and a store that is S3); use keys of your own.")
    ask = parse_ask(signer.store, told, now_s)
    if not (may.writes if ask.purpose == "write" else may.reads) or (ask.sources and not may.reads):
        raise Forbidden(f"The principal has no right to {ask.purpose} files of the table {ident}.")
    try:
        _check_owned(warehouse, ident, ask)
    except NoSuchTable:
        if not may.writes:
            raise
        _check_staged(warehouse, ident, ask)
    uri, headers = signer.sign(ask)
    return Signed(uri, headers, is_kept=ask.purpose != "write")


def is_signed(warehouse: Warehouse, ident: Ident, loaded: LoadedTable) -> bool:
    """Tell whether signatures open a table: its store gets some, and its location is its own.

    Raises: ServiceUnavailable: the store does not answer. What `publish_table` raises
    """
    bucket = parse_uri(loaded.location).bucket
    if warehouse.signer is None or not bucket or loaded.metadata_location is None:
        return False
    try:
        warehouse.signer.check_strict(bucket)
    except NotServed:
        return False
    return to_folder_uri(loaded.location) in _find_scope(warehouse, *publish_table(warehouse, ident)).folders


def find_signing_config(warehouse: Warehouse, loaded: LoadedTable, path: str) -> Mapping[str, str]:
    """Return what clients are told to have a table's requests signed at that path; nothing where nothing is signed."""
    if warehouse.signer is None or not parse_uri(loaded.location).bucket:
        return {}
    return {
        "s3.remote-signing-enabled": "true",
        "s3.signer.endpoint": path,
        "signer.endpoint": path,
        # PyIceberg's own client of S3 is another, which signs nothing remotely
        "s3.signer": "S3V4RestSigner",
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
        **to_client_properties(warehouse.signer.store),
    }


def _check_owned(warehouse: Warehouse, ident: Ident, ask: Ask) -> None:
    """Raise Forbidden unless every spelling of what is asked for is the table's own."""
    table, published = publish_table(warehouse, ident)
    scope = _find_scope(warehouse, table, published)
    if ask.purpose == "write" and not scope.writable:
        raise Forbidden(
            f"Nothing is signed to write files of {ident}: its location {published.metadata.location} is not this table's alone, "
            "or has other characters than letters, digits and _.~=/-"
        )
    if ask.purpose == "write" and not _lies_in(ask.spellings, scope.writable):
        raise Forbidden(f"Files of {ident} are written below its location alone: {published.metadata.location}")
    if ask.purpose == "list" and not _lies_in(ask.spellings, scope.folders):
        raise Forbidden(f"What is to be listed is no folder that {ident} has alone.")
    wanted = (*(ask.spellings if ask.purpose == "read" else ()), *ask.sources)
    others = [uri for uri in wanted if not _lies_in((uri,), scope.folders)]
    if others and not _are_files(warehouse, table, others):
        raise Forbidden(f"What is to be read is no file of the table {ident}.")


def _check_staged(warehouse: Warehouse, ident: Ident, ask: Ask) -> None:
    """Raise unless every spelling lies in one location that the table may have been given when it was staged.

    Raises: NoSuchTable, Forbidden
    """
    with reading(warehouse.lake) as conn:
        scope = read_staged_folder(conn, ident, ask.spellings[0])
    if not _lies_in((*ask.spellings, *ask.sources), _only_plain(scope.folders)):
        raise Forbidden(f"Nothing but files below the location of {ident}, which is not made yet, is signed for.")


def _find_scope(warehouse: Warehouse, table: TableRow, published: Published) -> KeyScope:
    """Return the folders that are the table's alone, as of the lake's position that was just seen."""
    memory = warehouse.memories.of(table.table_id)
    kept = memory.scope
    if kept is not None and kept[0] == published.position:
        return kept[1]
    neighbours = warehouse.neighbours.find()
    with reading(warehouse.lake) as conn:
        found = read_folders(conn, table, published.metadata.location, neighbours)
    scope = KeyScope(_only_plain(found.folders), (), _only_plain(found.writable))
    memory.scope = (published.position, scope)
    return scope


def _only_plain(folders: Sequence[str]) -> tuple[str, ...]:
    return tuple(folder for folder in folders if PLAIN.fullmatch(parse_uri(folder).key))


def _lies_in(spellings: Sequence[str], folders: Sequence[str]) -> bool:
    return all(any(each.startswith(folder) for folder in folders) for each in spellings)


def _are_files(warehouse: Warehouse, table: TableRow, uris: Sequence[str]) -> bool:
    if not all(PLAIN.fullmatch(parse_uri(uri).key) for uri in uris):
        return False
    with reading(warehouse.lake) as conn:
        return all(owns_file(conn, table, uri) for uri in uris)
