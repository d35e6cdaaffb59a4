-- The branches of a lake, inside the lake's own metadata schema. The first `branch create` runs this script; a lake without branches has
-- none of it. Every statement may run again at any time.

-- Numbers are never assigned again: they are parts of ids and of paths.
CREATE SEQUENCE IF NOT EXISTS iceberg_branch_number;

-- `parent` is the schema that the branch was made from. A deleted branch stays until its schema is dropped.
CREATE TABLE IF NOT EXISTS iceberg_branch (
    number bigint PRIMARY KEY,
    name text NOT NULL,
    schema_name text NOT NULL,
    parent text NOT NULL,
    fork_snapshot_id bigint NOT NULL,
    data_path text NOT NULL,
    iceberg_path text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_deleted boolean NOT NULL DEFAULT false
);

-- A tag is a branch that is not changed. It protects the snapshot of its parent that it shows.
ALTER TABLE iceberg_branch ADD COLUMN IF NOT EXISTS is_tag boolean NOT NULL DEFAULT false;

-- DuckDB finds schemas by names without regard to case.
CREATE UNIQUE INDEX IF NOT EXISTS iceberg_ix_branch_name ON iceberg_branch (lower(name));

-- The statements that copy rows of `table_name` to a branch before the lake deletes or changes them.
CREATE TABLE IF NOT EXISTS iceberg_branch_copy (
    number bigint NOT NULL,
    table_name text NOT NULL,
    operation text NOT NULL,
    statement text NOT NULL,
    PRIMARY KEY (number, table_name, operation)
);

-- The schema that was made ahead for the next branch, if there is one: what made it, and the version of DuckLake that it is for. It has
-- copies of the lake's rows: transactions from `unchanged_before` on may have changed the originals since. `made_in` is the transaction
-- that wrote this row, so that a row from a dump, which another one wrote, is known by that.
CREATE TABLE IF NOT EXISTS iceberg_spare (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    made_by text NOT NULL,
    lake_version text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    made_in xid8 NOT NULL DEFAULT pg_current_xact_id(),
    unchanged_before xid8 NOT NULL DEFAULT pg_snapshot_xmin(pg_current_snapshot())
);

-- The servers that show the tag which one of them made for a snapshot. Each writes its row anew every minute.
CREATE TABLE IF NOT EXISTS iceberg_branch_reader (
    number bigint NOT NULL,
    server text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (number, server)
);

-- Triggers below run, with their owner's rights, what these tables name: a role with INSERT on all tables of the schema writes none of it.
CREATE OR REPLACE FUNCTION iceberg_refuse_others() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT pg_has_role(current_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = TG_RELID), 'USAGE') THEN
        RAISE EXCEPTION '% is written by its owner alone', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_refuse_others
    AFTER INSERT OR UPDATE OR DELETE ON iceberg_branch FOR EACH STATEMENT EXECUTE FUNCTION iceberg_refuse_others();

CREATE OR REPLACE TRIGGER iceberg_refuse_others
    AFTER INSERT OR UPDATE OR DELETE ON iceberg_branch_copy FOR EACH STATEMENT EXECUTE FUNCTION iceberg_refuse_others();

CREATE OR REPLACE TRIGGER iceberg_refuse_others
    AFTER INSERT OR UPDATE OR DELETE ON iceberg_spare FOR EACH STATEMENT EXECUTE FUNCTION iceberg_refuse_others();

-- Each new branch changes this setting: a transaction of DuckDB that began before, and so cannot see the branch, fails and is repeated.
INSERT INTO iceberg_setting (key, value) VALUES ('branches', '0') ON CONFLICT (key) DO NOTHING;

