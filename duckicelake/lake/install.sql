-- The notes of DuckIceLake, inside the lake's own metadata schema, so that dump and copy carry them.
-- Changes from v1: what Iceberg clients write needs more notes: columns of iceberg_table, and the tables iceberg_shape,
-- iceberg_location, iceberg_snapshot, iceberg_file and iceberg_view.
-- Changes from v2: branches and tags: iceberg_ref, iceberg_kept, iceberg_kept_file, iceberg_move, iceberg_hidden, and the
-- triggers that keep their files. Changes from v3: tables of other catalogs: iceberg_registered, and the sequence numbers of
-- their files. Changes from v4: iceberg_audit, iceberg_principal, iceberg_member, iceberg_grant. Changes from v5: what a request
-- with a key was about (object_uuid of iceberg_idempotency), iceberg_transaction, iceberg_purge, iceberg_reader and
-- iceberg_revocation. Changes from v6: iceberg_manifest. Changes from v7: iceberg_gone_file. Changes from v8: iceberg_staged, iceberg_root.
-- Every statement may run again at any time.

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
    ADD COLUMN IF NOT EXISTS current_snapshot_id bigint NOT NULL DEFAULT -1,
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

-- Locations are compared in one spelling.
CREATE INDEX IF NOT EXISTS iceberg_ix_place ON iceberg_table
    USING hash (regexp_replace(regexp_replace(location, '^s3[an]://', 's3://'), '^file:/+', 'file:///'));
CREATE INDEX IF NOT EXISTS iceberg_ix_former_place ON iceberg_location
    USING hash (regexp_replace(regexp_replace(location, '^s3[an]://', 's3://'), '^file:/+', 'file:///'));
-- Locations inside of one are a range of these. A key of an index has up to 2,704 bytes, and a character up to four.
CREATE INDEX IF NOT EXISTS iceberg_ix_place_prefix ON iceberg_table
    (left(regexp_replace(regexp_replace(location, '^s3[an]://', 's3://'), '^file:/+', 'file:///'), 500) COLLATE "C");
CREATE INDEX IF NOT EXISTS iceberg_ix_former_place_prefix ON iceberg_location
    (left(regexp_replace(regexp_replace(location, '^s3[an]://', 's3://'), '^file:/+', 'file:///'), 500) COLLATE "C");

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

ALTER TABLE iceberg_file ADD COLUMN IF NOT EXISTS sequence_number bigint;

-- Data files that a merge of DuckLake replaced, as their rows were, for as long as DuckLake has not deleted the files: snapshots
-- from before the merge name them. `end_snapshot` is the lake snapshot of the merge, which wrote the data files from
-- `first_file_id` up to, and without, `next_file_id`.
CREATE TABLE IF NOT EXISTS iceberg_merged_file (
    data_file_id bigint PRIMARY KEY,
    table_id bigint,
    begin_snapshot bigint,
    end_snapshot bigint NOT NULL,
    first_file_id bigint NOT NULL,
    next_file_id bigint NOT NULL,
    path text,
    path_is_relative boolean,
    file_format text,
    record_count bigint,
    file_size_bytes bigint,
    footer_size bigint,
    row_id_start bigint,
    partition_id bigint,
    mapping_id bigint,
    partial_max bigint,
    encryption_key text,
    partition_values text[]
);

CREATE INDEX IF NOT EXISTS iceberg_ix_merged_file ON iceberg_merged_file (table_id);

CREATE TABLE IF NOT EXISTS iceberg_merged_column_stats (
    data_file_id bigint NOT NULL,
    table_id bigint,
    column_id bigint,
    column_size_bytes bigint,
    value_count bigint,
    null_count bigint,
    min_value text,
    max_value text,
    contains_nan boolean,
    extra_stats text
);

CREATE INDEX IF NOT EXISTS iceberg_ix_merged_column_stats ON iceberg_merged_column_stats (data_file_id);

-- Manifests that executors of Spark wrote and the catalog took over: by what they were made of, the name of their bytes, and what
-- manifest lists say of them. Each can be made again, so a row may go at any time.
CREATE TABLE IF NOT EXISTS iceberg_manifest (
    table_id bigint NOT NULL,
    digest text NOT NULL,
    name text NOT NULL,
    json text NOT NULL,
    PRIMARY KEY (table_id, digest)
);

-- Tables that came with a history of their own: at which lake snapshot, what was current then, and the logs they had.
CREATE TABLE IF NOT EXISTS iceberg_registered (
    table_id bigint PRIMARY KEY,
    lake_snapshot_id bigint NOT NULL,
    snapshot_id bigint,
    is_shown boolean NOT NULL,
    snapshot_log text NOT NULL,
    metadata_log text NOT NULL
);

-- Branches and tags. Without a snapshot id: main where DuckLake's head is, noted for what it retains.
CREATE TABLE IF NOT EXISTS iceberg_ref (
    table_id bigint NOT NULL,
    name text NOT NULL,
    snapshot_id bigint,
    type text NOT NULL,
    max_ref_age_ms bigint,
    max_snapshot_age_ms bigint,
    min_snapshots_to_keep integer,
    PRIMARY KEY (table_id, name)
);

-- Snapshots that stay whatever DuckLake expires: those that refs named, as published then, and those beside main, which
-- have a manifest list here. Files that were live at base_snapshot_id are kept for them.
CREATE TABLE IF NOT EXISTS iceberg_kept (
    table_id bigint NOT NULL,
    snapshot_id bigint NOT NULL,
    base_snapshot_id bigint NOT NULL,
    json text NOT NULL,
    manifest_list bytea,
    PRIMARY KEY (table_id, snapshot_id)
);

-- Data files that clients added beside main.
CREATE TABLE IF NOT EXISTS iceberg_kept_file (
    table_id bigint NOT NULL,
    path text NOT NULL
);

CREATE INDEX IF NOT EXISTS iceberg_ix_kept_file ON iceberg_kept_file USING hash (path);
CREATE INDEX IF NOT EXISTS iceberg_ix_kept_file_table ON iceberg_kept_file (table_id);

