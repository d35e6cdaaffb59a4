"""Files of copies: how they are written to a catalog's store, and what is removed afterwards.

Nothing is removed that a table references, nor anything of a copy whose run wrote something within the grace period.
"""

import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.metadata import TableMetadata, encode_metadata
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.requests.table_changes import NewIdentity, build_new_metadata
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_session import RestCatalog
from duckicelake.pipeline.common.storage import StoredFiles, open_objects
from duckicelake.pipeline.transfer.catalogs import (
    PUBLISHING,
    STAGED,
    Catalog,
    CopyFiles,
    TransferTable,
    UnfinishedCopy,
    get_file_name,
    list_partial_files,
    list_unfinished_copies,
    parse_table_file,
    remove,
)
from duckicelake.pipeline.transfer.scratch_catalog import ScratchCatalog
from duckicelake.translate.locations import copy_folders, find_copy, to_canonical

METADATA_PATH, DATA_PATH = "write.metadata.path", "write.data.path"
_KEY, _SIGNING, _SIGNER = "s3.access-key-id", "s3.remote-signing-enabled", "s3.signer."


@dataclass(frozen=True, slots=True)
class Store:
    """The store of a catalog's files, and the settings by which the driver and Spark reach it.

    `lake` is ours, whose keys serve where `properties` say nothing of a store. `put_new` writes an object that must not exist yet, as
    a whole, and says whether that was so.
    """

    lake: RestCatalog
    properties: Mapping[str, str]
    put_new: Callable[[str, bytes], bool]

    def open(self, location: str, keys: Mapping[str, str]) -> StoredFiles:
        """The store of a location; `keys` are those that a catalog gave for it. Raises: Unsupported: it cannot be reached from here."""
        given = self._merge_properties(keys)
        own = RestCatalog("", "") if _names_store(given) else self.lake
        return open_objects(location, own, given)

    def _merge_properties(self, keys: Mapping[str, str]) -> dict[str, str]:
        given = {**self.properties, **keys}
        if given.get(_SIGNING, "").lower() == "true" and _KEY not in given:
            raise Unsupported(f"the catalog lends no keys, and signs requests to its store itself: write {_KEY} … to --properties")
        return {name: text for name, text in given.items() if name != _SIGNING and not name.startswith(_SIGNER)}

    def read(self, uri: str, keys: Mapping[str, str]) -> bytes:
        """Return an object. Raises: ServiceUnavailable, Unsupported: it cannot be had."""
        return self.open(uri, keys).read(uri)

    def format_settings(self, keys: Mapping[str, str]) -> dict[str, str]:
        """Return the same for Iceberg in Spark."""
        given = self._merge_properties(keys)
        settings = {name: text for name, text in given.items() if name.startswith(("s3.", "client."))}
        if not _names_store(given):
            settings |= _format_store(self.lake)
        return {"s3.path-style-access": "true"} | settings

    def format_own(self, keys: Mapping[str, str]) -> dict[str, str]:
        """Return the same without the keys, which the catalog gives to Spark itself; a store of the catalog's is not the lake's."""
        lent = {name: text for name, text in keys.items() if name != _SIGNING}
        return {name: text for name, text in self.format_settings(lent).items() if name not in lent}


def _names_store(given: Mapping[str, str]) -> bool:
    return any(name.startswith("s3.") for name in given)


def _format_store(lake: RestCatalog) -> dict[str, str]:
    settings = {
        "s3.endpoint": lake.s3_endpoint,
        "client.region": lake.s3_region,
        "s3.access-key-id": lake.s3_access_key_id,
        "s3.secret-access-key": lake.s3_secret_access_key,
    }
    return {name: text for name, text in settings.items() if text is not None}


def describe_new(asked: CreateTable, location: str) -> TableMetadata:
    """Return a new table at a location that the catalog leaves to its clients. Raises: BadRequest: it cannot be as it is asked for."""
    now = datetime.now(UTC)
    return replace(build_new_metadata(asked, NewIdentity(str(uuid4()), location, int(now.timestamp() * 1000))), location=location)


def name_staged(location: str) -> str:
    """Return the URI of a new copy's metadata, apart from metadata of tables, so that a folder with copies alone is no table."""
    return f"{copy_folders(location, secrets.token_hex(8))[1]}/{STAGED}"


def write_rows(bench: ScratchCatalog, store: Store, prepared: TransferTable, rows: str, identity: str) -> TableMetadata:
    """Return the prepared table with the rows in it: every file is at its place, and only the last metadata file is still to be written.

    `identity` says of what catalog it is to be.
    """
    new, keys, staged = prepared.metadata, prepared.keys, prepared.metadata_location
    data, metadata = copy_folders(new.location, find_copy(new.location, staged) or "")
    objects = store.open(new.location, keys)
    paths = {METADATA_PATH: metadata, DATA_PATH: data}
    objects.write(staged, encode_metadata(replace(new, properties={**new.properties, **paths})))
    name = bench.open_file(staged, store.format_settings(keys))
    last = bench.insert(name, rows)
    written = parse_table_file(objects.read(last), last)
    objects.write(f"{metadata}/{PUBLISHING}", identity.encode())
    return replace(written, properties=dict(new.properties), metadata_log=())