CREATE OR REPLACE FUNCTION iceberg_hold_branches(repository text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_count bigint;
BEGIN
    EXECUTE format('SELECT FROM %I.iceberg_setting WHERE key = ''branches'' FOR SHARE', repository);
    GET DIAGNOSTICS found_count = ROW_COUNT;
    IF found_count = 0 THEN
        -- The transaction began before the lake's first branch was made.
        RAISE EXCEPTION 'could not serialize access due to concurrent update: a branch was made meanwhile'
            USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;

-- No check of the trigger by pg_trigger here: a transaction that began before the trigger was made does not see its row.
-- Rows that the lake deletes or changes stay on its branches as they were. A change that only ends a row needs no copy, and a
-- transaction that changes rows otherwise holds the lake's lock, so no branch is made meanwhile.
CREATE OR REPLACE FUNCTION iceberg_copy_for_branches() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    copying text;
BEGIN
    IF TG_OP = 'DELETE' THEN
        EXECUTE format('SELECT %I.iceberg_hold_branches($1)', TG_TABLE_SCHEMA) USING TG_TABLE_SCHEMA::text;
    END IF;
    FOR copying IN EXECUTE format('
        SELECT c.statement FROM %1$I.iceberg_branch_copy c JOIN %1$I.iceberg_branch b ON b.number = c.number AND NOT b.is_deleted
         WHERE c.table_name = $1 AND c.operation = $2 ORDER BY c.number', TG_TABLE_SCHEMA) USING TG_TABLE_NAME::text, TG_OP
    LOOP
        EXECUTE copying;
    END LOOP;
    RETURN NULL;
EXCEPTION WHEN serialization_failure THEN
    -- DuckDB repeats commits with these words. It does not repeat an expiry, whose caller has to know what to do.
    RAISE EXCEPTION 'could not serialize access due to concurrent update: a branch of % was made or changed meanwhile. Run it again.',
        TG_TABLE_SCHEMA USING ERRCODE = 'serialization_failure';
END
$$;

-- A file that another member of the repository (the lake and its branches) names is not deleted: it gets a row that belongs to no data
-- file, so that the orphan scan goes on knowing it. A file is found by its id, and by its path, because a path may get another id.
CREATE OR REPLACE FUNCTION iceberg_keep_for_members() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    repository text := coalesce(TG_ARGV[0], TG_TABLE_SCHEMA);
    member text;
    spelled_paths text[];
    tails text[];
    paths text[];
    ids bigint[];
    more_paths text[];
    more_ids bigint[];
    found text[];
    named text[] := '{}';
    -- OFFSET and LIMIT let Postgres look each path and each id up by an index, whatever it knows of the tables: it would scan a large one.
    by_path text := '
        SELECT array_agg(n.path), array_agg(n.id) FROM (
            SELECT t.path, d.id FROM unnest($1, $2) AS t(path, tail)
             CROSS JOIN LATERAL (SELECT f.data_file_id AS id FROM %1$I.%2$I f WHERE f.path = t.tail OFFSET 0) d
             UNION ALL
            SELECT t.path, d.id FROM unnest($1, $2) AS t(path, tail)
             CROSS JOIN LATERAL (SELECT f.delete_file_id AS id FROM %1$I.%3$I f WHERE f.path = t.tail OFFSET 0) d
        ) n';
BEGIN
    EXECUTE format('SELECT %I.iceberg_hold_branches($1)', repository) USING repository;
    -- a path is stored whole, in one of its spellings, or relative to any of its folders
    EXECUTE format('
        SELECT array_agg(x.path), array_agg(x.tail) FROM (
            SELECT DISTINCT w.path, unnest(ARRAY(SELECT array_to_string(w.parts[n:], ''/'') FROM generate_subscripts(w.parts, 1) n)
                                  || (''file://'' || w.whole) || regexp_replace(w.whole, ''^s3[an]?://'', ''s3://'')
                                  || regexp_replace(w.whole, ''^s3[an]?://'', ''s3a://'')
                                  || regexp_replace(w.whole, ''^s3[an]?://'', ''s3n://'')) AS tail
              FROM (SELECT s.path, u.whole, string_to_array(u.whole, ''/'') AS parts
                      FROM scheduled s
                     CROSS JOIN LATERAL regexp_replace(
                           CASE WHEN coalesce(s.path_is_relative, true)
                                THEN (SELECT value FROM %1$I.ducklake_metadata WHERE key = ''data_path'' AND scope IS NULL) || s.path
                                ELSE s.path END, ''^file://'', '''') AS u(whole)) w
        ) x', TG_TABLE_SCHEMA) INTO spelled_paths, tails;
    EXECUTE format(by_path, repository, 'ducklake_data_file', 'ducklake_delete_file') INTO paths, ids USING spelled_paths, tails;
    paths := coalesce(paths, '{}') || ARRAY(SELECT s.path::text FROM scheduled s);
    ids := coalesce(ids, '{}') || ARRAY(SELECT s.data_file_id FROM scheduled s);
    FOR member IN EXECUTE format('
        SELECT b.schema_name FROM %1$I.iceberg_branch b WHERE NOT b.is_deleted AND b.schema_name <> $1
         UNION ALL SELECT $2 WHERE $2 <> $1', repository) USING TG_TABLE_SCHEMA::text, repository
    LOOP
        more_paths := NULL;
        more_ids := NULL;
        IF member <> repository THEN
            EXECUTE format(by_path, member, 'own_data_file', 'own_delete_file') INTO more_paths, more_ids USING spelled_paths, tails;
        END IF;
        EXECUTE format('
            SELECT array_agg(DISTINCT n.path) FROM (
                SELECT t.path FROM unnest($1, $2) AS t(path, id)
                 CROSS JOIN LATERAL (SELECT FROM %1$I.ducklake_data_file f WHERE f.data_file_id = t.id LIMIT 1) d
                 UNION ALL
                SELECT t.path FROM unnest($1, $2) AS t(path, id)
                 CROSS JOIN LATERAL (SELECT FROM %1$I.ducklake_delete_file f
                                      WHERE f.delete_file_id = t.id AND f.data_file_id <> 9223372036854775807 LIMIT 1) d
            ) n', member)
          INTO found USING paths || coalesce(more_paths, '{}'), ids || coalesce(more_ids, '{}');
        named := named || coalesce(found, '{}');
    END LOOP;
    IF named = '{}' THEN
        RETURN NULL;
    END IF;
    EXECUTE format('DELETE FROM %I.ducklake_files_scheduled_for_deletion WHERE path = ANY($1)', TG_TABLE_SCHEMA) USING named;
    -- The orphan scan joins tables and schemas; these begin after every lake snapshot and never end.
    EXECUTE format('
        INSERT INTO %1$I.ducklake_schema (schema_id, schema_uuid, begin_snapshot, schema_name, path, path_is_relative)
        SELECT 9223372036854775807, gen_random_uuid(), 9223372036854775807, '''', ''/'', false
         WHERE NOT EXISTS (SELECT FROM %1$I.ducklake_schema WHERE schema_id = 9223372036854775807)', TG_TABLE_SCHEMA);
    EXECUTE format('
        INSERT INTO %1$I.ducklake_table (table_id, table_uuid, begin_snapshot, schema_id, table_name, path, path_is_relative)
        SELECT 9223372036854775807, gen_random_uuid(), 9223372036854775807, 9223372036854775807, '''', ''/'', false
         WHERE NOT EXISTS (SELECT FROM %1$I.ducklake_table WHERE table_id = 9223372036854775807)', TG_TABLE_SCHEMA);
    EXECUTE format('
        INSERT INTO %1$I.ducklake_delete_file (delete_file_id, table_id, begin_snapshot, data_file_id, path, path_is_relative,
                                               format, delete_count, file_size_bytes)
        SELECT DISTINCT ON (s.data_file_id) -1 - s.data_file_id, 9223372036854775807, 0, 9223372036854775807,
               CASE WHEN coalesce(s.path_is_relative, true)
                    THEN (SELECT value FROM %1$I.ducklake_metadata WHERE key = ''data_path'' AND scope IS NULL) || s.path
                    ELSE s.path END, false, ''parquet'', 0, 0
          FROM scheduled s
         WHERE s.path = ANY($1)
           AND NOT EXISTS (SELECT FROM %1$I.ducklake_delete_file d WHERE d.delete_file_id = -1 - s.data_file_id)', TG_TABLE_SCHEMA)
      USING named;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_keep_for_members
    AFTER INSERT ON ducklake_files_scheduled_for_deletion REFERENCING NEW TABLE AS scheduled
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_keep_for_members();

-- The expiry of snapshots leaves those that tags show, and so all that these need.
CREATE OR REPLACE FUNCTION iceberg_keep_tagged() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    repository text := coalesce(TG_ARGV[0], TG_TABLE_SCHEMA);
    is_tagged boolean;
BEGIN
    EXECUTE format('SELECT %I.iceberg_hold_branches($1)', repository) USING repository;
    EXECUTE format('
        SELECT EXISTS (SELECT FROM %I.iceberg_branch b
                        WHERE b.is_tag AND NOT b.is_deleted AND b.parent = $1 AND b.fork_snapshot_id = $2)', repository)
      INTO is_tagged USING TG_TABLE_SCHEMA::text, OLD.snapshot_id;
    IF is_tagged THEN
        RETURN NULL;
    END IF;
    RETURN OLD;
END
$$;

CREATE OR REPLACE TRIGGER iceberg_keep_tagged
    BEFORE DELETE ON ducklake_snapshot FOR EACH ROW EXECUTE FUNCTION iceberg_keep_tagged();

CREATE OR REPLACE TRIGGER iceberg_keep_tagged
    BEFORE DELETE ON ducklake_snapshot_changes FOR EACH ROW EXECUTE FUNCTION iceberg_keep_tagged();

-- DuckDB reads a tag as a DuckLake too; its commits and its maintenance are refused.
CREATE OR REPLACE FUNCTION iceberg_refuse_changes() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'a tag is read-only: % shows one snapshot for ever', TG_TABLE_SCHEMA USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_table REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_column REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_view REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_tag REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_column_tag REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_partition_info REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_partition_column REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_schema_versions REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_data_file REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_delete_file REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_file_column_stats REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_file_partition_value REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_deleted
    AFTER DELETE ON ducklake_file_variant_stats REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_updated
    AFTER UPDATE ON ducklake_table REFERENCING OLD TABLE AS gone NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_updated
    AFTER UPDATE ON ducklake_column REFERENCING OLD TABLE AS gone NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_updated
    AFTER UPDATE ON ducklake_view REFERENCING OLD TABLE AS gone NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_updated
    AFTER UPDATE ON ducklake_tag REFERENCING OLD TABLE AS gone NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_updated
    AFTER UPDATE ON ducklake_column_tag REFERENCING OLD TABLE AS gone NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_updated
    AFTER UPDATE ON ducklake_partition_info REFERENCING OLD TABLE AS gone NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_updated
    AFTER UPDATE ON ducklake_partition_column REFERENCING OLD TABLE AS gone NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_updated
    AFTER UPDATE ON ducklake_schema_versions REFERENCING OLD TABLE AS gone NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_updated
    AFTER UPDATE ON ducklake_data_file REFERENCING OLD TABLE AS gone NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

CREATE OR REPLACE TRIGGER iceberg_copy_updated
    AFTER UPDATE ON ducklake_delete_file REFERENCING OLD TABLE AS gone NEW TABLE AS arrived
    FOR EACH STATEMENT EXECUTE FUNCTION iceberg_copy_for_branches();

REVOKE ALL ON FUNCTION iceberg_hold_branches(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION iceberg_copy_for_branches() FROM PUBLIC;
REVOKE ALL ON FUNCTION iceberg_keep_for_members() FROM PUBLIC;
REVOKE ALL ON FUNCTION iceberg_keep_tagged() FROM PUBLIC;
