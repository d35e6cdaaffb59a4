"""Copies of tables: the table to create, the requests that create it, its files in the target's store, and what is removed afterwards.

Nothing is removed that a table references, nor anything of a copy whose run wrote something within the grace period.

`transfer.job` and the modules of the catalogs call this in the driver. It reads, writes and deletes objects, and Spark writes the rows;
each catalog publishes its copies itself.
"""

import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.metadata import TableMetadata, encode_metadata, find_snapshot, get_current_schema, get_default_spec
from duckicelake.iceberg.partition import UNSORTED, format_sort_order, format_spec
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.requests.table_changes import NewIdentity, build_new_metadata
from duckicelake.iceberg.schema import Schema, format_schema
from duckicelake.iceberg.snapshots import MAIN, Snapshot, format_snapshot
from duckicelake.iceberg.view_metadata import ViewMetadata, ViewVersion, get_current_version
from duckicelake.pipeline.common.reports import JOB
from duckicelake.pipeline.common.rest import RestCatalog, TableIdent
from duckicelake.pipeline.common.storage import StoredFiles, open_objects
from duckicelake.pipeline.transfer.catalogs import (
    PUBLISHING,
    STAGED,
    Catalog,
    CopyFiles,
    ScratchCatalog,
    TransferTable,
    UnfinishedCopy,
    get_file_name,
    list_partial_files,
    list_unfinished_copies,
    parse_table_file,
    remove,
)
from duckicelake.translate.locations import copy_folders, find_copy, to_canonical

UUID, SNAPSHOT, SCHEMA = "duckicelake.copy.uuid", "duckicelake.copy.snapshot-id", "duckicelake.copy.schema-id"
ORIGIN = (UUID, SNAPSHOT, SCHEMA)
JOBS = ("import", "export")
OLDEST_VERSION = 2
STAYING = (
    *("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"),
    *("gc.enabled", "location", "owner", "write.format.default", "write.delete.format.default"),
)
"""Properties that are about where a table was, or derived there; a copy is of Parquet."""
STAYING_BELOW = ("ducklake.", "duckicelake.copy.", "write.location-provider.", "schema.name-mapping.")
"""How the names of others begin."""
LAST_ADDED = -1


def format_origin(metadata: TableMetadata) -> dict[str, str]:
    """Return properties of a copy that say what it is a copy of."""
    state = metadata.table_uuid or metadata.location, str(metadata.current_snapshot_id), str(metadata.current_schema_id)
    return dict(zip(ORIGIN, state, strict=True))


def describe_copy(loaded: TransferTable, name: str) -> CreateTable:
    """Return the table to make for a table's present rows: columns, partitions, order and properties are the same."""
    metadata = loaded.metadata
    properties = {key: value for key, value in metadata.properties.items() if key not in STAYING and not key.startswith(STAYING_BELOW)}
    properties |= format_origin(metadata) | {"format-version": str(max(metadata.format_version, OLDEST_VERSION))}
    order = next((one for one in metadata.sort_orders if one.order_id == metadata.default_sort_order_id), UNSORTED)
    spec = get_default_spec(metadata)
    # A partition of a column that is gone has no place in a new table; format version 1 keeps such parts as `void`.
    fields = tuple(part for part in spec.fields if part.transform != "void")
    return CreateTable(name, _without_defaults(get_current_schema(metadata)), replace(spec, fields=fields), order, None, properties)


def _without_defaults(schema: Schema) -> Schema:
    """Return the schema without initial defaults: every row of a copy has its values written out."""
    return replace(schema, fields=tuple(replace(item, initial_default=None) for item in schema.fields))


def format_staged_create(asked: CreateTable) -> dict[str, Any]:
    """Return the request that says what the table would be."""
    return {
        "name": asked.name,
        "schema": format_schema(asked.schema),
        "partition-spec": format_spec(asked.spec),
        "write-order": format_sort_order(asked.order),
        "properties": dict(asked.properties),
        "stage-create": True,
    }


def format_creation(ident: TableIdent, new: TableMetadata) -> dict[str, Any]:
    """Return the commit that makes a table with the snapshot that it has."""
    updates: list[dict[str, Any]] = [
        {"action": "assign-uuid", "uuid": new.table_uuid},
        {"action": "upgrade-format-version", "format-version": new.format_version},
        {"action": "add-schema", "schema": format_schema(get_current_schema(new)), "last-column-id": new.last_column_id},
        {"action": "set-current-schema", "schema-id": LAST_ADDED},
        {"action": "add-spec", "spec": format_spec(get_default_spec(new))},
        {"action": "set-default-spec", "spec-id": LAST_ADDED},
        {"action": "add-sort-order", "sort-order": format_sort_order(new.sort_orders[-1])},
        {"action": "set-default-sort-order", "sort-order-id": LAST_ADDED},
        {"action": "set-location", "location": new.location},
        {"action": "set-properties", "updates": dict(new.properties)},
    ]
    snapshot = find_snapshot(new, new.current_snapshot_id)
    if snapshot is not None:
        updates.append({"action": "add-snapshot", "snapshot": format_snapshot(snapshot)})
        updates.append({"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch", "snapshot-id": snapshot.snapshot_id})
    identifier = {"namespace": list(ident.namespace), "name": ident.name}
    return {"identifier": identifier, "requirements": [{"type": "assert-create"}], "updates": updates}