def encode_published(written: TableMetadata) -> bytes:
    """Return the metadata file that makes a table known, with its keys in the usual order."""
    return json.dumps(json.loads(encode_metadata(written)), indent=1).encode()


def join_location(root: str, ident: TableIdent) -> str:
    """Return the folder of a table, as Iceberg's own catalogs have it. Raises: BadRequest: a name would lead elsewhere."""
    wrong = next((name for name in (*ident.namespace, ident.name) if name in ("", ".", "..") or "/" in name), None)
    if wrong is not None:
        raise BadRequest(f"{wrong!r} cannot be the name of a folder: rename it")
    return "/".join((root.rstrip("/"), *ident.namespace, ident.name))


CHECKSUM = ".{}.crc"
"""The name of the checksum file that Hadoop writes next to a file of a local disk."""


def tidy(files: CopyFiles, prepared: TransferTable, made: TableMetadata) -> None:
    """Remove what a copy was staged by, once it is known.

    Raises: CatalogError: the store does not let us
    """
    place = prepared.metadata.location
    copy = find_copy(place, prepared.metadata_location)
    folder = prepared.metadata_location.rpartition("/")[0]
    found = [uri for uri, _ in files.list_modified(folder) if find_copy(place, uri) == copy]
    remove(files, _list_unreferenced(found, list_referenced(files, made)))


def withdraw(files: CopyFiles, prepared: TransferTable) -> None:
    """Remove what a table was staged by that its catalog has refused.

    Raises: CatalogError: the store does not let us
    """
    place = prepared.metadata.location
    copy = find_copy(place, prepared.metadata_location)
    folders = copy_folders(place, copy or "")
    remove(files, [uri for folder in folders for uri, _ in files.list_modified(folder) if find_copy(place, uri) == copy])


def clear(target: Catalog, files: CopyFiles, loaded: TransferTable, before: datetime, *, is_there: bool) -> None:
    """Remove what runs that died before that time have left of copies of a table, which `is_there` or is to be.

    Raises: CatalogError: the store does not let us
    """
    for place in target.list_places(loaded):
        files.delete_many(list_partial_files(files, place, before))
        is_own = is_there and to_canonical(place) == to_canonical(loaded.metadata.location)
        for begun in list_unfinished_copies(files, place):
            if begun.newest < before:
                remove(files, _choose(target, files, begun, loaded.metadata if is_own else None))


def _choose(target: Catalog, files: CopyFiles, begun: UnfinishedCopy, made: TableMetadata | None) -> Collection[str]:
    """Return what goes of a copy whose run is dead; `made` is the table in that place, if it is known."""
    if made is not None:
        named = list_referenced(files, made)
        if named.isdisjoint(map(to_canonical, begun.metadata)):
            named |= _list_rows(files, made)
        if not named.isdisjoint(map(to_canonical, [*begun.metadata, *begun.data])):
            return _list_unreferenced(begun.metadata, named)
    if begun.publishing is None:
        # Copies of earlier versions have no mark of being done: where there are other metadata, one may be a table under another name.
        return [] if begun.beside and not _says_how_far(files, begun) else [*begun.metadata, *begun.data]
    return target.give_up(begun, files.read(begun.publishing).decode("utf-8", "replace"), is_there=made is not None)


def _says_how_far(files: CopyFiles, begun: UnfinishedCopy) -> bool:
    """Return True if a copy is of those that keep their rows apart and say when they may become known."""
    return bool(begun.data) or (begun.staged is not None and b"/data/copy-" in files.read(begun.staged))


def _list_unreferenced(uris: Collection[str], named: Collection[str]) -> list[str]:
    kept = {CHECKSUM.format(get_file_name(uri)) for uri in named}
    return [uri for uri in uris if to_canonical(uri) not in named and get_file_name(uri) not in kept]


def list_referenced(files: CopyFiles, metadata: TableMetadata) -> set[str]:
    """Return what a table names, but for files of rows, in one spelling."""
    named = {to_canonical(item.statistics_path) for item in (*metadata.statistics, *metadata.partition_statistics)}
    for snapshot in metadata.snapshots:
        named.add(to_canonical(snapshot.manifest_list))
        named |= {to_canonical(one.manifest_path) for one in decode_manifest_list(files.read(snapshot.manifest_list))}
    return named


def _list_rows(files: CopyFiles, metadata: TableMetadata) -> set[str]:
    manifests = {one.manifest_path: one for each in metadata.snapshots for one in decode_manifest_list(files.read(each.manifest_list))}
    entries = (decode_manifest(files.read(path), one)[1] for path, one in manifests.items())
    return {to_canonical(entry.data_file.file_path) for found in entries for entry in found}
