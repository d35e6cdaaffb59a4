"""Our tables and triggers beside DuckLake's: put there once by `init`, removable, repeatable."""

from importlib.resources import files

import psycopg
from psycopg import sql

from duckicelake.errors import BadRequest, Unsupported

SUPPORTED_VERSION = "1.0"

SELECT_METADATA = """
SELECT key, value FROM ducklake_metadata
 -- table and schema options carry a scope; the lake's own settings have none
 WHERE scope IS NULL AND key IN ('version', 'data_path', 'encrypted')
"""

UPSERT_ICEBERG_PATH = """
INSERT INTO iceberg_setting (key, value) VALUES ('iceberg_path', %(iceberg_path)s)
ON CONFLICT (key) DO NOTHING
"""


def format_search_path(metadata_schema: str) -> sql.Composed:
    """Return the statement that lets unqualified names mean the lake's metadata schema and nothing else."""
    return sql.SQL("SET search_path TO {}").format(sql.Identifier(metadata_schema))


def install(conn: psycopg.Connection, metadata_schema: str, iceberg_path: str) -> None:
    """Prepare an existing DuckLake: check it, add our notes, triggers and indexes. DuckDB sees no difference.

    Units:  `iceberg_path` is a URI or an absolute folder; the first one given to a lake stays
    Raises: Unsupported: a DuckLake of another version, or encrypted. BadRequest: `iceberg_path` lies under DATA_PATH
    """
    with conn.transaction():
        conn.execute(format_search_path(metadata_schema))
        settings = dict(conn.execute(SELECT_METADATA).fetchall())
        check_supported(settings)
        check_beside(settings["data_path"], iceberg_path)
        conn.execute(files("duckicelake.lake").joinpath("install.sql").read_bytes())
        conn.execute(UPSERT_ICEBERG_PATH, {"iceberg_path": with_slash(iceberg_path)})


def check_supported(settings: dict[str, str]) -> None:
    """Refuse a lake this catalog cannot serve, saying why."""
    version = settings.get("version")
    if version != SUPPORTED_VERSION:
        raise Unsupported(
            f"The lake's DuckLake version is {version!r}; this catalog serves {SUPPORTED_VERSION!r}. "
            "Attach it with the matching DuckDB release, or copy it into a new lake."
        )
    if settings.get("encrypted") == "true":
        raise Unsupported("The lake is encrypted; no Iceberg reader can open its files. Copy it into a lake without ENCRYPTED.")


def check_beside(data_path: str, iceberg_path: str) -> None:
    """Refuse paths of which one holds the other: DuckLake's orphan clean-up deletes files it does not know under DATA_PATH."""
    ours, ducklakes = _plain(iceberg_path), _plain(data_path)
    if ours.startswith(ducklakes) or ducklakes.startswith(ours):
        raise BadRequest(
            f"ICEBERG_PATH {iceberg_path!r} and the lake's DATA_PATH {data_path!r} lie one under the other, and DuckLake removes "
            "files it does not know under its own. Choose a folder beside it, or another bucket."
        )


def _plain(path: str) -> str:
    return with_slash(path).removeprefix("file://")


def with_slash(path: str) -> str:
    """Return the path with exactly the trailing slash DuckLake's own paths have."""
    return path if path.endswith("/") else path + "/"
