"""What the store of a lake may hold: what DuckLake's rows, published metadata, refs and notes name, and nothing else.

Read by PyIceberg and by plain SQL, so that what clears up is not its own judge.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyiceberg.table import StaticTable

from duckicelake.commands.check import remove_orphans
from duckicelake.pipeline.maintain.lake_access import DuckLake
from tests.rest.serving import make_settings
from tests.support.keys import open_s3
from tests.support.lakes import FreshLake
from tests.support.readers import Served

WITHOUT_STORE: dict[str, Any] = {"s3_endpoint": None, "s3_access_key_id": None, "s3_secret_access_key": None}
BEYOND = timedelta(hours=1)
"""So much later everything is older than the grace."""
SELECT_FILES = b"""
SELECT DISTINCT s.path, coalesce(s.path_is_relative, true), t.path, coalesce(t.path_is_relative, true),
       f.path, coalesce(f.path_is_relative, true)
  FROM (SELECT table_id, path, path_is_relative FROM ducklake_data_file
        UNION
        SELECT table_id, path, path_is_relative FROM ducklake_delete_file) f
  JOIN ducklake_table t USING (table_id)
  JOIN ducklake_schema s USING (schema_id)
"""
SELECT_TABLES = b"""
SELECT s.schema_name, t.table_name FROM ducklake_table t JOIN ducklake_schema s USING (schema_id)
 WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL
"""
SELECT_SCHEDULED = b"SELECT path, path_is_relative FROM ducklake_files_scheduled_for_deletion"
SELECT_VIEWS = b"SELECT metadata_location FROM iceberg_view"
COUNT_STAGED = b"SELECT count(*) FROM iceberg_staged"


@dataclass(slots=True)
class Reached:
    """What metadata files name, and what that names, as PyIceberg reads it; each list and manifest is read once."""

    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    names: set[str] = field(default_factory=set[str])

    def add(self, metadata_location: str) -> StaticTable:
        """Take a metadata file."""
        table = StaticTable.from_metadata(metadata_location, dict(self.properties))
        self.names.add(to_plain(metadata_location))
        self.names.update(to_plain(one.statistics_path) for one in (*table.metadata.statistics, *table.metadata.partition_statistics))
        for snapshot in table.metadata.snapshots:
            if self._is_new(snapshot.manifest_list):
                for manifest in snapshot.manifests(table.io):
                    if self._is_new(manifest.manifest_path):
                        entries = manifest.fetch_manifest_entry(table.io)
                        self.names.update(to_plain(entry.data_file.file_path) for entry in entries)
        return table

    def _is_new(self, uri: str) -> bool:
        known = len(self.names)
        self.names.add(to_plain(uri))
        return len(self.names) > known


def list_named(*metadata_locations: str) -> set[str]:
    """The files of tables on this machine that their metadata files name, and these."""
    reached = Reached()
    for location in metadata_locations:
        reached.add(location)
    return reached.names


def to_plain(uri: str) -> str:
    """One spelling of each: files of this machine by their paths."""
    return uri if uri.startswith("s3://") else "/" + uri.removeprefix("file:").lstrip("/")


def list_files(folder: Path) -> set[str]:
    """Every file below a folder, but for the sums that Hadoop keeps beside them."""
    return {str(path) for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc"}


@dataclass(frozen=True, slots=True)
class Holding:
    """What lies where a lake and its tables are, what has to, and what may."""

    found: set[str]
    needed: set[str]
    named: set[str]

    @property
    def strays(self) -> set[str]:
        """What nobody names."""
        return self.found - self.named

    @property
    def lost(self) -> set[str]:
        """What somebody reads from now, and is not there."""
        return self.needed - self.found


def look_at(served: Served) -> Holding:
    """The store of a lake as it is, with every live table published."""
    newest, earlier, may_be, places = Reached(find_keys(served.lake)), Reached(find_keys(served.lake)), set[str](), set[str]()
    lake, conn = served.lake, served.lake.psycopg()
    for schema_name, table_name in conn.execute(SELECT_TABLES).fetchall():
        answer = served.server.get(f"namespaces/{schema_name.replace('␟', '%1F')}/tables/{table_name}")
        table = newest.add(answer.json["metadata-location"])
        for entry in table.metadata.metadata_log:
            earlier.add(entry.metadata_file)
        may_be |= set(_list_versions(to_plain(answer.json["metadata-location"])))
        places.add(table.metadata.location)
    needed = newest.names | set(_list_files(lake)) | {to_plain(row[0]) for row in conn.execute(SELECT_VIEWS)}
    may_be |= {to_plain(f"{lake.data_path if row[1] else ''}{row[0]}") for row in conn.execute(SELECT_SCHEDULED)}
    found = {uri for place in (lake.data_path, lake.iceberg_path, *places) for uri in list_objects(lake, place)}
    return Holding(found, needed, needed | earlier.names | may_be)


def check_holding(served: Served, *others: str) -> None:
    """Fail unless the store holds exactly what is named, with everything that somebody reads from now, and nothing half written.

    Objects of `others` may be where tables lie, or be a table's and lie elsewhere; whether these are there is not looked at.
    """
    holding = look_at(served)
    assert not holding.strays - set(others), f"named by nobody: {sorted(holding.strays - set(others))}"
    assert not holding.lost - set(others), f"lost: {sorted(holding.lost - set(others))}"
    begun = list_unfinished(served.lake)
    assert not begun, f"begun and never ended: {begun}"


def find_keys(lake: FreshLake) -> dict[str, str]:
    """How PyIceberg reaches the store."""
    store = lake.store
    keys = {"endpoint": store.endpoint, "region": store.region}
    keys |= {"access-key-id": store.access_key_id, "secret-access-key": store.secret_access_key}
    return {f"s3.{name}": text for name, text in keys.items()} if is_on_s3(lake) else {}


def _list_versions(metadata_location: str) -> Iterator[str]:
    """A server's metadata files up to this one, which stay, and the hint that leads to it."""
    folder, _, name = metadata_location.rpartition("/")
    number = re.match(r"v(\d+)\.metadata\.json", name)
    assert number, metadata_location
    yield f"{folder}/version-hint.text"
    yield from (f"{folder}/v{version}.metadata.json" for version in range(1, int(number[1]) + 1))