def name_run(written: TableMetadata, properties: Mapping[str, str]) -> TableMetadata:
    """Return the table with the run's properties in the summary of its only snapshot."""
    return replace(written, snapshots=tuple(_add_summary(snapshot, properties) for snapshot in written.snapshots))


def _add_summary(snapshot: Snapshot, properties: Mapping[str, str]) -> Snapshot:
    return replace(snapshot, summary={**snapshot.summary, **properties})


def is_same(source: TableMetadata, there: TableMetadata) -> bool:
    """Return True if a table holds what the source does: it is a copy of this state, or the same table that has come at least as far."""
    if format_origin(source).items() <= there.properties.items():
        return True
    has_state = find_snapshot(there, source.current_snapshot_id) is not None
    if source.table_uuid != there.table_uuid:
        # Old tables of format version 1 have no uuid.
        return not source.table_uuid and has_state
    return has_state or source.current_snapshot_id is None


def is_untouched(source: TableMetadata, there: TableMetadata) -> bool:
    """Return True if no client has written to the table since it was brought."""
    now = find_snapshot(there, there.current_snapshot_id)
    if now is None or now.snapshot_id == source.current_snapshot_id:
        return now is not None or source.current_snapshot_id is None
    # Deletes by equality become positions, in a snapshot of their own.
    is_converted = now.parent_snapshot_id == source.current_snapshot_id and now.summary.get("operation") == "replace"
    return is_converted or now.summary.get(JOB) in JOBS


def count_rows(metadata: TableMetadata) -> int | None:
    """Return how many rows a table has, as its snapshot says; None when it does not."""
    snapshot = find_snapshot(metadata, metadata.current_snapshot_id)
    if snapshot is None:
        return 0 if metadata.current_snapshot_id is None else None
    records, deleted, by_value = (
        snapshot.summary.get(f"total-{name}", "0") for name in ("records", "position-deletes", "equality-deletes")
    )
    is_known = "total-records" in snapshot.summary and records.isdigit() and deleted.isdigit() and by_value == "0"
    return int(records) - int(deleted) if is_known else None


FIRST_VERSION, FIRST_SCHEMA = 1, 0


def adapt_view(view: ViewMetadata, catalog_name: str | None, into: tuple[str, ...]) -> ViewMetadata:
    """Return the view for the target, with its current version alone, as the first one.

    Names without a catalog mean the target there; the default namespace gets the prefix `into`. `catalog_name`: the source's own name.
    """
    version = get_current_version(view)
    schema = next(one for one in view.schemas if one.schema_id == version.schema_id)
    default_catalog = None if version.default_catalog == catalog_name else version.default_catalog
    moved = replace(
        version,
        version_id=FIRST_VERSION,
        schema_id=FIRST_SCHEMA,
        default_catalog=default_catalog,
        default_namespace=(*into, *version.default_namespace) if default_catalog is None else version.default_namespace,
    )
    return replace(
        view, current_version_id=FIRST_VERSION, versions=(moved,), schemas=(replace(schema, schema_id=FIRST_SCHEMA),), version_log=()
    )


def same_view(one: ViewMetadata, other: ViewMetadata) -> bool:
    """Return True if both views have the same texts, default namespace and default catalog in their current versions."""
    return _get_content(get_current_version(one)) == _get_content(get_current_version(other))


def _get_content(version: ViewVersion) -> tuple[object, ...]:
    texts = frozenset((item.dialect, item.sql) for item in version.representations)
    return texts, version.default_namespace, version.default_catalog


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


def remove_staging(files: CopyFiles, prepared: TransferTable, made: TableMetadata) -> None:
    """Remove the files that staged a copy, after its catalog has published it.

    Raises: CatalogError: the store does not let us
    """
    place = prepared.metadata.location
    copy = find_copy(place, prepared.metadata_location)
    folder = prepared.metadata_location.rpartition("/")[0]
    found = [uri for uri, _ in files.list_modified(folder) if find_copy(place, uri) == copy]
    remove(files, _list_unreferenced(found, list_referenced(files, made)))


def remove_refused_copy(files: CopyFiles, prepared: TransferTable) -> None:
    """Remove all files of a copy that its catalog has refused.

    Raises: CatalogError: the store does not let us
    """
    place = prepared.metadata.location
    copy = find_copy(place, prepared.metadata_location)
    folders = copy_folders(place, copy or "")
    remove(files, [uri for folder in folders for uri, _ in files.list_modified(folder) if find_copy(place, uri) == copy])


def remove_dead_copies(target: Catalog, files: CopyFiles, loaded: TransferTable, before: datetime, *, is_there: bool) -> None:
    """Remove the files of unfinished copies of a table whose runs wrote nothing since `before`. `is_there`: the table exists.

    Raises: CatalogError: the store does not let us
    """
    for place in target.list_places(loaded):
        files.delete_many(list_partial_files(files, place, before))
        is_own = is_there and to_canonical(place) == to_canonical(loaded.metadata.location)
        for begun in list_unfinished_copies(files, place):
            if begun.newest < before:
                remove(files, _list_removable(target, files, begun, loaded.metadata if is_own else None))


def _list_removable(target: Catalog, files: CopyFiles, begun: UnfinishedCopy, made: TableMetadata | None) -> Collection[str]:
    """Return the files to remove of a copy whose run is dead; `made` is the table at that location, if it is published."""
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