-- Lake snapshots that put main back, or forward, to rows that another snapshot has.
CREATE TABLE IF NOT EXISTS iceberg_move (
    table_id bigint NOT NULL,
    lake_snapshot_id bigint NOT NULL,
    snapshot_id bigint NOT NULL,
    PRIMARY KEY (table_id, lake_snapshot_id)
);

-- Lake snapshots at which an Iceberg client replaced a table. Each starts the table's history: its Iceberg snapshot has no parent.
CREATE TABLE IF NOT EXISTS iceberg_root (
    table_id bigint NOT NULL,
    lake_snapshot_id bigint NOT NULL,
    PRIMARY KEY (table_id, lake_snapshot_id)
);

-- Snapshots that clients removed, while DuckLake still has them.
CREATE TABLE IF NOT EXISTS iceberg_hidden (
    table_id bigint NOT NULL,
    snapshot_id bigint NOT NULL,
    PRIMARY KEY (table_id, snapshot_id)
);

-- What Iceberg says of a live DuckLake view, and the text that DuckLake had for it then. `is_told`: the current version is
-- an Iceberg client's; else it was found in DuckLake.
CREATE TABLE IF NOT EXISTS iceberg_view (
    view_id bigint PRIMARY KEY,
    metadata_version integer NOT NULL,
    metadata_location text NOT NULL,
    metadata text NOT NULL,
    sql text NOT NULL,
    column_aliases text NOT NULL,
    is_told boolean NOT NULL
);

