"""DuckDB with the pinned extensions, and the DuckLake it makes: only the `ducklake` extension creates DuckLake's tables."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import duckdb

from duckicelake.backends.home import BackendError

EXTENSIONS = ("httpfs", "postgres_scanner", "ducklake")
CATALOG_NAME = "lake"


@dataclass(frozen=True, slots=True)
class S3Keys:
    """What DuckDB needs to reach an S3: `endpoint` is a URL, None for AWS itself."""

    endpoint: str | None
    region: str
    access_key_id: str
    secret_access_key: str


@dataclass(frozen=True, slots=True)
class LakeAddress:
    """Where a DuckLake is: `data_path` None means the one the lake already has."""

    dsn: str
    metadata_schema: str
    data_path: str | None = None
    read_only: bool = False


def connect_duckdb(
    extension_folder: Path, extensions: tuple[str, ...] = EXTENSIONS, *, checks_signatures: bool = True
) -> duckdb.DuckDBPyConnection:
    """Return an in-memory DuckDB with the extensions of their wheels loaded; it downloads nothing.

    extension_folder: where the session's user may install others
    checks_signatures: DuckDB hashes what it loads (over half a CPU second for the usual three); who trusts the wheels may go without

    Raises: BackendError: an extension is missing or of another release
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
            conn.load_extension(str(_find_extension(name)))
    except (duckdb.Error, ImportError) as error:
        conn.close()
        raise BackendError(f"DuckDB {duckdb.__version__} cannot load its extensions: {error}. Reinstall duckicelake.") from error
    return conn


def _find_extension(name: str) -> Path:
    """Return where a wheel has its extension. DuckDB loads it from there: a copy would be hashed and written first."""
    return Path(str(files(f"duckdb_extension_{name}")), "extensions", f"v{duckdb.__version__}", f"{name}.duckdb_extension")


def quote(text: str) -> str:
    """Return the text as a SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def format_secret(keys: S3Keys, name: str = "lake_s3") -> str:
    """Return the statement that gives a DuckDB session the keys of an S3."""
    parts = ["TYPE s3", f"KEY_ID {quote(keys.access_key_id)}", f"SECRET {quote(keys.secret_access_key)}", f"REGION {quote(keys.region)}"]
    if keys.endpoint is not None:
        url = urlsplit(keys.endpoint)
        parts += [f"ENDPOINT {quote(url.netloc)}", f"USE_SSL {str(url.scheme == 'https').lower()}", "URL_STYLE 'path'"]
    return f"CREATE OR REPLACE SECRET {name} ({', '.join(parts)})"


def format_attach(address: LakeAddress, catalog: str = CATALOG_NAME) -> str:
    """Return the statement that attaches the lake to a DuckDB session; made when missing, if `data_path` is given."""
    options = [f"METADATA_SCHEMA {quote(address.metadata_schema)}"]
    if address.data_path is not None:
        options.append(f"DATA_PATH {quote(address.data_path)}")
    if address.read_only:
        options.append("READ_ONLY")
    return f"ATTACH {quote('ducklake:postgres:' + address.dsn)} AS {catalog} ({', '.join(options)})"


def attach_lake(conn: duckdb.DuckDBPyConnection, address: LakeAddress, keys: S3Keys | None) -> None:
    """Attach a lake to a DuckDB session as `lake`, with the keys to its files; made when missing, if `data_path` is given.

    Raises: BackendError: Postgres or the data path refuse, or the lake is another than asked for; never shows the connection string
    """
    try:
        if keys is not None:
            conn.execute(format_secret(keys))
        conn.execute(format_attach(address))
    except duckdb.Error as error:
        reason = str(error).replace(address.dsn, "…")
        raise BackendError(f"DuckDB cannot attach the lake in schema {address.metadata_schema!r}: {reason}") from None


def create_lake(extension_folder: Path, address: LakeAddress, keys: S3Keys | None) -> None:
    """Make a DuckLake at the address with DuckDB's own extension; harmless when it exists with that DATA_PATH.

    Raises: BackendError: Postgres or the data path refuse, or the lake exists with another DATA_PATH
    """
    with connect_duckdb(extension_folder) as conn:
        attach_lake(conn, address, keys)