def _list_files(lake: FreshLake) -> Iterator[str]:
    for row in lake.psycopg().execute(SELECT_FILES):
        path = lake.data_path
        for part, is_relative in zip(row[::2], row[1::2], strict=True):
            path = path + part if is_relative else part
        yield to_plain(path)


def list_objects(lake: FreshLake, place: str) -> set[str]:
    """Every object below a place."""
    folder = place.rstrip("/") + "/"
    if not folder.startswith("s3://"):
        return list_files(Path(to_plain(folder)))
    return {row[0] for row in lake.bare_duckdb().execute("SELECT file FROM glob($place)", {"place": f"{folder}**"}).fetchall()}


def list_unfinished(lake: FreshLake) -> list[str]:
    """Objects that were begun and never ended, whose parts S3 keeps."""
    if not is_on_s3(lake):
        return []
    prefix = f"{lake.name}/"
    found = open_s3(lake.store).list_multipart_uploads(Bucket=lake.store.bucket, Prefix=prefix).get("Uploads", [])
    return [upload["Key"] for upload in found if upload["Key"].startswith(prefix)]


def is_on_s3(lake: FreshLake) -> bool:
    """Whether a lake's files are on S3."""
    return lake.data_path.startswith("s3://")


def clear_up(lake: FreshLake) -> list[str]:
    """Remove what nothing names once everything is old, as `maintain` does with an `orphan-age`; what went from where tables lie."""
    [settings] = make_settings(lake, **({} if is_on_s3(lake) else WITHOUT_STORE)).lakes()
    before = datetime.now(UTC) + BEYOND
    DuckLake(lake.duckdb).remove_orphans(before)
    return remove_orphans(settings, before)


def check_cleared(served: Served, *others: str) -> None:
    """Clear up, and fail unless the store then holds exactly what is named; no place is noted of a table that was never made."""
    clear_up(served.lake)
    check_holding(served, *others)
    assert served.lake.psycopg().execute(COUNT_STAGED).fetchone() == (0,)
