"""DuckLake paths as URIs, and the locations of a table's Iceberg files. No I/O.

`catalog`, `commands`, and jobs of `pipeline` in driver and executors call this.

Source: DuckLake resolves by plain concatenation, [data_path][schema.path][table.path]path, each prefix only when relative
"""

import hashlib
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from duckicelake.lake.rows import TableRow

S3_SCHEMES = ("s3a://", "s3n://")
SLASHES = re.compile("/{2,}")
SCHEME = re.compile("^[a-z0-9]+:(//)?")
NAMESPACE_LOCATION = "location"
"""The property of a namespace that says where its new tables and views lie; the name is that of Iceberg's catalogs."""
PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def to_uri(path: str) -> str:
    """Return a path as a URI: local folders get the scheme `file`, other paths are unchanged."""
    return f"file://{path}" if path.startswith("/") else path


def to_canonical(uri: str) -> str:
    """Return a URI in one spelling for comparisons: `file:/a` and `/a` are `file:///a`, `s3a://b` and `s3n://b` are `s3://b`."""
    if uri.startswith(S3_SCHEMES):
        return "s3://" + uri.partition("://")[2]
    path = uri.removeprefix("file:")
    return "file://" + SLASHES.sub("/", path) if path.startswith("/") else uri


def list_spellings(folder: str, uri: str) -> list[str]:
    """Return the spellings under which DuckLake may have stored a file's path, or that of the file that it was derived from.

    `folder` is its table's.

    There is none for a name with a NUL, which Postgres cannot store.
    """
    if "\0" in uri:
        return []
    canonical = to_canonical(uri)
    scheme, _, path = canonical.partition("://")
    heads = {"s3": ("s3://", *S3_SCHEMES), "file": ("file://", "file:", "")}.get(scheme, ())
    spellings = dict.fromkeys([*(f"{head}{path}" for head in heads), canonical, uri])
    base = to_canonical(folder)
    inside = [canonical.removeprefix(base)] if folder and canonical.startswith(base) else []
    return [*spellings, *inside, *_list_rewritten(uri)]


def has_empty_part(uri: str) -> bool:
    """Return True if a part of a URI's path is empty: some stores ignore the empty part."""
    path = SCHEME.sub("", uri)
    # A local path may begin with several slashes.
    return "//" in (path.lstrip("/") if uri.startswith(("/", "file:")) else path)


def has_dot_segments(uri: str) -> bool:
    """Return True if a part of a URI is `.` or `..`, so that it may lead out of its folder."""
    return any(part in (".", "..") for part in uri.split("/"))


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders that clients may use, each with its trailing slash; `anywhere`: every folder, and names without one.

    `free` False: the client may not choose a location at all; the catalog does.
    """

    folders: tuple[str, ...] = ()
    anywhere: bool = False
    free: bool = True

    def holds(self, uri: str) -> bool:
        """Return True if the URI lies below one of the folders."""
        canonical = to_canonical(uri)
        return not has_dot_segments(canonical) and (
            self.anywhere or any(canonical.startswith(folder) and canonical != folder for folder in self.folders)
        )


FIXED_LOCATIONS = Roots(free=False)
EVERYWHERE = "*"


def parse_roots(paths: Sequence[str]) -> Roots:
    """Return the roots of a setting's paths."""
    folders = [path for path in paths if path != EVERYWHERE]
    return Roots(tuple(to_folder_uri(path) for path in folders), anywhere=EVERYWHERE in paths)


def to_folder_uri(path: str) -> str:
    """Return a folder's URI for comparisons, with its trailing slash."""
    return to_canonical(path.rstrip("/") + "/")


def table_folder(data_path: str, table: TableRow) -> str:
    """Return the folder that a table's relative file paths start from, with its trailing slash."""
    schema_folder = _under(data_path, table.schema_path, table.schema_path_is_relative)
    return _under(schema_folder, table.path, table.path_is_relative)


def _under(parent: str, path: str | None, is_relative: bool) -> str:
    if path is None:
        return parent
    return parent + path if is_relative else path


def file_uri(folder: str, path: str, is_relative: bool) -> str:
    """Return the URI of a data or delete file of the table in `folder`."""
    return to_uri(folder + path if is_relative else path)


def table_location(iceberg_path: str, table_uuid: UUID, schema_name: str, table_name: str) -> str:
    """Return a new table's Iceberg location, without trailing slash.

    Only plain names become part of it, because paths go into access policies, where some characters are wildcards.
    """
    namespace = [schema_name] if PLAIN_NAME.fullmatch(schema_name) else []
    name = f"{table_name}-{table_uuid}" if PLAIN_NAME.fullmatch(table_name) else str(table_uuid)
    return to_uri(iceberg_path) + "/".join([*namespace, name])


