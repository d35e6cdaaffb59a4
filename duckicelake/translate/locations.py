"""DuckLake paths as URIs, and where a table's Iceberg side lives.

Source: DuckLake resolves by plain concatenation, [data_path][schema.path][table.path]path, each prefix only when relative
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from duckicelake.lake.rows import TableRow

S3_SCHEMES = ("s3a://", "s3n://")
SLASHES = re.compile("/{2,}")
SCHEME = re.compile("^[a-z0-9]+:(//)?")
PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def to_uri(path: str) -> str:
    """Return a path as a URI: local folders get the scheme `file`, everything else stays as it is."""
    return f"file://{path}" if path.startswith("/") else path


def to_canonical(uri: str) -> str:
    """Return one spelling of a URI, to compare by: `file:/a` and `/a` are `file:///a`, `s3a://b` and `s3n://b` are `s3://b`."""
    if uri.startswith(S3_SCHEMES):
        return "s3://" + uri.partition("://")[2]
    path = uri.removeprefix("file:")
    return "file://" + SLASHES.sub("/", path) if path.startswith("/") else uri


def list_spellings(folder: str, uri: str) -> list[str]:
    """Return the ways in which DuckLake may have written down a file, whichever way it is told; `folder` is its table's.

    There is none for a name with a NUL, which Postgres cannot store.
    """
    if "\0" in uri:
        return []
    plain = to_canonical(uri)
    scheme, _, rest = plain.partition("://")
    heads = {"s3": ("s3://", *S3_SCHEMES), "file": ("file://", "file:", "")}.get(scheme, ())
    whole = dict.fromkeys([*(f"{head}{rest}" for head in heads), plain, uri])
    base = to_canonical(folder)
    return [*whole, *([plain.removeprefix(base)] if folder and plain.startswith(base) else [])]


def has_empty_part(uri: str) -> bool:
    """Tell whether a part of a URI's path is empty: some stores take such a name for the one without it."""
    plain = SCHEME.sub("", uri)
    # a folder of this machine may begin with several
    return "//" in (plain.lstrip("/") if uri.startswith(("/", "file:")) else plain)


def has_dot_segments(uri: str) -> bool:
    """Tell whether a URI may lead elsewhere than it seems to: one of its parts is `.` or `..`."""
    return any(part in (".", "..") for part in uri.split("/"))


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders that clients may use, each with its trailing slash; `anywhere`: all there are, and names without a folder.

    `free` False: the client may not even choose within them; its tables lie where the catalog puts them.
    """

    folders: tuple[str, ...] = ()
    anywhere: bool = False
    free: bool = True

    def holds(self, uri: str) -> bool:
        """Tell whether something with that URI lies below one of the folders."""
        plain = to_canonical(uri)
        return not has_dot_segments(plain) and (
            self.anywhere or any(plain.startswith(folder) and plain != folder for folder in self.folders)
        )


FIXED_LOCATIONS = Roots(free=False)
EVERYWHERE = "*"


def parse_roots(paths: Sequence[str]) -> Roots:
    """Return folders as settings name them."""
    folders = [path for path in paths if path != EVERYWHERE]
    return Roots(tuple(to_folder_uri(path) for path in folders), anywhere=EVERYWHERE in paths)


def to_folder_uri(path: str) -> str:
    """Return a folder to compare by, with its trailing slash."""
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
    """Return the URI of one data or delete file of the table in `folder`."""
    return to_uri(folder + path if is_relative else path)


def table_location(iceberg_path: str, table_uuid: UUID, schema_name: str, table_name: str) -> str:
    """Return a new table's Iceberg location, without trailing slash.

    Names are part of it only when plain: paths go into access policies, where some characters are wildcards.
    """
    namespace = [schema_name] if PLAIN_NAME.fullmatch(schema_name) else []
    name = f"{table_name}-{table_uuid}" if PLAIN_NAME.fullmatch(table_name) else str(table_uuid)
    return to_uri(iceberg_path) + "/".join([*namespace, name])


def named_location(iceberg_path: str, levels: Sequence[str], table_name: str) -> str | None:
    """Return the location that has a table's namespace and name and no uuid; None where a name is not plain."""
    parts = (*levels, table_name)
    return to_uri(iceberg_path) + "/".join(parts) if all(PLAIN_NAME.fullmatch(part) for part in parts) else None


def format_digest(content: bytes) -> str:
    """Return what names an object after its bytes."""
    return hashlib.sha256(content).hexdigest()[:32]


@lru_cache(maxsize=4096)
def metadata_uri(location: str, metadata_version: int) -> str:
    """Return the URI of one metadata version, named as Hadoop tables name it."""
    return f"{location}/metadata/v{metadata_version}.metadata.json"


COPY = re.compile(r"/(?:data|metadata)/copy-([0-9a-f]{16})/.+")
"""What `import` and `export` write of a copy, below its location."""


def find_copy(location: str, uri: str) -> str | None:
    """Return the id of the copy that an object in a location was written by, or None for any other object."""
    place, plain = to_canonical(location), to_canonical(uri)
    match = COPY.fullmatch(plain.removeprefix(place)) if plain.startswith(place) else None
    return None if match is None else match[1]


def copy_folders(location: str, copy: str) -> tuple[str, str]:
    """Return where a copy's data and metadata are while it is written, and its data afterwards."""
    return f"{location}/data/copy-{copy}", f"{location}/metadata/copy-{copy}"


def version_hint_uri(location: str) -> str:
    """Return the URI of the file that names the newest metadata version to path readers."""
    return f"{location}/metadata/version-hint.text"


def manifest_uri(location: str, digest: str) -> str:
    """Return the URI of a manifest by the digest of its bytes."""
    return f"{location}/metadata/{digest}-m0.avro"


def manifest_list_uri(location: str, snapshot_id: int, digest: str) -> str:
    """Return the URI of a snapshot's manifest list by the digest of its bytes."""
    return f"{location}/metadata/snap-{snapshot_id}-{digest}.avro"


def inlined_uri(location: str, lake_snapshot_id: int, digest: str) -> str:
    """Return the URI of the file derived from the rows inlined at one lake snapshot."""
    return f"{location}/data/inlined-{lake_snapshot_id}-{digest}.parquet"


def deletes_uri(location: str, digest: str, suffix: str) -> str:
    """Return the URI of a derived delete file; several lake snapshots may share it."""
    return f"{location}/data/deletes-{digest}.{suffix}"


INLINED = re.compile(r"/data/inlined-(\d+)-[0-9a-f]+\.parquet")


def find_inlined_snapshot(locations: Sequence[str], uri: str) -> int | None:
    """Return the lake snapshot of the inlined rows that a derived file holds, or None for any other file."""
    matches = (INLINED.fullmatch(uri.removeprefix(location)) for location in locations if uri.startswith(location))
    return next((int(match[1]) for match in matches if match), None)


def list_paths(folder: str, uri: str) -> list[str]:
    """Return the ways in which DuckLake may have written down a file of the table in `folder`."""
    plain = uri.removeprefix("file://")
    return [uri, plain, *(path.removeprefix(folder) for path in (uri, plain) if path.startswith(folder))]
