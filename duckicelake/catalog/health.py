"""Readiness of a warehouse, and published objects that are missing from the store: found by a monitor thread and by `duckicelake check`.

`rest` calls `check_ready` on a worker thread, and `app` starts one `ObjectMonitor` for each lake; `duckicelake check` calls the `list_`
functions. `check_ready` reads Postgres and asks for a bucket. The monitor lists the store, without Postgres; if objects are missing, it
drops the table's caches and publishes the table again. Branches have no monitor.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from time import monotonic

from duckicelake.catalog.publish import read_version_hint
from duckicelake.catalog.table_cache import PublishedTable, TableCache
from duckicelake.catalog.tables import Ident, publish_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CatalogError, NotFound
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.avro.reader import UNLIMITED
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.manifest import DELETED
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.metadata import parse_metadata
from duckicelake.lake.connect import reading
from duckicelake.lake.read import read_iceberg_path
from duckicelake.lake.rows import MetadataLogRow
from duckicelake.store.objects import Objects
from duckicelake.translate.locations import metadata_uri, to_uri, version_hint_uri
from duckicelake.translate.namespaces import to_levels

MAX_TIME_SHARE = 0.01
"""Of a server's time, for looking after what it has published."""
STOP_SECONDS = 5.0


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


def list_lost_versions(objects: Objects, location: str, log: Sequence[MetadataLogRow]) -> list[MetadataLogRow]:
    """Return the metadata versions that the metadata log of a table's newest metadata file names, and whose files are gone.

    They cannot be made again: notes say when they were given out, and not all that they showed. `log` is the newest version first.
    """
    uris = {metadata_uri(location, row.metadata_version): row for row in log}
    newest = next(iter(uris), None)
    present = {uri for uri, _ in objects.list_under(f"{location}/metadata")}
    if newest not in present or uris.keys() <= present:
        return []
    metadata = parse_metadata(decode_json(objects.read(newest), newest))
    return [uris[uri] for _, uri in metadata.metadata_log if uri in uris and uri not in present]


METADATA_FILE = re.compile(r"/metadata/v(\d+)\.metadata\.json", re.ASCII)


def list_stale_metadata(
    objects: Objects, location: str, read_log: Callable[[], Sequence[MetadataLogRow]], *, newest_only: bool
) -> list[str]:
    """Return the metadata files in a table's location that do not belong to its notes, and the version hint that names one of them.

    Restoring Postgres from an older backup leaves such files: the catalog gives their numbers out again, and never writes over a file.
    A file belongs to the notes when its number is in the log and it has the time that the log says. `read_log` is called after the
    files were listed, because a server notes a number before it writes the file. `newest_only` reads only the newest version's file.
    """
    found = {uri: METADATA_FILE.fullmatch(uri.removeprefix(location)) for uri, _ in objects.list_under(f"{location}/metadata")}
    versions = {int(match[1]): uri for uri, match in found.items() if match is not None}
    log = {row.metadata_version: row.updated_ms for row in read_log() if row.earlier_location is None}
    if not log:
        return []
    newest = max(log)
    looked_at = [newest] if newest_only else sorted(log)
    stale = [versions[number] for number in looked_at if number in versions and _read_time(objects, versions[number]) != log[number]]
    stale += [uri for number, uri in sorted(versions.items()) if number > newest]
    hint = version_hint_uri(location)
    return [*stale, hint] if hint in found and read_version_hint(objects, hint) > newest else stale


def _read_time(objects: Objects, uri: str) -> int | None:
    """Return when the state that a metadata file shows was made; None when the file cannot be read or has gone."""
    try:
        return parse_metadata(decode_json(objects.read(uri), uri)).last_updated_ms
    except (BadRequest, NotFound):
        return None


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
            manifests |= {manifest.manifest_path: manifest for manifest in decode_manifest_list(objects.read(uri), uri, UNLIMITED)}
    yield from manifests
    for uri in manifests:
        if uri in present:
            entries = decode_manifest(objects.read(uri), uri, UNLIMITED)[1]
            # DuckLake's clean-up removes what a snapshot has deleted, when the snapshots before it have expired
            yield from (entry.data_file.file_path for entry in entries if entry.status != DELETED)


@dataclass(slots=True)
class ObjectMonitor:
    """Check every `period_s` that published objects are still in the store, and publish missing ones again.

    Cached loads call no store, so they cannot notice. `forget` drops the cached responses of a table. Runs in its own thread.
    """

    warehouse: Warehouse
    period_s: float
    forget: Callable[[int], None]
    _log: logging.Logger = field(default_factory=lambda: logging.getLogger("duckicelake.objects"))
    _stopping: Event = field(default_factory=Event)
    _thread: Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = Thread(target=self._run, name="object-monitor", daemon=True)

    def start(self) -> None:
        """Begin, with the first round after a period."""
        self._thread.start()

    def stop(self) -> None:
        """End, within seconds: a table that is being published is not waited for."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        pause = self.period_s
        while not self._stopping.wait(pause):
            began = monotonic()
            self.check_all()
            pause = max(self.period_s, (monotonic() - began) / MAX_TIME_SHARE)

    def check_all(self) -> None:
        """Look after every table that is remembered, once."""
        for table_id, cache in self.warehouse.caches.items():
            if self._stopping.is_set():
                return
            try:
                self._check_table(table_id, cache)
            except CatalogError as error:
                self._log.warning("Published objects of table %d could not be looked after: %s", table_id, error.message)
            except Exception:  # noqa: BLE001  the outermost frame of this thread: one faulty table must not end it
                self._log.exception("Published objects of table %d could not be looked after", table_id)

    def _check_table(self, table_id: int, cache: TableCache) -> None:
        published = cache.table.published
        lost = [] if published is None else _list_lost(self.warehouse.objects, published, cache)
        if published is None or not lost:
            return
        table = published.state.table
        self._log.warning("%d published objects of %s.%s are gone, such as %s.", len(lost), table.schema_name, table.table_name, lost[0])
        with cache.lock:
            cache.is_invalid = True
            self.warehouse.caches.forget(table_id, cache)
        self.forget(table_id)
        publish_table(self.warehouse, Ident(to_levels(table.schema_name), table.table_name))


def _list_lost(objects: Objects, published: PublishedTable, cache: TableCache) -> list[str]:
    """Return what the published metadata needs and is gone, of what this server knows to have been in the store.

    Clients may delete what is theirs: missing objects that no metadata needs are only removed from the cache.
    """
    known, location = (cache.files.known_uris or set[str]()).copy(), published.metadata.location
    gone = known - {uri for uri, _ in objects.list_under(location)} if known else set[str]()
    if not gone:
        return []
    lost = list_missing_objects(objects, location, published.state.notes.metadata_log[-1].metadata_version)
    if not lost:
        with cache.lock:
            cache.forget_missing(gone)
    return lost