def location_in_namespace(namespace_location: str, table_uuid: UUID, table_name: str) -> str:
    """Return a new table's Iceberg location in its namespace's, without trailing slash."""
    return table_location(f"{namespace_location.rstrip('/')}/", table_uuid, "", table_name)


def named_location(iceberg_path: str, levels: Sequence[str], table_name: str) -> str | None:
    """Return the location from a table's namespace and name, without uuid; None if a name is not plain."""
    parts = (*levels, table_name)
    return to_uri(iceberg_path) + "/".join(parts) if all(PLAIN_NAME.fullmatch(part) for part in parts) else None


def format_digest(content: bytes) -> str:
    """Return the digest by which an object is named."""
    return hashlib.sha256(content).hexdigest()[:32]


def format_manifest_name(content: bytes) -> str:
    """Return the digest by which a manifest or a manifest list is named, written as a UUID.

    Readers keep such objects over several scans if their names have a UUID, as those of other writers have (Polars does).
    """
    return str(UUID(format_digest(content)))


@lru_cache(maxsize=4096)
def metadata_uri(location: str, metadata_version: int) -> str:
    """Return the URI of a metadata version, named as Hadoop tables name it."""
    return f"{location}/metadata/v{metadata_version}.metadata.json"


COPY = re.compile(r"/(?:data|metadata)/copy-([0-9a-f]{16})/.+")
"""Objects that `import` and `export` write for a copy, below its location."""


def find_copy(location: str, uri: str) -> str | None:
    """Return the id of the copy that wrote an object at a location, or None for any other object."""
    folder, plain = to_canonical(location), to_canonical(uri)
    match = COPY.fullmatch(plain.removeprefix(folder)) if plain.startswith(folder) else None
    return None if match is None else match[1]


def copy_folders(location: str, copy: str) -> tuple[str, str]:
    """Return the folders of a copy's data and of its metadata while it is written; the data stays there."""
    return f"{location}/data/copy-{copy}", f"{location}/metadata/copy-{copy}"


def version_hint_uri(location: str) -> str:
    """Return the URI of the file from which readers of a plain path learn the newest metadata version."""
    return f"{location}/metadata/version-hint.text"


def manifest_uri(location: str, name: str) -> str:
    """Return the URI of a manifest by its name."""
    return f"{location}/metadata/{name}-m0.avro"


def manifest_list_uri(location: str, snapshot_id: int, name: str) -> str:
    """Return the URI of a snapshot's manifest list by its name."""
    return f"{location}/metadata/snap-{snapshot_id}-{name}.avro"


def inlined_uri(location: str, lake_snapshot_id: int, digest: str) -> str:
    """Return the URI of the file derived from the rows inlined at one lake snapshot."""
    return f"{location}/data/inlined-{lake_snapshot_id}-{digest}.parquet"


def deletes_uri(location: str, digest: str, suffix: str) -> str:
    """Return the URI of a derived delete file; several lake snapshots may share it."""
    return f"{location}/data/deletes-{digest}.{suffix}"


INLINED = re.compile(r"/data/inlined-(\d+)-[0-9a-f]+\.parquet")


def find_inlined_snapshot(locations: Sequence[str], uri: str) -> int | None:
    """Return the lake snapshot whose inlined rows a derived file holds, or None for any other file."""
    matches = (INLINED.fullmatch(uri.removeprefix(location)) for location in locations if uri.startswith(location))
    return next((int(match[1]) for match in matches if match), None)


REWRITTEN = re.compile(r".*/data/variants-(?:\d+-)?\d+/([A-Za-z0-9_/-]+)\.parquet", re.DOTALL)
"""The name of a derived file; those of the first revision lack its number."""
FOLDER_LENGTH = 128


def rewritten_uri(location: str, path: str, size_bytes: int, revision: int) -> str:
    """Return the URI of the file that is derived from a data file for its variants; it contains DuckLake's path of that file."""
    text = urlsafe_b64encode(path.encode()).decode().rstrip("=")
    folders = [text[start : start + FOLDER_LENGTH] for start in range(0, len(text), FOLDER_LENGTH)]
    return f"{location}/data/variants-{revision}-{size_bytes}/{'/'.join(folders)}.parquet"


def find_rewritten_path(uri: str) -> str | None:
    """Return DuckLake's path of the data file that a file was derived from for its variants, or None for any other file."""
    match = REWRITTEN.fullmatch(uri)
    text = match[1].replace("/", "") if match else ""
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode() or None
    except ValueError:
        return None


def _list_rewritten(uri: str) -> list[str]:
    path = find_rewritten_path(uri)
    return [] if path is None or "\0" in path else [path]


def list_paths(folder: str, uri: str) -> list[str]:
    """Return the spellings under which DuckLake may have stored a file of the table in `folder`, or the one that it was derived from."""
    plain = uri.removeprefix("file://")
    inside = (path.removeprefix(folder) for path in (uri, plain) if path.startswith(folder))
    return [uri, plain, *inside, *_list_rewritten(uri)]