-- Where a view's metadata says that it is. An index cannot hold a cast to json, which Postgres does not call immutable.
CREATE OR REPLACE FUNCTION iceberg_view_location(metadata text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 10000 AS $$
BEGIN
    RETURN pg_catalog.rtrim(metadata::json ->> 'location', '/');
END
$$;

CREATE INDEX IF NOT EXISTS iceberg_ix_view_place ON iceberg_view
    (left(regexp_replace(regexp_replace(iceberg_view_location(metadata), '^s3[an]://', 's3://'), '^file:/+', 'file:///'), 500) COLLATE "C");
CREATE INDEX IF NOT EXISTS iceberg_ix_view_metadata_place ON iceberg_view
    (left(regexp_replace(regexp_replace(regexp_replace(metadata_location, '/+[^/]*$', ''), '^s3[an]://', 's3://'), '^file:/+', 'file:///'), 500)
     COLLATE "C");

-- Requests that clients may send again, by their keys: what became of each.
CREATE TABLE IF NOT EXISTS iceberg_idempotency (
    key uuid PRIMARY KEY,
    fingerprint text NOT NULL,
    refusal text,
    message text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The table or view that it made or changed: copies are answered with that one, whatever is called so by then.
ALTER TABLE iceberg_idempotency ADD COLUMN IF NOT EXISTS object_uuid uuid;

CREATE INDEX IF NOT EXISTS iceberg_ix_idempotency ON iceberg_idempotency (created_at);

-- Tables that were dropped with their files, in the drop's own transaction: a line goes when the objects have gone.
CREATE TABLE IF NOT EXISTS iceberg_purge (
    table_id bigint PRIMARY KEY,
    table_uuid uuid NOT NULL,
    locations text[] NOT NULL,
    begun_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Until then the files of such a table stay, and it may come back. That of an unregistered table is infinity: its files stay for the
-- catalog that registers it next, also when DuckLake has forgotten it.
ALTER TABLE iceberg_purge ADD COLUMN IF NOT EXISTS due_at timestamptz NOT NULL DEFAULT clock_timestamp();

-- The locations of a purge in the spelling in which they are compared.
CREATE OR REPLACE FUNCTION iceberg_plain_locations(locations text[]) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 10000 AS $$
BEGIN
    RETURN ARRAY(SELECT pg_catalog.regexp_replace(pg_catalog.regexp_replace(l.place, '^s3[an]://', 's3://'), '^file:/+', 'file:///')
                   FROM pg_catalog.unnest(locations) WITH ORDINALITY AS l(place, position) ORDER BY l.position);
END
$$;

CREATE INDEX IF NOT EXISTS iceberg_ix_purge_place ON iceberg_purge
    USING gin (iceberg_plain_locations(locations)) WITH (fastupdate = off);
CREATE INDEX IF NOT EXISTS iceberg_ix_purge_due ON iceberg_purge (due_at);

-- Where tables that were staged were to lie: their clients may have died before the commit. A line goes when the table is there, or
-- nothing is left.
CREATE TABLE IF NOT EXISTS iceberg_staged (
    location text PRIMARY KEY,
    staged_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Requests over several tables, known again when a copy comes: not each table shows by itself that it was changed.
CREATE TABLE IF NOT EXISTS iceberg_transaction (
    digest text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS iceberg_ix_transaction ON iceberg_transaction (created_at);

-- Who may ask for tokens (those without a secret here say elsewhere who they are), and roles, which have members.
CREATE TABLE IF NOT EXISTS iceberg_principal (
    principal_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    is_role boolean NOT NULL,
    secret text,
    secret_number integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (is_role, name)
);

CREATE TABLE IF NOT EXISTS iceberg_member (
    role_id bigint NOT NULL,
    principal_id bigint NOT NULL,
    PRIMARY KEY (role_id, principal_id)
);

-- What they may do: on what has that uuid in DuckLake, whatever it is called; the warehouse has a uuid of zeros.
CREATE TABLE IF NOT EXISTS iceberg_grant (
    principal_id bigint NOT NULL,
    kind text NOT NULL,
    object_uuid uuid NOT NULL,
    privilege text NOT NULL,
    PRIMARY KEY (principal_id, kind, object_uuid, privilege)
);

-- Roles of Postgres that read the lake with DuckDB, by views of their own: whose each is, what settings let them read (schemas'
-- names, with what is nested in them; an empty one is all), within which scope, and which roles another issuer's token gave it.
CREATE TABLE IF NOT EXISTS iceberg_reader (
    role_name text PRIMARY KEY,
    database_id oid NOT NULL,
    principal text NOT NULL,
    principal_id bigint,
    secret_number integer,
    spaces text[] NOT NULL,
    scope text[],
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);

ALTER TABLE iceberg_reader ADD COLUMN IF NOT EXISTS roles text[] NOT NULL DEFAULT '{}';

-- The last revoke that was acknowledged: a sequence, which readers' old transactions see as it is now. The setting is what they saw.
CREATE SEQUENCE IF NOT EXISTS iceberg_revocation;
INSERT INTO iceberg_setting (key, value) VALUES ('revocation', '1') ON CONFLICT (key) DO NOTHING;

-- Who changed what over REST, each line written by its change's own transaction; and what was denied to whom.
CREATE TABLE IF NOT EXISTS iceberg_audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    logged_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    request_id text NOT NULL,
    principal text,
    operation text NOT NULL,
    objects text[] NOT NULL,
    lake_snapshot_id bigint,
    outcome text NOT NULL DEFAULT 'done',
    reason text
);

CREATE INDEX IF NOT EXISTS iceberg_ix_audit ON iceberg_audit USING brin (logged_at);
CREATE INDEX IF NOT EXISTS iceberg_ix_audit_snapshot ON iceberg_audit (lake_snapshot_id) WHERE lake_snapshot_id IS NOT NULL;

-- Reads over REST: one row for the equal reads of some seconds. The reader roles of DuckDB users and DuckDB itself leave no rows here.
CREATE TABLE IF NOT EXISTS iceberg_read (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    read_count bigint NOT NULL,
    request_id text NOT NULL,
    principal text,
    address text,
    operation text NOT NULL,
    object text,
    snapshot_id bigint,
    keys text
);

-- The branch of the lake that the request was for; NULL: the lake itself.
ALTER TABLE iceberg_audit ADD COLUMN IF NOT EXISTS branch text;
ALTER TABLE iceberg_read ADD COLUMN IF NOT EXISTS branch text;

CREATE INDEX IF NOT EXISTS iceberg_ix_read ON iceberg_read USING brin (last_at);
-- Names may be longer than a key of an index.
CREATE INDEX IF NOT EXISTS iceberg_ix_read_object ON iceberg_read (left(object, 500), id);
CREATE INDEX IF NOT EXISTS iceberg_ix_read_principal ON iceberg_read (left(principal, 500), id);

-- Metrics reports of clients, the newest of each table. `report` is what was kept of the body.
CREATE TABLE IF NOT EXISTS iceberg_report (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_id bigint NOT NULL,
    received_at timestamptz NOT NULL,
    principal text,
    report jsonb NOT NULL
);

CREATE INDEX IF NOT EXISTS iceberg_ix_report ON iceberg_report (table_id, id);
CREATE INDEX IF NOT EXISTS iceberg_ix_report_age ON iceberg_report USING brin (received_at);

-- What changes a lake without a lake snapshot. Writers lock the table first, so ids appear in commit order.
CREATE TABLE IF NOT EXISTS iceberg_change (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    table_id bigint,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX IF NOT EXISTS iceberg_ix_repair ON iceberg_change (id) WHERE kind = 'repair';
CREATE INDEX IF NOT EXISTS iceberg_ix_change_all ON iceberg_change (id) WHERE table_id IS NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_change_table ON iceberg_change (table_id, id) WHERE table_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_change_hide ON iceberg_change (table_id, id) WHERE kind = 'hide';

-- The next functions run as the lake's owner, whoever writes: only for the table beside them that each is for.
CREATE OR REPLACE FUNCTION iceberg_note_expiry() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
                    WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME AND f.pronamespace = c.relnamespace
                      AND c.relname = 'ducklake_snapshot') THEN
        RETURN NULL;
    END IF;
    EXECUTE format('LOCK TABLE %I.iceberg_change IN EXCLUSIVE MODE', TG_TABLE_SCHEMA);
    EXECUTE format('INSERT INTO %I.iceberg_change (kind) VALUES (''expire'')', TG_TABLE_SCHEMA);
    -- No snapshot from before these merges is left.
    EXECUTE format('
        WITH past AS (
            SELECT m.table_id, m.end_snapshot FROM %1$I.iceberg_merged_file m GROUP BY m.table_id, m.end_snapshot
            HAVING NOT EXISTS (SELECT FROM %1$I.ducklake_snapshot s
                                WHERE s.snapshot_id >= min(m.begin_snapshot) AND s.snapshot_id < m.end_snapshot)
        ), removed AS (
            DELETE FROM %1$I.iceberg_merged_file m USING past p
             WHERE m.table_id = p.table_id AND m.end_snapshot = p.end_snapshot RETURNING m.data_file_id
        )
        DELETE FROM %1$I.iceberg_merged_column_stats c USING removed r WHERE c.data_file_id = r.data_file_id', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_note_expiry
    AFTER DELETE ON ducklake_snapshot
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_note_expiry();

-- A migration to another version of DuckLake makes no lake snapshot. It is noted here, so that servers look again and refuse the lake.
CREATE OR REPLACE FUNCTION iceberg_note_version() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
                    WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME AND f.pronamespace = c.relnamespace
                      AND c.relname = 'ducklake_metadata') THEN
        RETURN NULL;
    END IF;
    EXECUTE format('LOCK TABLE %I.iceberg_change IN EXCLUSIVE MODE', TG_TABLE_SCHEMA);
    EXECUTE format('INSERT INTO %I.iceberg_change (kind) VALUES (''version'')', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_note_version
    AFTER INSERT OR UPDATE ON ducklake_metadata
    FOR EACH ROW WHEN (NEW.key = 'version' AND NEW.scope IS NULL) EXECUTE FUNCTION iceberg_note_version();

-- A file that a kept snapshot needs loses its row: it gets one that belongs to no data file, so that DuckLake goes on
-- knowing it. Commits of refs change the setting, which fails a transaction that began before and cannot see them.
INSERT INTO iceberg_setting (key, value) VALUES ('refs', '0') ON CONFLICT (key) DO NOTHING;

CREATE OR REPLACE FUNCTION iceberg_pin_files() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
                    WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME AND f.pronamespace = c.relnamespace
                      AND c.relname = 'ducklake_data_file') THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT FROM %I.iceberg_setting WHERE key = ''refs'' FOR SHARE', TG_TABLE_SCHEMA);
    EXECUTE format('
        INSERT INTO %1$I.ducklake_delete_file (delete_file_id, table_id, begin_snapshot, end_snapshot, data_file_id, path,
                                               path_is_relative, format, delete_count, file_size_bytes)
        -- A dropped table may come back while DuckLake has it; then its rows that ended at the drop live again.
        SELECT g.data_file_id, g.table_id, 0, t.end_snapshot, 9223372036854775807, g.path, g.path_is_relative, ''parquet'', 0, 0
          FROM gone g
          JOIN LATERAL (SELECT d.end_snapshot FROM %1$I.ducklake_table d
                         WHERE d.table_id = g.table_id
                           AND (d.end_snapshot IS NULL
                                OR EXISTS (SELECT FROM %1$I.ducklake_snapshot p
                                            WHERE p.snapshot_id >= d.begin_snapshot AND p.snapshot_id < d.end_snapshot))
                         ORDER BY d.begin_snapshot DESC LIMIT 1) t ON true
         WHERE EXISTS (SELECT FROM %1$I.iceberg_kept k
                        WHERE k.table_id = g.table_id AND k.base_snapshot_id >= g.begin_snapshot
                          AND (g.end_snapshot IS NULL OR k.base_snapshot_id < g.end_snapshot))', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_pin_files
    AFTER DELETE ON ducklake_data_file REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_pin_files();

-- A merge deletes live rows of data files, in a transaction whose lake snapshot is there already; their statistics and partition
-- values go afterwards. An expiry deletes rows that ended.
CREATE OR REPLACE FUNCTION iceberg_note_merge() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
                    WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME AND f.pronamespace = c.relnamespace
                      AND c.relname = 'ducklake_data_file') THEN
        RETURN NULL;
    END IF;
    IF NOT EXISTS (SELECT FROM gone WHERE end_snapshot IS NULL) THEN
        RETURN NULL;
    END IF;
    EXECUTE format('
        WITH merge AS (
            SELECT s.snapshot_id, s.next_file_id,
                   (SELECT max(b.next_file_id) FROM %1$I.ducklake_snapshot b WHERE b.snapshot_id < s.snapshot_id) AS first_file_id
              FROM %1$I.ducklake_snapshot s
             WHERE s.snapshot_id = (SELECT max(snapshot_id) FROM %1$I.ducklake_snapshot) AND s.xmin = pg_current_xact_id()::xid
        ), noted AS (
            INSERT INTO %1$I.iceberg_merged_file (data_file_id, table_id, begin_snapshot, end_snapshot, first_file_id, next_file_id, path,
                                                  path_is_relative, file_format, record_count, file_size_bytes, footer_size,
                                                  row_id_start, partition_id, mapping_id, partial_max, encryption_key, partition_values)
            SELECT g.data_file_id, g.table_id, g.begin_snapshot, m.snapshot_id, m.first_file_id, m.next_file_id, g.path,
                   g.path_is_relative, g.file_format, g.record_count, g.file_size_bytes, g.footer_size,
                   g.row_id_start, g.partition_id, g.mapping_id, g.partial_max, g.encryption_key,
                   CASE WHEN g.partition_id IS NOT NULL THEN
                       ARRAY(SELECT p.partition_value FROM %1$I.ducklake_file_partition_value p
                              WHERE p.data_file_id = g.data_file_id ORDER BY p.partition_key_index)
                   END
              FROM gone g CROSS JOIN merge m
             WHERE g.end_snapshot IS NULL AND m.first_file_id IS NOT NULL
            ON CONFLICT (data_file_id) DO NOTHING
            RETURNING data_file_id
        )
        INSERT INTO %1$I.iceberg_merged_column_stats (data_file_id, table_id, column_id, column_size_bytes, value_count, null_count,
                                                      min_value, max_value, contains_nan, extra_stats)
        SELECT c.data_file_id, c.table_id, c.column_id, c.column_size_bytes, c.value_count, c.null_count,
               c.min_value, c.max_value, c.contains_nan, c.extra_stats
          FROM noted n JOIN %1$I.ducklake_file_column_stats c ON c.data_file_id = n.data_file_id', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_note_merge
    AFTER DELETE ON ducklake_data_file REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_note_merge();

-- DuckLake has deleted these files, if nothing else names them: snapshots from before the merge are published from what it wrote.
CREATE OR REPLACE FUNCTION iceberg_note_cleanup() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    table_ids bigint[];
BEGIN
    -- our own triggers take files that are named from those that DuckLake is going to delete
    IF pg_trigger_depth() > 1 THEN
        RETURN NULL;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
                    WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME AND f.pronamespace = c.relnamespace
                      AND c.relname = 'ducklake_files_scheduled_for_deletion') THEN
        RETURN NULL;
    END IF;
    EXECUTE format('
        WITH removed AS (
            DELETE FROM %1$I.iceberg_merged_file m
             -- a file may have been in its table twice: names are unique but for that
             WHERE substring(m.path from ''[^/]*$'') IN (SELECT substring(g.path from ''[^/]*$'') FROM gone g)
               AND NOT EXISTS (SELECT FROM %1$I.ducklake_data_file d WHERE d.path = m.path AND d.table_id = m.table_id)
               AND NOT EXISTS (SELECT FROM %1$I.ducklake_delete_file d WHERE d.path = m.path AND d.table_id = m.table_id)
            RETURNING m.data_file_id, m.table_id
        ), stats AS (
            DELETE FROM %1$I.iceberg_merged_column_stats c USING removed r WHERE c.data_file_id = r.data_file_id
        )
        SELECT array_agg(DISTINCT table_id) FROM removed', TG_TABLE_SCHEMA) INTO table_ids;
    IF table_ids IS NOT NULL THEN
        EXECUTE format('LOCK TABLE %I.iceberg_change IN EXCLUSIVE MODE', TG_TABLE_SCHEMA);
        EXECUTE format('INSERT INTO %I.iceberg_change (kind, table_id) SELECT ''hide'', unnest($1)', TG_TABLE_SCHEMA) USING table_ids;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_note_cleanup
    AFTER DELETE ON ducklake_files_scheduled_for_deletion REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_note_cleanup();

-- What is about to name files that merges replaced waits for a clean-up that is deleting files: it has read their list in its
-- transaction. Then DuckLake must still have the files.
CREATE OR REPLACE FUNCTION iceberg_hold_merged(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM iceberg_merged_file WHERE data_file_id = ANY(ids)) THEN
        LOCK TABLE ducklake_files_scheduled_for_deletion IN ACCESS EXCLUSIVE MODE;
    END IF;
    IF EXISTS (SELECT FROM unnest(ids) AS n(id)
                WHERE NOT EXISTS (SELECT FROM ducklake_data_file f WHERE f.data_file_id = n.id)
                  AND NOT EXISTS (SELECT FROM iceberg_merged_file m WHERE m.data_file_id = n.id)) THEN
        RAISE EXCEPTION 'DuckLake has deleted files of the snapshot meanwhile.' USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;

-- A kept snapshot from before a merge needs the files that the merge replaced: they get rows that belong to no data file.
CREATE OR REPLACE FUNCTION iceberg_pin_merged() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
BEGIN
    SELECT array_agg(m.data_file_id) INTO ids
      FROM kept k JOIN iceberg_merged_file m
        ON m.table_id = k.table_id AND k.base_snapshot_id >= m.begin_snapshot AND k.base_snapshot_id < m.end_snapshot;
    IF ids IS NULL THEN
        RETURN NULL;
    END IF;
    PERFORM iceberg_hold_merged(ids);
    INSERT INTO ducklake_delete_file (delete_file_id, table_id, begin_snapshot, data_file_id, path, path_is_relative,
                                      format, delete_count, file_size_bytes)
    SELECT m.data_file_id, m.table_id, 0, 9223372036854775807, m.path, m.path_is_relative, 'parquet', 0, 0
      FROM iceberg_merged_file m
     WHERE m.data_file_id = ANY(ids)
       AND NOT EXISTS (SELECT FROM ducklake_delete_file d WHERE d.delete_file_id = m.data_file_id);
    DELETE FROM ducklake_files_scheduled_for_deletion WHERE data_file_id = ANY(ids);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_pin_merged
    AFTER INSERT ON iceberg_kept REFERENCING NEW TABLE AS kept
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_pin_merged();

-- One path may have several rows: it is not removed before the last of them. DuckDB's expiry schedules all
-- its files by one statement, so one query looks them all up: a query for each file took milliseconds.
CREATE OR REPLACE FUNCTION iceberg_keep_file() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
                    WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME AND f.pronamespace = c.relnamespace
                      AND c.relname = 'ducklake_files_scheduled_for_deletion') THEN
        RETURN NULL;
    END IF;
    EXECUTE format('
        WITH lake AS (
            SELECT coalesce((SELECT m.value FROM %1$I.ducklake_metadata m WHERE m.key = ''data_path'' AND m.scope IS NULL), '''') AS root
        ), file AS (
            SELECT DISTINCT s.path, coalesce(s.path_is_relative, true) AS is_relative FROM scheduled s
        ), whole AS (
            -- clients call a local file by its URI, DuckLake by its path
            SELECT g.path, g.is_relative, l.root, u.whole, string_to_array(u.whole, ''/'') AS parts
              FROM lake l CROSS JOIN file g
             CROSS JOIN LATERAL regexp_replace(CASE WHEN g.is_relative THEN l.root || g.path ELSE g.path END, ''^file://'', '''') AS u(whole)
        ), tail AS (
            -- joined one by one, not by = ANY: the planner then takes the indexes for few files and hashes for many
            -- of an array the planner expects ten elements, of a series a thousand: then it reads all files for a few paths
            SELECT w.*, unnest(ARRAY(SELECT array_to_string(w.parts[n:], ''/'') FROM generate_subscripts(w.parts, 1) n)
                               || (''file://'' || w.whole)) AS tail
              FROM whole w
        ), found AS (
            SELECT x.*, d.table_id, coalesce(d.path_is_relative, true) AS lies_in_table
              FROM tail x JOIN %1$I.ducklake_data_file d ON d.path = x.tail
             UNION ALL
            SELECT x.*, d.table_id, coalesce(d.path_is_relative, true)
              FROM tail x JOIN %1$I.ducklake_delete_file d ON d.path = x.tail
        ), named AS (
            SELECT f.path, f.is_relative FROM found f WHERE NOT f.lies_in_table AND f.tail IN (f.whole, ''file://'' || f.whole)
             UNION
            SELECT f.path, f.is_relative
              FROM found f
              JOIN %1$I.ducklake_table t ON t.table_id = f.table_id
              JOIN %1$I.ducklake_schema s ON s.schema_id = t.schema_id
             WHERE f.lies_in_table
               AND f.whole = CASE WHEN NOT coalesce(t.path_is_relative, true) THEN ''''
                                  WHEN NOT coalesce(s.path_is_relative, true) THEN coalesce(s.path, '''')
                                  ELSE f.root || coalesce(s.path, '''') END || coalesce(t.path, '''') || f.tail
             UNION
            SELECT x.path, x.is_relative
              FROM tail x
              JOIN %1$I.iceberg_kept_file k ON k.path = x.tail
              JOIN %1$I.ducklake_table t ON t.table_id = k.table_id
               AND (t.end_snapshot IS NULL OR EXISTS (SELECT FROM %1$I.ducklake_snapshot p
                                                       WHERE p.snapshot_id >= t.begin_snapshot AND p.snapshot_id < t.end_snapshot))
             WHERE x.tail IN (x.whole, ''file://'' || x.whole)
             UNION
            -- derived files are published for older snapshots too
            SELECT w.path, w.is_relative FROM whole w WHERE w.whole ~ ''/data/inlined-[0-9]+-[0-9a-f]+\.parquet$''
        )
        DELETE FROM %1$I.ducklake_files_scheduled_for_deletion d USING named n
         WHERE d.path = n.path AND coalesce(d.path_is_relative, true) = n.is_relative', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_keep_file
    AFTER INSERT ON ducklake_files_scheduled_for_deletion REFERENCING NEW TABLE AS scheduled
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_keep_file();

-- Files that DuckLake is about to remove and whose tables it has forgotten: their folders are not yet those of tables that have them now.
-- Of what was about to be removed when a lake was prepared nobody knows whose it was.
CREATE TABLE IF NOT EXISTS iceberg_gone_file (
    path text NOT NULL,
    path_is_relative boolean NOT NULL
);

INSERT INTO iceberg_gone_file (path, path_is_relative)
SELECT f.path, coalesce(f.path_is_relative, true) FROM ducklake_files_scheduled_for_deletion f
 WHERE NOT EXISTS (SELECT FROM iceberg_setting WHERE key = 'gone_files');

INSERT INTO iceberg_setting (key, value) VALUES ('gone_files', 'noted') ON CONFLICT (key) DO NOTHING;

-- Until this setting was there, files in the locations of forgotten tables were not noted.
INSERT INTO iceberg_gone_file (path, path_is_relative)
SELECT f.path, false FROM ducklake_files_scheduled_for_deletion f
 WHERE NOT coalesce(f.path_is_relative, true)
   AND NOT EXISTS (SELECT FROM iceberg_setting WHERE key = 'gone_locations')
   AND NOT EXISTS (SELECT FROM iceberg_gone_file g WHERE g.path = f.path);

INSERT INTO iceberg_setting (key, value) VALUES ('gone_locations', 'noted') ON CONFLICT (key) DO NOTHING;

-- The objects that were published for a dropped table go when DuckLake forgets it: nothing can read them any more, and its location is
-- free for another table when they have gone. Of what was dropped before this setting was there nobody knows whether it was unregistered.
INSERT INTO iceberg_setting (key, value)
SELECT 'forgotten_purged', coalesce(max(snapshot_id), 0)::text FROM ducklake_snapshot ON CONFLICT (key) DO NOTHING;

CREATE OR REPLACE FUNCTION iceberg_note_gone() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
                    WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME AND f.pronamespace = c.relnamespace
                      AND c.relname = 'ducklake_table') THEN
        RETURN NULL;
    END IF;
    EXECUTE format('
        DELETE FROM %1$I.iceberg_gone_file g
         WHERE NOT EXISTS (SELECT FROM %1$I.ducklake_files_scheduled_for_deletion f WHERE f.path = g.path)', TG_TABLE_SCHEMA);
    EXECUTE format('
        WITH lake AS (
            SELECT coalesce((SELECT m.value FROM %1$I.ducklake_metadata m WHERE m.key = ''data_path'' AND m.scope IS NULL), '''') AS root
        ), forgotten AS (
            SELECT g.* FROM gone g WHERE NOT EXISTS (SELECT FROM %1$I.ducklake_table t WHERE t.table_id = g.table_id)
        ), place AS (
            -- the folder that DuckLake has for a table, and the locations that Iceberg clients wrote to
            SELECT CASE WHEN NOT coalesce(g.path_is_relative, true) THEN ''''
                        WHEN NOT coalesce(s.path_is_relative, true) THEN coalesce(s.path, '''')
                        ELSE l.root || coalesce(s.path, '''') END || coalesce(g.path, '''') AS path
              FROM lake l CROSS JOIN forgotten g JOIN %1$I.ducklake_schema s ON s.schema_id = g.schema_id
             UNION ALL
            SELECT n.location || ''/''
              FROM forgotten g JOIN (SELECT table_id, location FROM %1$I.iceberg_table
                                     UNION ALL SELECT table_id, location FROM %1$I.iceberg_location) n ON n.table_id = g.table_id
        ), folder AS (
            SELECT DISTINCT regexp_replace(regexp_replace(path, ''^s3[an]://'', ''s3://''), ''^file:/+'', ''/'') AS whole FROM place
        ), file AS (
            SELECT f.path, coalesce(f.path_is_relative, true) AS is_relative,
                   regexp_replace(regexp_replace(CASE WHEN coalesce(f.path_is_relative, true) THEN l.root ELSE '''' END || f.path,
                                                 ''^s3[an]://'', ''s3://''), ''^file:/+'', ''/'') AS whole
              FROM lake l CROSS JOIN %1$I.ducklake_files_scheduled_for_deletion f
        )
        INSERT INTO %1$I.iceberg_gone_file (path, path_is_relative)
        -- every folder that a file is in, so that they are found by hashes
        SELECT DISTINCT f.path, f.is_relative
          FROM file f CROSS JOIN LATERAL generate_series(1, length(f.whole)) n
          JOIN folder d ON d.whole = left(f.whole, n)
         WHERE substr(f.whole, n, 1) = ''/''', TG_TABLE_SCHEMA);
    EXECUTE format('
        INSERT INTO %1$I.iceberg_purge (table_id, table_uuid, locations, begun_at, due_at)
        -- What was written after the drop belongs to another table, maybe of another catalog. Nothing is removed at once, so that a
        -- client may still register the table from its metadata file.
        SELECT g.table_id, g.table_uuid, n.locations, d.dropped_at, clock_timestamp() - interval ''1 hour''
          FROM (SELECT DISTINCT ON (table_id) table_id, table_uuid, end_snapshot FROM gone ORDER BY table_id, begin_snapshot DESC) g
          CROSS JOIN LATERAL (SELECT array_agg(p.location) AS locations
                                FROM (SELECT location FROM %1$I.iceberg_table WHERE table_id = g.table_id
                                      UNION SELECT location FROM %1$I.iceberg_location WHERE table_id = g.table_id) p) n
          CROSS JOIN LATERAL (SELECT least(clock_timestamp(), coalesce(
                                  (SELECT s.snapshot_time FROM %1$I.ducklake_snapshot s WHERE s.snapshot_id = g.end_snapshot),
                                  (SELECT e.snapshot_time FROM %1$I.iceberg_event e WHERE e.snapshot_id = g.end_snapshot),
                                  ''-infinity'')) AS dropped_at) d
         WHERE n.locations IS NOT NULL AND g.table_uuid IS NOT NULL AND isfinite(d.dropped_at)
           -- The catalog that a table was registered from may still read its objects.
           AND NOT EXISTS (SELECT FROM %1$I.iceberg_registered r WHERE r.table_id = g.table_id)
           AND NOT EXISTS (SELECT FROM %1$I.ducklake_table t WHERE t.table_id = g.table_id)
           AND g.end_snapshot > (SELECT value::bigint FROM %1$I.iceberg_setting WHERE key = ''forgotten_purged'')
            ON CONFLICT (table_id) DO NOTHING', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_note_gone
    AFTER DELETE ON ducklake_table REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_note_gone();

-- DuckDB loads the catalog as of a table's first row when it reads inlined rows, expired or not, and fails if a table row names a
-- schema that has no row. A table that was moved to another schema keeps its former rows: their schemas stay, dropped as they are.
CREATE OR REPLACE FUNCTION iceberg_keep_schema() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
                    WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME AND f.pronamespace = c.relnamespace
                      AND c.relname = 'ducklake_schema') THEN
        RETURN NULL;
    END IF;
    EXECUTE format('
        WITH RECURSIVE kept AS (
            SELECT g.* FROM gone g
             WHERE EXISTS (SELECT FROM %1$I.ducklake_table t WHERE t.schema_id = g.schema_id)
                -- A nested schema needs its parents; only DuckLake 1.1 has the column.
                OR EXISTS (SELECT FROM %1$I.ducklake_schema c WHERE (to_jsonb(c) ->> ''parent_schema_id'')::bigint = g.schema_id)
             UNION
            SELECT p.* FROM gone p JOIN kept k ON p.schema_id = (to_jsonb(k) ->> ''parent_schema_id'')::bigint
        )
        INSERT INTO %1$I.ducklake_schema SELECT * FROM kept', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_keep_schema
    AFTER DELETE ON ducklake_schema REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_keep_schema();

-- Lake snapshots that have expired, for readers of events that are behind: as they were, with the names of what they changed.
CREATE TABLE IF NOT EXISTS iceberg_event (
    snapshot_id bigint PRIMARY KEY,
    snapshot_time timestamptz,
    changes_made text,
    author text,
    commit_message text,
    objects jsonb NOT NULL,
    kept_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- An expiry deletes the snapshots, then these rows, and afterwards what no snapshot shows any more, names of tables among it. The time of
-- a snapshot is gone with its row by then, so it is kept first. Snapshots that stay are kept, too, if they dropped what only expired ones show.
CREATE OR REPLACE FUNCTION iceberg_keep_event() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
                    WHERE t.tgrelid = TG_RELID AND t.tgname = TG_NAME AND f.pronamespace = c.relnamespace
                      AND c.relname = 'ducklake_snapshot') THEN
        RETURN NULL;
    END IF;
    EXECUTE format('
        INSERT INTO %1$I.iceberg_event (snapshot_id, snapshot_time, changes_made, author, commit_message, objects)
        SELECT g.snapshot_id, g.snapshot_time, c.changes_made, c.author, c.commit_message, coalesce((
            SELECT jsonb_agg(o.object ORDER BY o.kind, o.id, o.begins) FROM (
                SELECT ''table'' AS kind, t.table_id AS id, t.begin_snapshot AS begins, jsonb_build_object(
                           ''kind'', ''table'', ''id'', t.table_id, ''uuid'', t.table_uuid, ''namespace'', s.schema_name,
                           ''name'', t.table_name, ''begin'', t.begin_snapshot, ''end'', t.end_snapshot, ''previous_end'',
                           (SELECT max(e.end_snapshot) FROM %1$I.ducklake_table e
                             WHERE e.table_id = t.table_id AND e.begin_snapshot < t.begin_snapshot)) AS object
                  FROM %1$I.ducklake_table t JOIN %1$I.ducklake_schema s ON s.schema_id = t.schema_id
                 WHERE (t.table_id = ANY(i.ids) AND t.begin_snapshot <= g.snapshot_id
                        AND (t.end_snapshot IS NULL OR t.end_snapshot >= g.snapshot_id))
                    OR t.begin_snapshot = g.snapshot_id
                 UNION ALL
                SELECT ''view'', v.view_id, v.begin_snapshot, jsonb_build_object(
                           ''kind'', ''view'', ''id'', v.view_id, ''uuid'', v.view_uuid, ''namespace'', s.schema_name,
                           ''name'', v.view_name, ''begin'', v.begin_snapshot, ''end'', v.end_snapshot)
                  FROM %1$I.ducklake_view v JOIN %1$I.ducklake_schema s ON s.schema_id = v.schema_id
                 WHERE (v.view_id = ANY(i.ids) AND v.begin_snapshot <= g.snapshot_id
                        AND (v.end_snapshot IS NULL OR v.end_snapshot >= g.snapshot_id))
                    OR v.begin_snapshot = g.snapshot_id
                 UNION ALL
                SELECT ''schema'', s.schema_id, s.begin_snapshot, jsonb_build_object(
                           ''kind'', ''schema'', ''id'', s.schema_id, ''uuid'', s.schema_uuid, ''namespace'', s.schema_name,
                           ''begin'', s.begin_snapshot, ''end'', s.end_snapshot)
                  FROM %1$I.ducklake_schema s
                 WHERE s.begin_snapshot = g.snapshot_id OR s.end_snapshot = g.snapshot_id) o), ''[]'')
          FROM (SELECT snapshot_id, snapshot_time FROM gone
                 UNION ALL
                SELECT s.snapshot_id, s.snapshot_time FROM %1$I.ducklake_snapshot s
                 WHERE s.snapshot_id IN (
                        SELECT e.end_snapshot
                          FROM (SELECT begin_snapshot, end_snapshot FROM %1$I.ducklake_table
                                 UNION ALL SELECT begin_snapshot, end_snapshot FROM %1$I.ducklake_view
                                 UNION ALL SELECT begin_snapshot, end_snapshot FROM %1$I.ducklake_schema) e
                         WHERE e.end_snapshot IS NOT NULL
                           AND NOT EXISTS (SELECT FROM %1$I.ducklake_snapshot v
                                            WHERE v.snapshot_id >= e.begin_snapshot AND v.snapshot_id < e.end_snapshot))) g
          JOIN %1$I.ducklake_snapshot_changes c ON c.snapshot_id = g.snapshot_id
         CROSS JOIN LATERAL (SELECT ARRAY(
                SELECT m[1]::bigint FROM regexp_matches(c.changes_made, '':([0-9]{1,18})(?=,|$)'', ''g'') m) AS ids) i
        -- An older copy has more names; its age counts from the expiry of its snapshot.
        ON CONFLICT (snapshot_id) DO UPDATE SET kept_at = excluded.kept_at', TG_TABLE_SCHEMA);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_keep_event
    AFTER DELETE ON ducklake_snapshot REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_keep_event();

-- DuckLake has primary keys only; every look-up of a table's rows would read them all.
DROP INDEX IF EXISTS iceberg_ix_table;
CREATE INDEX IF NOT EXISTS iceberg_ix_table_versions ON ducklake_table (table_id, begin_snapshot);
CREATE INDEX IF NOT EXISTS iceberg_ix_table_uuid ON ducklake_table (table_uuid);
CREATE INDEX IF NOT EXISTS iceberg_ix_table_begin ON ducklake_table (begin_snapshot);
-- a hash, because a name may be longer than a key of any other index; "C", because DuckDB folds ASCII letters only
DROP INDEX IF EXISTS iceberg_ix_table_live;
CREATE INDEX IF NOT EXISTS iceberg_ix_table_folded ON ducklake_table USING hash (lower(table_name COLLATE "C")) WHERE end_snapshot IS NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_schema_folded ON ducklake_schema USING hash (lower(schema_name COLLATE "C")) WHERE end_snapshot IS NULL;
-- Without statistics Postgres takes live tables for few, and reads a partial index from end to end to find one; it cannot read a hash so.
DROP INDEX IF EXISTS iceberg_ix_table_schema;
CREATE INDEX IF NOT EXISTS iceberg_ix_table_of_schema ON ducklake_table USING hash (schema_id) WHERE end_snapshot IS NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_macro_schema ON ducklake_macro (schema_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_view ON ducklake_view (view_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_view_begin ON ducklake_view (begin_snapshot);
CREATE INDEX IF NOT EXISTS iceberg_ix_view_end ON ducklake_view (end_snapshot);
CREATE INDEX IF NOT EXISTS iceberg_ix_schema_uuid ON ducklake_schema (schema_uuid, begin_snapshot);
CREATE INDEX IF NOT EXISTS iceberg_ix_schema_begin ON ducklake_schema (begin_snapshot);
CREATE INDEX IF NOT EXISTS iceberg_ix_schema_end ON ducklake_schema (end_snapshot) WHERE end_snapshot IS NOT NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_column ON ducklake_column (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_column_tag ON ducklake_column_tag (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_tag ON ducklake_tag (object_id);
-- Each change of a property leaves a dead row. The key is not in the index, because it may be longer than an index takes.
CREATE INDEX IF NOT EXISTS iceberg_ix_tag_live ON ducklake_tag (object_id) WHERE end_snapshot IS NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_data_file ON ducklake_data_file (table_id, begin_snapshot);
DROP INDEX IF EXISTS iceberg_ix_data_file_path;
CREATE INDEX IF NOT EXISTS iceberg_ix_data_file_name ON ducklake_data_file USING hash (path);
CREATE INDEX IF NOT EXISTS iceberg_ix_data_file_end ON ducklake_data_file (table_id, end_snapshot) WHERE end_snapshot IS NOT NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_data_file_partial ON ducklake_data_file (table_id) WHERE partial_max IS NOT NULL;
CREATE INDEX IF NOT EXISTS iceberg_ix_snapshot_file ON ducklake_snapshot (next_file_id, snapshot_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_delete_file ON ducklake_delete_file (table_id, delete_file_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_delete_file_of ON ducklake_delete_file (data_file_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_delete_file_name ON ducklake_delete_file USING hash (path);
CREATE INDEX IF NOT EXISTS iceberg_ix_scheduled_name ON ducklake_files_scheduled_for_deletion USING hash (path);
CREATE INDEX IF NOT EXISTS iceberg_ix_scheduled_file ON ducklake_files_scheduled_for_deletion (data_file_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_file_stats ON ducklake_file_column_stats (data_file_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_file_partition ON ducklake_file_partition_value (data_file_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_table_stats ON ducklake_table_stats (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_table_column_stats ON ducklake_table_column_stats (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_inlined ON ducklake_inlined_data_tables (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_partition ON ducklake_partition_info (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_partition_column ON ducklake_partition_column (table_id);
CREATE INDEX IF NOT EXISTS iceberg_ix_schema_versions ON ducklake_schema_versions (table_id);
-- Without quoted names: they are no tokens, and may be longer than a key of an index. The planner takes regexp_replace for free and
-- reads a small table from end to end; it cannot look into this function, and knows that a call is dear.
CREATE OR REPLACE FUNCTION iceberg_change_tokens(changes_made text) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE COST 10000 AS $$
BEGIN
    RETURN pg_catalog.string_to_array(pg_catalog.regexp_replace(changes_made, '"[^"]*"', '', 'g'), ',');
END
$$;

-- Whoever writes a lake snapshot computes the key of this index, DuckDB's roles too.
GRANT EXECUTE ON FUNCTION iceberg_change_tokens(text) TO PUBLIC;
DROP INDEX IF EXISTS iceberg_ix_changes;
-- Every look-up would read a list of pending entries from end to end, so there is none.
CREATE INDEX IF NOT EXISTS iceberg_ix_change_tokens ON ducklake_snapshot_changes
    USING gin (iceberg_change_tokens(changes_made)) WITH (fastupdate = off);

-- Who may call these could give them to a trigger of their own table. Triggers that are there need no right to fire.
REVOKE ALL ON FUNCTION iceberg_note_expiry() FROM PUBLIC;
REVOKE ALL ON FUNCTION iceberg_note_version() FROM PUBLIC;
REVOKE ALL ON FUNCTION iceberg_pin_files() FROM PUBLIC;
REVOKE ALL ON FUNCTION iceberg_keep_file() FROM PUBLIC;
REVOKE ALL ON FUNCTION iceberg_note_merge() FROM PUBLIC;
REVOKE ALL ON FUNCTION iceberg_note_cleanup() FROM PUBLIC;
REVOKE ALL ON FUNCTION iceberg_note_gone() FROM PUBLIC;
REVOKE ALL ON FUNCTION iceberg_keep_schema() FROM PUBLIC;
REVOKE ALL ON FUNCTION iceberg_keep_event() FROM PUBLIC;
