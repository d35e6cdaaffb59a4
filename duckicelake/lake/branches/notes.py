"""The notes of a branch: `install.sql` fitted to its views, and what is copied of the parent's notes.

Tables keep uuid, ids of schemas, specs and snapshots, and go on with their metadata versions, at locations of the branch's own. What names
objects that the parent may delete is not copied: refs other than main with the snapshots that they keep, statistics files, metadata logs,
files from before merges, and the versions of views. `create` calls this in the transaction that makes a branch, and `refork` copies again
in that of a merge or reset.
"""

import re
from collections.abc import Mapping

import psycopg
from psycopg import sql

from duckicelake.lake.branches.layout import VIEWED, Schemas
from duckicelake.lake.branches.registry import compute_maker
from duckicelake.lake.install import UPSERT_INSTALLED, compute_digest, format_search_path, read_script

_VIEWED_NAMES = "|".join(table.name for table in VIEWED)
ON_VIEWED = re.compile(rf" ON ducklake_({_VIEWED_NAMES})(?=[ (])")
NAMES_VIEWED = re.compile(rf"c\.relname = 'ducklake_({_VIEWED_NAMES})'")

FINDS_BY_PATH = re.compile(r"JOIN %1\$I\.ducklake_(data_file|delete_file) d ON d\.path = x\.tail")
"""The look-up of files by path before a clean-up. What the lake names is found by the repository's own trigger."""

UPSERT_SETTINGS = """
INSERT INTO iceberg_setting (key, value) VALUES ('open_branches', '1'), ('made_by', %(maker)s)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""

COPY_NOTES = sql.SQL("""
INSERT INTO {branch}.iceberg_setting (key, value)
SELECT key, value FROM {source}.iceberg_setting WHERE key = 'restored_max_bytes';

INSERT INTO {branch}.iceberg_table (table_id, location, format_version, sequence_base, metadata_version, lake_snapshot_id, change_id,
                                    token, updated_ms, last_column_id, last_partition_id, is_native, current_snapshot_id, numbered_until)
SELECT n.table_id,
       CASE WHEN starts_with(n.location, {source_uri}) THEN {branch_uri} || substr(n.location, length({source_uri}) + 1)
            ELSE {branch_uri} || t.table_uuid END,
       n.format_version, n.sequence_base, n.metadata_version, -1, -1, '', n.updated_ms, n.last_column_id, n.last_partition_id,
       n.is_native, -1, n.numbered_until
  FROM {source}.iceberg_table n
  JOIN (SELECT DISTINCT table_id, table_uuid FROM {branch}.ducklake_table) t ON t.table_id = n.table_id
""")


# Clients' notes about data files are as many as the files. They are never changed or deleted after the commit that wrote them.
SHOW_FILE_NOTES = sql.SQL("""
ALTER TABLE {branch}.iceberg_file RENAME TO own_iceberg_file;
CREATE VIEW {branch}.iceberg_file AS
SELECT {columns} FROM {repository}.iceberg_file f WHERE f.data_file_id < (SELECT k.next_file_id FROM {branch}.branch_fork k)
UNION ALL
SELECT {columns} FROM {branch}.own_iceberg_file;
CREATE FUNCTION {branch}.branch_write_iceberg_file() RETURNS trigger LANGUAGE plpgsql AS $write$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO {branch}.own_iceberg_file ({columns}) VALUES ({new});
    ELSE
        UPDATE {branch}.own_iceberg_file SET ({columns}) = ROW ({new}) WHERE data_file_id = OLD.data_file_id;
    END IF;
    RETURN NEW;
END
$write$;
CREATE TRIGGER branch_write INSTEAD OF INSERT OR UPDATE ON {branch}.iceberg_file
    FOR EACH ROW EXECUTE FUNCTION {branch}.branch_write_iceberg_file()
""")
FILE_NOTES = ("data_file_id", "table_id", "spec_id", "partition", "sort_order_id", "split_offsets", "sequence_number")
COPY_OWN_FILE_NOTES = sql.SQL("""
INSERT INTO {branch}.own_iceberg_file (data_file_id, table_id, spec_id, partition, sort_order_id, split_offsets, sequence_number)
SELECT data_file_id, table_id, spec_id, partition, sort_order_id, split_offsets, sequence_number FROM {source}.own_iceberg_file
""")

RIGHTS = ("principal", "member", "grant")

SHOW_RIGHTS = sql.SQL("DROP TABLE {branch}.{name}; CREATE VIEW {branch}.{name} AS SELECT * FROM {repository}.{name}")
"""Accounts, roles and grants are the repository's. Grants go by uuid, so they hold for the same objects on each branch."""


def install_notes(conn: psycopg.Connection, schemas: Schemas) -> None:
    """Create the tables, functions, triggers and indexes of the notes in a branch. What is for rows stands on the branch's own rows."""
    script = read_script().decode()
    script = ON_VIEWED.sub(r" ON own_\1", script)
    script = NAMES_VIEWED.sub(r"c.relname = 'own_\1'", script)
    script = FINDS_BY_PATH.sub(r"JOIN %1$I.own_\1 d ON d.path = x.tail", script)
    conn.execute(format_search_path(schemas.branch))
    conn.execute(script.encode())
    conn.execute(UPSERT_SETTINGS, {"maker": compute_maker()})
    conn.execute(UPSERT_INSTALLED, {"digest": compute_digest()})
    repository, branch = sql.Identifier(schemas.repository), sql.Identifier(schemas.branch)
    columns = sql.SQL(", ").join(map(sql.Identifier, FILE_NOTES))
    new = sql.SQL(", ").join(sql.SQL("NEW.{}").format(sql.Identifier(name)) for name in FILE_NOTES)
    conn.execute(SHOW_FILE_NOTES.format(repository=repository, branch=branch, columns=columns, new=new))
    for name in RIGHTS:
        conn.execute(SHOW_RIGHTS.format(repository=repository, branch=branch, name=sql.Identifier(f"iceberg_{name}")))


def copy_notes(conn: psycopg.Connection, names: Mapping[str, sql.Composable]) -> None:
    """Copy the parent's notes as of the fork point, whose rows the branch shows already."""
    conn.execute(COPY_NOTES.format(**names))
