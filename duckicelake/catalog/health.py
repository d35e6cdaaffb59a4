"""Is a warehouse ready to work, and is everything there that it published?"""

import json
from collections.abc import Iterator

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.iceberg.decoding.avro_file import OUR_OWN
from duckicelake.iceberg.decoding.manifests import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.metadata import parse_metadata
from duckicelake.lake.connect import reading
from duckicelake.lake.read import read_iceberg_path
from duckicelake.store.objects import Objects
from duckicelake.translate.locations import metadata_uri, to_uri, version_hint_uri


def check_ready(warehouse: Warehouse) -> None:
    """Raise ServiceUnavailable, naming which, when Postgres or the object store does not answer."""
    with reading(warehouse.lake) as conn:
        iceberg_path = read_iceberg_path(conn)
    warehouse.objects.check(to_uri(iceberg_path))


def list_missing_objects(objects: Objects, location: str, metadata_version: int) -> list[str]:
    """Return the objects below a table's location that its newest metadata needs and the store does not have.

    What only a missing object would name is not found out: when everything of the answer is there, ask again.
    Raises: BadRequest: an object is there and is not what we wrote
    """
    present = {uri for uri, _ in objects.list_under(location)}
    own = set(_list_needed(objects, location, metadata_version, present))
    return sorted(uri for uri in own if uri.startswith(location + "/") and uri not in present)


def _list_needed(objects: Objects, location: str, metadata_version: int, present: set[str]) -> Iterator[str]:
    newest = metadata_uri(location, metadata_version)
    yield from (version_hint_uri(location), newest)
    if newest not in present:
        return
    lists = [snapshot.manifest_list for snapshot in parse_metadata(json.loads(objects.read(newest))).snapshots]
    yield from lists
    manifests: dict[str, ManifestFile] = {}
    for uri in lists:
        if uri in present:
            manifests |= {manifest.manifest_path: manifest for manifest in decode_manifest_list(objects.read(uri), uri, OUR_OWN)}
    yield from manifests
    for uri in manifests:
        if uri in present:
            yield from (entry.data_file.file_path for entry in decode_manifest(objects.read(uri), uri, OUR_OWN)[1])
