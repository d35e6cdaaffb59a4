-- The notes of DuckIceLake, inside the lake's own metadata schema, so that dump and copy carry them.
-- Changes from v1: what Iceberg clients write needs more notes: columns of iceberg_table, and the tables iceberg_shape,
-- iceberg_location, iceberg_snapshot and iceberg_file. Every statement may run again at any time.

CREATE TABLE IF NOT EXISTS iceberg_setting (
    key text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE IF NOT EXISTS iceberg_table (
    table_id bigint PRIMARY KEY,
    location text NOT NULL,
    format_version integer NOT NULL,
    sequence_base bigint NOT NULL,
    metadata_version bigint NOT NULL,
    lake_snapshot_id bigint NOT NULL,
    change_id bigint NOT NULL,
    token text NOT NULL,
    updated_ms bigint NOT NULL
);

ALTER TABLE iceberg_table
    ADD COLUMN IF NOT EXISTS last_column_id integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS last_partition_id integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS is_native boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS numbered_until bigint;

CREATE TABLE IF NOT EXISTS iceberg_metadata_log (
    table_id bigint NOT NULL,
    metadata_version bigint NOT NULL,
    updated_ms bigint NOT NULL,
    PRIMARY KEY (table_id, metadata_version)
);

CREATE TABLE IF NOT EXISTS iceberg_schema (
    table_id bigint NOT NULL,
    schema_id integer NOT NULL,
    json text NOT NULL,
    PRIMARY KEY (table_id, schema_id)
);

CREATE TABLE IF NOT EXISTS iceberg_spec (
    table_id bigint NOT NULL,
    spec_id integer NOT NULL,
    json text NOT NULL,
    PRIMARY KEY (table_id, spec_id)
);

ALTER TABLE iceberg_schema ADD COLUMN IF NOT EXISTS is_removed boolean NOT NULL DEFAULT false;
ALTER TABLE iceberg_spec ADD COLUMN IF NOT EXISTS is_removed boolean NOT NULL DEFAULT false;

CREATE TABLE IF NOT EXISTS iceberg_sort_order (
    table_id bigint NOT NULL,
    order_id integer NOT NULL,
    json text NOT NULL,
    PRIMARY KEY (table_id, order_id)
);

-- Which schema, spec and sort order an Iceberg client made the current ones, as long as DuckDB does not change them.
CREATE TABLE IF NOT EXISTS iceberg_shape (
    table_id bigint NOT NULL,
    lake_snapshot_id bigint NOT NULL,
    schema_id integer NOT NULL,
    spec_id integer NOT NULL,
    order_id integer NOT NULL,
    PRIMARY KEY (table_id, lake_snapshot_id)
);

-- Where a table was until it was moved, and its last metadata version there.
CREATE TABLE IF NOT EXISTS iceberg_location (
    table_id bigint NOT NULL,
    metadata_version bigint NOT NULL,
    location text NOT NULL,
    PRIMARY KEY (table_id, metadata_version)
);

-- What an Iceberg client said about a snapshot of its own, the id it gave it, and the last lake snapshot of its commit.
CREATE TABLE IF NOT EXISTS iceberg_snapshot (
    table_id bigint NOT NULL,
    lake_snapshot_id bigint NOT NULL,
    commit_snapshot_id bigint NOT NULL,
    client_snapshot_id bigint NOT NULL,
    schema_id integer NOT NULL,
    summary text NOT NULL,
    PRIMARY KEY (table_id, lake_snapshot_id),
    UNIQUE (table_id, client_snapshot_id)
);

-- Statistics files of snapshots, of the whole table or of its partitions, as their authors described them.
CREATE TABLE IF NOT EXISTS iceberg_statistics (
    table_id bigint NOT NULL,
    kind text NOT NULL,
    snapshot_id bigint NOT NULL,
    json text NOT NULL,
    PRIMARY KEY (table_id, kind, snapshot_id)
);

-- What DuckLake has no column for in the data files of Iceberg clients.
CREATE TABLE IF NOT EXISTS iceberg_file (
    data_file_id bigint PRIMARY KEY,
    table_id bigint NOT NULL,
    spec_id integer NOT NULL,
    partition text NOT NULL,
    sort_order_id integer,
    split_offsets text
);

-- Requests that clients may send again, by their keys: what became of each.
CREATE TABLE IF NOT EXISTS iceberg_idempotency (
    key uuid PRIMARY KEY,
    fingerprint text NOT NULL,
    refusal text,
    message text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS iceberg_ix_idempotency ON iceberg_idempotency (created_at);

-- What changes a lake without a lake snapshot. Writers lock the table first, so ids appear in commit order.
CREATE TABLE IF NOT EXISTS iceberg_change (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    table_id bigint,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS iceberg_ix_repair ON iceberg_change (id) WHERE kind = 'repair';

CREATE OR REPLACE FUNCTION iceberg_note_expiry() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    EXECUTE format('LOCK TABLE %I.iceberg_change IN EXCLUSIVE MODE', TG_TABLE_SCHEMA);
    EXECUTE format('INSERT INTO %I.iceberg_change (kind) VALUES (''expire'')', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_note_expiry
    AFTER DELETE ON ducklake_snapshot
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_note_expiry();

-- DuckLake has primary keys only; every look-up of a table's rows would read them all.
CREATE INDEX IF NOT EXISTS iceberg_ix_table ON ducklake_table (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_table_begin ON ducklake_table (begin_snapshot);
-- a hash, because a name may be longer than a key of any other index; "C", because DuckDB folds ASCII letters only
DROP INDEX IF EXISTS iceberg_ix_table_live;
CREATE INDEX IF NOT EXISTS iceberg_ix_table_folded ON ducklake_table USING hash (lower(table_name COLLATE "C")) WHERE end_snapshot IS NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_column ON ducklake_column (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_column_tag ON ducklake_column_tag (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_tag ON ducklake_tag (object_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_data_file ON ducklake_data_file (table_id, begin_snapshot);
CREATE INDEX IF NOT EXISTS iceberg_ix_data_file_path ON ducklake_data_file USING hash (path) WHERE end_snapshot IS NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_data_file_end ON ducklake_data_file (table_id, end_snapshot) WHERE end_snapshot IS NOT NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_data_file_partial ON ducklake_data_file (table_id) WHERE partial_max IS NOT NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_snapshot_file ON ducklake_snapshot (next_file_id, snapshot_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_delete_file ON ducklake_delete_file (table_id, delete_file_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_file_stats ON ducklake_file_column_stats (data_file_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_file_partition ON ducklake_file_partition_value (data_file_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_table_stats ON ducklake_table_stats (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_inlined ON ducklake_inlined_data_tables (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_partition ON ducklake_partition_info (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_partition_column ON ducklake_partition_column (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_schema_versions ON ducklake_schema_versions (table_id);
-- without quoted names: they are no tokens, and may be longer than a key of an index
CREATE INDEX IF NOT EXISTS iceberg_ix_changes ON ducklake_snapshot_changes
    USING gin (string_to_array(regexp_replace(changes_made, '"[^"]*"', '', 'g'), ','));
