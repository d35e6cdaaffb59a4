"""A DuckLake as DuckDB alone makes it, nothing of ours in it."""

from dataclasses import replace
from pathlib import Path

from duckicelake.embedded.ducklake import LakeAddress, create_lake
from tests.support.lakes import FreshLake

BARE_SCHEMA = "bare"

SELECT_RELATIONS = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s
 UNION ALL
SELECT 'trigger ' || t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s
 ORDER BY 1
"""


def make_bare_lake(lake: FreshLake, folder: Path) -> FreshLake:
    """A second DuckLake in the fresh lake's database, its files below `folder`."""
    bare = replace(lake, metadata_schema=BARE_SCHEMA, data_path=f"{folder}/data/", iceberg_path=f"{folder}/iceberg/")
    create_lake(bare.extension_folder, LakeAddress(bare.dsn, bare.metadata_schema, bare.data_path), None)
    return bare


def list_relations(lake: FreshLake) -> list[str]:
    """The tables, indexes and triggers of the lake's metadata schema."""
    return [name for (name,) in lake.psycopg().execute(SELECT_RELATIONS, {"schema": lake.metadata_schema})]
