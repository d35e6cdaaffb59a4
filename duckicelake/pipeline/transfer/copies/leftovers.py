"""What copies leave: the metadata that one was staged by, when it is done, and everything of those whose runs have died.

Nothing goes that a table names, nor anything of a copy that gave a sign of life within the grace.
"""

from collections.abc import Collection
from datetime import datetime

from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.pipeline.transfer.catalogs import Catalog, LoadedTable
from duckicelake.pipeline.transfer.copies.found import (
    CopyFiles,
    UnfinishedCopy,
    get_file_name,
    list_partial_files,
    list_unfinished_copies,
    remove,
)
from duckicelake.translate.locations import copy_folders, find_copy, to_canonical

CHECKSUM = ".{}.crc"
"""How Hadoop calls what it keeps beside a file of a local disk."""


def tidy(files: CopyFiles, prepared: LoadedTable, made: TableMetadata) -> None:
    """Remove what a copy was staged by, once it is known.

    Raises: CatalogError: the store does not let us
    """
    place = prepared.metadata.location
    copy = find_copy(place, prepared.metadata_location)
    folder = prepared.metadata_location.rpartition("/")[0]
    found = [uri for uri, _ in files.list_modified(folder) if find_copy(place, uri) == copy]
    remove(files, _list_unreferenced(found, list_referenced(files, made)))


def withdraw(files: CopyFiles, prepared: LoadedTable) -> None:
    """Remove what a table was staged by that its catalog has refused.

    Raises: CatalogError: the store does not let us
    """
    place = prepared.metadata.location
    copy = find_copy(place, prepared.metadata_location)
    folders = copy_folders(place, copy or "")
    remove(files, [uri for folder in folders for uri, _ in files.list_modified(folder) if find_copy(place, uri) == copy])


def clear(target: Catalog, files: CopyFiles, loaded: LoadedTable, before: datetime, *, is_there: bool) -> None:
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
    """What goes of a copy whose run is dead; `made` is the table in that place, if it is known."""
    if made is not None:
        named = list_referenced(files, made)
        if named.isdisjoint(map(to_canonical, begun.metadata)):
            named |= _list_rows(files, made)
        if not named.isdisjoint(map(to_canonical, [*begun.metadata, *begun.data])):
            return _list_unreferenced(begun.metadata, named)
    if begun.publishing is None:
        # Copies of earlier versions never said that they were done: where there are other metadata, one may be a table under another name.
        return [] if begun.beside and not _says_how_far(files, begun) else [*begun.metadata, *begun.data]
    return target.give_up(begun, files.read(begun.publishing).decode("utf-8", "replace"), is_there=made is not None)


def _says_how_far(files: CopyFiles, begun: UnfinishedCopy) -> bool:
    """Whether a copy is of those that keep their rows apart and say when they may become known."""
    return bool(begun.data) or (begun.staged is not None and b"/data/copy-" in files.read(begun.staged))


def _list_unreferenced(uris: Collection[str], named: Collection[str]) -> list[str]:
    kept = {CHECKSUM.format(get_file_name(uri)) for uri in named}
    return [uri for uri in uris if to_canonical(uri) not in named and get_file_name(uri) not in kept]


def list_referenced(files: CopyFiles, metadata: TableMetadata) -> set[str]:
    """What a table names, but for files of rows, in one spelling."""
    named = {to_canonical(item.statistics_path) for item in (*metadata.statistics, *metadata.partition_statistics)}
    for snapshot in metadata.snapshots:
        named.add(to_canonical(snapshot.manifest_list))
        named |= {to_canonical(one.manifest_path) for one in decode_manifest_list(files.read(snapshot.manifest_list))}
    return named


def _list_rows(files: CopyFiles, metadata: TableMetadata) -> set[str]:
    manifests = {one.manifest_path: one for each in metadata.snapshots for one in decode_manifest_list(files.read(each.manifest_list))}
    entries = (decode_manifest(files.read(path), one)[1] for path, one in manifests.items())
    return {to_canonical(entry.data_file.file_path) for found in entries for entry in found}
