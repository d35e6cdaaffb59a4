"""DuckDB sessions with the pinned extensions, which create and attach lakes: only the `ducklake` extension creates DuckLake's tables.

`commands` opens the sessions in its own process; a server opens one only before it serves, to create a lake that is missing.
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import duckdb

from duckicelake.embedded.home import EmbeddedError

EXTENSIONS = ("httpfs", "postgres_scanner", "ducklake")
CATALOG_NAME = "lake"
ATTACHED_VERSION = "1.0"
"""The version of DuckLake that the pinned extension attaches."""


@dataclass(frozen=True, slots=True)
class S3Keys:
    """DuckDB's access to an S3; `endpoint` is a URL, None for AWS."""

    endpoint: str | None
    region: str
    access_key_id: str
    secret_access_key: str


@dataclass(frozen=True, slots=True)
class LakeAddress:
    """The address of a DuckLake; `data_path` None means that of the existing lake, `snapshot_id` None its newest snapshot."""

    dsn: str
    metadata_schema: str
    data_path: str | None = None
    read_only: bool = False
    snapshot_id: int | None = None


def connect_duckdb(
    extension_folder: Path, extensions: tuple[str, ...] = EXTENSIONS, *, checks_signatures: bool = True
) -> duckdb.DuckDBPyConnection:
    """Return an in-memory DuckDB session with the extensions of the installed wheels; nothing is downloaded.

    extension_folder: the folder into which the session's user may install other extensions
    checks_signatures: if false, DuckDB does not hash the extensions, which saves half a CPU second

    Raises: EmbeddedError: an extension is missing or belongs to another release of DuckDB
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "extension_directory": str(extension_folder),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_unsigned_extensions": not checks_signatures,
    }
    conn = duckdb.connect(config=settings)
    try:
        for name in extensions:
            conn.load_extension(str(_build_extension_path(name)))
    except (duckdb.Error, ImportError) as error:
        conn.close()
        raise EmbeddedError(f"DuckDB {duckdb.__version__} cannot load its extensions: {error}. Reinstall duckicelake.") from error
    return conn


def _build_extension_path(name: str) -> Path:
    """Return the path of an extension in its wheel. DuckDB loads it from there, because installing a copy would hash and write it first."""
    return Path(str(files(f"duckdb_extension_{name}")), "extensions", f"v{duckdb.__version__}", f"{name}.duckdb_extension")


def quote(text: str) -> str:
    """Return the text as a SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """Return a name as a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def format_secret(keys: S3Keys, name: str = "lake_s3") -> str:
    """Return the CREATE SECRET statement with the keys of an S3."""
    parts = ["TYPE s3", f"KEY_ID {quote(keys.access_key_id)}", f"SECRET {quote(keys.secret_access_key)}", f"REGION {quote(keys.region)}"]
    if keys.endpoint is not None:
        url = urlsplit(keys.endpoint)
        parts += [f"ENDPOINT {quote(url.netloc)}", f"USE_SSL {str(url.scheme == 'https').lower()}", "URL_STYLE 'path'"]
    return f"CREATE OR REPLACE SECRET {name} ({', '.join(parts)})"


def format_attach(address: LakeAddress, catalog: str = CATALOG_NAME) -> str:
    """Return the ATTACH statement of a lake; with `data_path`, DuckDB creates the lake if it is missing."""
    options = [f"METADATA_SCHEMA {quote(address.metadata_schema)}"]
    if address.data_path is not None:
        options.append(f"DATA_PATH {quote(address.data_path)}")
    if address.snapshot_id is not None:
        options.append(f"SNAPSHOT_VERSION {address.snapshot_id}")
    if address.read_only:
        options.append("READ_ONLY")
    return f"ATTACH {quote('ducklake:postgres:' + address.dsn)} AS {catalog} ({', '.join(options)})"


def attach_lake(conn: duckdb.DuckDBPyConnection, address: LakeAddress, keys: S3Keys | None) -> None:
    """Attach a lake to a DuckDB session as `lake`, with the keys of its store; with `data_path`, create it if it is missing.

    Raises: EmbeddedError: Postgres or the store refuse, or the lake differs from the address; never contains the connection string
    """
    try:
        if keys is not None:
            conn.execute(format_secret(keys))
        conn.execute(format_attach(address))
    except duckdb.Error as error:
        version = _find_version(conn, address)
        if version not in (None, ATTACHED_VERSION):
            raise EmbeddedError(
                f"DuckDB {duckdb.__version__} cannot attach the lake in schema {address.metadata_schema!r}, which has DuckLake {version}: "
                "use a DuckDB from 2.0 on. The server serves the lake to Iceberg clients."
            ) from None
        reason = str(error).replace(address.dsn, "…")
        raise EmbeddedError(f"DuckDB cannot attach the lake in schema {address.metadata_schema!r}: {reason}") from None


def _find_version(conn: duckdb.DuckDBPyConnection, address: LakeAddress) -> str | None:
    """Return the DuckLake version of a lake that could not be attached; None if it cannot be read from Postgres."""
    schema = address.metadata_schema.replace('"', '""')
    try:
        conn.execute(f"ATTACH {quote(address.dsn)} AS lake_version (TYPE postgres, READ_ONLY)")
        settings = conn.table(f'lake_version."{schema}".ducklake_metadata')
        row = settings.filter("key = 'version' AND scope IS NULL").project("value").fetchone()
        conn.execute("DETACH lake_version")
    except duckdb.Error:
        return None
    return None if row is None else row[0]


def create_lake(extension_folder: Path, address: LakeAddress, keys: S3Keys | None) -> None:
    """Create a DuckLake with DuckDB's extension; does nothing if it exists with the same DATA_PATH.

    Raises: EmbeddedError: Postgres or the store refuse, or the lake exists with another DATA_PATH
    """
    with connect_duckdb(extension_folder) as conn:
        attach_lake(conn, address, keys)
