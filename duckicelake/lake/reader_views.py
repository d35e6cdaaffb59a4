"""The readers' schema: its name, and the views that readers attach as a DuckLake, as SQL. `lake.readers` creates them.

Law: every view shows only rows that `session_user`, a reader's role, may read at that moment; other roles see none.
Placeholders: `{lake}` is the schema of the lake or of a branch, `{repository}` that of the lake, which has the readers and the accounts,
`{own}` the readers' one, `{lake_text}` and `{own_text}` the same as texts; the others are the constants below. The digest of these
statements decides if a lake's readers' schema is replaced, so even a changed comment in them replaces it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from duckicelake.errors import NotServed
from duckicelake.lake.lake_format import SCHEMA_NAME, V1_1, LakeFormat

COVERS: LiteralString = """
(p.space = '' OR n.name = p.space OR (starts_with(n.name, p.space || '\u241f') AND n.name !~ '(^|\u241f)(\u241f|$)'))
"""
"""The condition that a namespace equals or is nested in another. Source: `translate/namespaces.py`."""

INNER: Sequence[tuple[LiteralString, LiteralString]] = (
    (
        "iceberg_me",
        """
SELECT r.spaces, r.scope, r.roles,
       (SELECT p.principal_id FROM {repository}.iceberg_principal p WHERE NOT p.is_role AND p.name = r.principal) AS principal_id
  FROM {repository}.iceberg_reader r
  -- roles are the whole cluster's, and a copied database has copied rows
 WHERE r.role_name = session_user AND r.database_id = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
   AND CASE WHEN r.expires_at > clock_timestamp()
             AND (r.principal_id IS NULL OR EXISTS (SELECT FROM {repository}.iceberg_principal p
                                                     WHERE p.principal_id = r.principal_id AND p.secret_number = r.secret_number))
             -- a sequence is the same for old transactions too: theirs may not have seen the last revoke
             AND (SELECT n.last_value FROM {repository}.iceberg_revocation n)
                 <= (SELECT s.value::bigint FROM {repository}.iceberg_setting s WHERE s.key = 'revocation')
            THEN true ELSE {own}.iceberg_refuse() END
""",
    ),
    (
        "iceberg_privilege",
        """
SELECT g.kind, g.object_uuid
  FROM {own}.iceberg_me m JOIN {repository}.iceberg_grant g ON g.privilege = 'read'
   AND (g.principal_id = m.principal_id
        OR g.principal_id IN (SELECT b.role_id FROM {repository}.iceberg_member b
                                JOIN {repository}.iceberg_principal r ON r.principal_id = b.role_id
                               WHERE b.principal_id = m.principal_id AND r.is_role)
        OR g.principal_id IN (SELECT r.principal_id FROM {repository}.iceberg_principal r WHERE r.is_role AND r.name = ANY(m.roles)))
""",
    ),
    (
        "iceberg_space",
        """
SELECT p.space FROM {own}.iceberg_me m CROSS JOIN unnest(m.spaces) AS p(space)
 UNION ALL
SELECT '' FROM {own}.iceberg_privilege g WHERE g.kind = 'warehouse'
 UNION ALL
SELECT lower({names} COLLATE "C")
  FROM {own}.iceberg_privilege g JOIN {lake}.ducklake_schema s ON s.schema_uuid = g.object_uuid AND s.end_snapshot IS NULL
 WHERE g.kind = 'namespace'
""",
    ),
    (
        "iceberg_namespace",
        """
SELECT n.schema_id, EXISTS (SELECT FROM {own}.iceberg_space p WHERE {covers}) AS is_whole
  FROM {own}.iceberg_me m
  CROSS JOIN (SELECT s.schema_id, lower({names} COLLATE "C") AS name FROM {lake}.ducklake_schema s WHERE s.end_snapshot IS NULL) n
 WHERE m.scope IS NULL OR EXISTS (SELECT FROM unnest(m.scope) AS p(space) WHERE {covers})
""",
    ),
    (
        "iceberg_table",
        """
SELECT t.table_id, t.schema_id
  FROM {lake}.ducklake_table t JOIN {own}.iceberg_namespace n ON n.schema_id = t.schema_id
 WHERE t.end_snapshot IS NULL
   AND (n.is_whole OR t.table_uuid IN (SELECT g.object_uuid FROM {own}.iceberg_privilege g WHERE g.kind = 'table'))
   -- DuckDB takes inlined deletes that it cannot read for none: such a table is not there
   AND NOT EXISTS (SELECT FROM pg_class c
                    WHERE c.relname = 'ducklake_inlined_delete_' || t.table_id
                      AND c.relnamespace = (SELECT s.oid FROM pg_namespace s WHERE s.nspname = {lake_text})
                      AND NOT EXISTS (SELECT FROM pg_class v
                                       WHERE v.relname = c.relname
                                         AND v.relnamespace = (SELECT s.oid FROM pg_namespace s WHERE s.nspname = {own_text})))
""",
    ),
    (
        "iceberg_view",
        """
SELECT v.view_id, v.schema_id
  FROM {lake}.ducklake_view v JOIN {own}.iceberg_namespace n ON n.schema_id = v.schema_id
 WHERE v.end_snapshot IS NULL
   AND (n.is_whole OR coalesce(v.view_uuid, md5('view ' || v.view_id)::uuid)
                      IN (SELECT g.object_uuid FROM {own}.iceberg_privilege g WHERE g.kind = 'view'))
""",
    ),
    (
        "iceberg_shown",
        """
WITH RECURSIVE shown(schema_id) AS (
    SELECT x.schema_id
      FROM (SELECT n.schema_id FROM {own}.iceberg_namespace n WHERE n.is_whole
             UNION SELECT t.schema_id FROM {own}.iceberg_table t
             UNION SELECT v.schema_id FROM {own}.iceberg_view v) x
     UNION
    SELECT x.schema_id
      FROM shown c JOIN {lake}.ducklake_schema s ON s.schema_id = c.schema_id
      CROSS JOIN LATERAL (
          -- DuckDB finds a nested schema by its parents; only DuckLake 1.1 has the column
          SELECT (to_jsonb(s) ->> 'parent_schema_id')::bigint AS schema_id
           UNION ALL
          -- the former rows of a table of an undropped namespace name the schema that was dropped
          SELECT d.schema_id FROM {lake}.ducklake_schema d WHERE d.schema_uuid = s.schema_uuid
      ) x
     WHERE x.schema_id IS NOT NULL
)
SELECT c.schema_id FROM shown c
""",
    ),
)
"""Helper views of the other views; readers have no right on them."""

OF_TABLES: Sequence[LiteralString] = (
    *("ducklake_column", "ducklake_column_tag", "ducklake_data_file", "ducklake_delete_file", "ducklake_file_column_stats"),
    *("ducklake_file_variant_stats", "ducklake_file_partition_value", "ducklake_table_stats", "ducklake_table_column_stats"),
    *("ducklake_partition_info", "ducklake_partition_column", "ducklake_sort_info", "ducklake_sort_expression"),
    *("ducklake_schema_versions", "ducklake_inlined_data_tables", "ducklake_column_mapping"),
)
"""DuckLake's tables whose rows belong to one table each."""

OF_TABLE: LiteralString = "x.table_id IN (SELECT {own}.iceberg_ids('table'))"
SHOWN: LiteralString = "x.schema_id IN (SELECT {own}.iceberg_ids('shown'))"
READS: LiteralString = "EXISTS (SELECT {own}.iceberg_ids('reader'))"
MACROS: LiteralString = "x.macro_id IN (SELECT {own}.iceberg_ids('macro'))"

OTHERS: Sequence[tuple[LiteralString, LiteralString]] = (
    (
        "ducklake_metadata",
        "{reads} AND (x.scope IS NULL OR (x.scope = 'schema' AND x.scope_id IN (SELECT {own}.iceberg_ids('shown')))"
        " OR (x.scope = 'table' AND x.scope_id IN (SELECT {own}.iceberg_ids('table'))))",
    ),
    ("ducklake_snapshot", READS),
    ("ducklake_schema", SHOWN),
    ("ducklake_table", "{of_table} AND {shown}"),
    ("ducklake_view", "x.view_id IN (SELECT {own}.iceberg_ids('view')) AND {shown}"),
    ("ducklake_tag", "x.object_id IN (SELECT {own}.iceberg_ids('object'))"),
    ("ducklake_macro", MACROS),
    ("ducklake_macro_impl", MACROS),
    ("ducklake_macro_parameters", MACROS),
    ("ducklake_name_mapping", "x.mapping_id IN (SELECT {own}.iceberg_ids('mapping'))"),
    ("ducklake_files_scheduled_for_deletion", "false"),
)
"""The other tables of DuckLake, each with the condition for a row `x` to be visible."""

NESTED: Sequence[tuple[LiteralString, LiteralString]] = (("ducklake_view_column_tag", "x.view_id IN (SELECT {own}.iceberg_ids('view'))"),)
"""The tables that DuckLake has since its version nests schemas."""

OWN: Sequence[tuple[LiteralString, LiteralString]] = (
    (
        "ducklake_snapshot_changes",
        """
SELECT x.snapshot_id,
       -- ids of tables that may be read; names, and what people wrote, may be of others
       (SELECT string_agg(c.change, ',' ORDER BY c.number)
          FROM unnest(string_to_array(regexp_replace(x.changes_made, '"[^"]*"', '', 'g'), ',')) WITH ORDINALITY AS c(change, number)
         WHERE c.change ~ '^[a-z_]+:[0-9]{{1,18}}$'
           AND split_part(c.change, ':', 2)::bigint IN (SELECT {own}.iceberg_ids('table'))) AS changes_made,
       NULL::varchar AS author, NULL::varchar AS commit_message, NULL::varchar AS commit_extra_info
  FROM {lake}.ducklake_snapshot_changes x WHERE {reads}
""",
    ),
)
"""Views that show less than DuckLake's tables."""

IDS: LiteralString = """
CREATE FUNCTION {own}.iceberg_ids(kind text) RETURNS SETOF bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    CASE kind
    WHEN 'reader' THEN RETURN QUERY SELECT 1::bigint FROM {own}.iceberg_me;
    WHEN 'table' THEN RETURN QUERY SELECT t.table_id FROM {own}.iceberg_table t;
    WHEN 'view' THEN RETURN QUERY SELECT v.view_id FROM {own}.iceberg_view v;
    WHEN 'shown' THEN RETURN QUERY SELECT s.schema_id FROM {own}.iceberg_shown s;
    WHEN 'object' THEN
        RETURN QUERY SELECT t.table_id FROM {own}.iceberg_table t
          UNION ALL SELECT v.view_id FROM {own}.iceberg_view v
          -- REST shows a namespace's properties to those who may read all of it
          UNION ALL SELECT n.schema_id FROM {own}.iceberg_namespace n WHERE n.is_whole;
    WHEN 'macro' THEN
        RETURN QUERY SELECT m.macro_id FROM {lake}.ducklake_macro m
                      WHERE m.schema_id IN (SELECT n.schema_id FROM {own}.iceberg_namespace n WHERE n.is_whole);
    WHEN 'mapping' THEN
        RETURN QUERY SELECT m.mapping_id FROM {lake}.ducklake_column_mapping m
                      WHERE m.table_id IN (SELECT t.table_id FROM {own}.iceberg_table t);
    END CASE;
END
$$
"""
"""The ids that the session's role may read. A function, because planning the views for each query is the largest cost."""

REFUSE: LiteralString = """
CREATE FUNCTION {own}.iceberg_refuse() RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'Your access to this DuckLake is over, or was changed: ask the catalog for newer ducklake-credentials'
        USING ERRCODE = 'insufficient_privilege';
END
$$
"""
"""Raise an error instead of hiding tables, because DuckDB caches tables and fails badly if they vanish."""

ROWS: LiteralString = """
CREATE FUNCTION {own}.iceberg_rows(asked_table bigint, asked_version bigint) RETURNS SETOF record
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found text := 'ducklake_inlined_delete_' || asked_table;
BEGIN
    IF NOT EXISTS (SELECT FROM {own}.iceberg_table t WHERE t.table_id = asked_table) THEN
        RETURN;
    END IF;
    IF asked_version IS NOT NULL THEN
        SELECT i.table_name INTO found FROM {lake}.ducklake_inlined_data_tables i
         WHERE i.table_id = asked_table AND i.schema_version = asked_version;
    END IF;
    -- flushed and dropped meanwhile: there are no rows
    IF {own}.iceberg_is_inlined(found) THEN
        RETURN QUERY EXECUTE format('SELECT * FROM %I.%I', {lake_text}, found);
    END IF;
END
$$
"""
"""Inlined rows or inlined deletes, through a function: a view on the table itself would keep DuckDB from dropping it."""

INLINED: LiteralString = """
CREATE FUNCTION {own}.iceberg_is_inlined(asked text) RETURNS boolean
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
SELECT asked ~ '^ducklake_inlined_(data_[0-9]+_[0-9]+|delete_[0-9]+)$'
   AND EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                -- another role's view or policy would run its functions as the lake's owner
                WHERE n.nspname = {lake_text} AND c.relname = asked AND c.relkind = 'r' AND NOT c.relrowsecurity)
$$
"""
"""True for a table of inlined rows or deletes; a writer of the lake may register any name."""

SHOW: LiteralString = """
CREATE FUNCTION {own}.iceberg_show(inlined text, asked_table bigint, asked_version bigint) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    columns text;
BEGIN
    IF asked_table IS NULL OR NOT {own}.iceberg_is_inlined(inlined) OR to_regclass(format('%I.%I', {own_text}, inlined)) IS NOT NULL THEN
        RETURN;
    END IF;
    SELECT string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY a.attnum) INTO columns
      FROM pg_attribute a
     WHERE a.attrelid = to_regclass(format('%I.%I', {lake_text}, inlined)) AND a.attnum > 0 AND NOT a.attisdropped;
    IF columns IS NOT NULL THEN
        EXECUTE format('CREATE VIEW %1$I.%2$I WITH (security_barrier) AS SELECT * FROM %1$I.iceberg_rows(%3$s, %4$s) AS n(%5$s)',
                       {own_text}, inlined, asked_table, coalesce(asked_version::text, 'NULL'), columns);
        EXECUTE format('GRANT SELECT ON %I.%I TO PUBLIC', {own_text}, inlined);
    END IF;
EXCEPTION WHEN OTHERS THEN
    -- no writer fails for a reader's sake: who lacks the view is refused the table
    RAISE LOG 'readers of the lake in % lack %: %', {lake_text}, inlined, SQLERRM;
END
$$
"""

SHOW_ROWS: LiteralString = """
CREATE FUNCTION {own}.iceberg_show_rows() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_RELID IS DISTINCT FROM to_regclass(format('%I.ducklake_inlined_data_tables', {lake_text})) THEN
        RETURN NULL;
    END IF;
    PERFORM {own}.iceberg_show(NEW.table_name, NEW.table_id, NEW.schema_version);
    RETURN NULL;
END
$$
"""

SHOW_DELETES: LiteralString = """
CREATE FUNCTION {own}.iceberg_show_deletes() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_RELID IS DISTINCT FROM to_regclass(format('%I.ducklake_snapshot_changes', {lake_text})) THEN
        RETURN NULL;
    END IF;
    PERFORM {own}.iceberg_show('ducklake_inlined_delete_' || f.found[1], f.found[1]::bigint, NULL)
       FROM regexp_matches(NEW.changes_made, 'inlined_delete:([0-9]{{1,18}})(?![0-9])', 'g') AS f(found);
    RETURN NULL;
END
$$
"""

HIDE: Sequence[LiteralString] = (
    "REVOKE ALL ON FUNCTION {own}.iceberg_show(text, bigint, bigint) FROM PUBLIC",
    "REVOKE ALL ON FUNCTION {own}.iceberg_show_rows() FROM PUBLIC",
    "REVOKE ALL ON FUNCTION {own}.iceberg_show_deletes() FROM PUBLIC",
)
"""A role that may call them could use them in triggers of its own tables. Existing triggers need no right to fire."""

TRIGGERS: Sequence[LiteralString] = (
    # Deferred to the end of the transaction, because DuckDB registers such a table before it creates it.
    "CREATE CONSTRAINT TRIGGER iceberg_show_rows AFTER INSERT ON {lake}.ducklake_inlined_data_tables"
    " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {own}.iceberg_show_rows()",
    # DuckDB writes this row last.
    "CREATE TRIGGER iceberg_show_deletes AFTER INSERT ON {lake}.ducklake_snapshot_changes"
    " FOR EACH ROW WHEN (NEW.changes_made LIKE '%inlined_delete:%') EXECUTE FUNCTION {own}.iceberg_show_deletes()",
)

SHOW_ALL: Sequence[LiteralString] = (
    """
SELECT {own}.iceberg_show(f.name, f.table_id, f.version)
  FROM (SELECT i.table_name AS name, i.table_id, i.schema_version AS version FROM {lake}.ducklake_inlined_data_tables i
         UNION ALL
        SELECT c.relname::text, substr(c.relname, 25)::bigint, NULL
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = {lake_text} AND c.relkind = 'r' AND c.relname ~ '^ducklake_inlined_delete_[0-9]{{1,18}}$') f
""",
)
"""Creates the views of inlined tables that exist already."""

SUFFIX = "_readers"
LONGEST_NAME_BYTES = 63

CREATE_VIEW: LiteralString = "CREATE VIEW {own}.{name} WITH (security_barrier) AS {query}"
CREATE_FILTERED_VIEW: LiteralString = (
    "CREATE VIEW {own}.{name} WITH (security_barrier) AS SELECT x.* FROM {lake}.{name} x WHERE {condition}"
)


def format_schema_name(metadata_schema: str) -> str:
    """Return the name of the readers' schema. Raises: NotServed: it would be too long."""
    name = metadata_schema + SUFFIX
    if not can_have_readers(metadata_schema):
        raise NotServed(f"The name of the lake's metadata schema is too long: {name!r} has more than 63 bytes.")
    return name


def can_have_readers(metadata_schema: str) -> bool:
    """Return True if there is room for the name of the readers' schema."""
    return len((metadata_schema + SUFFIX).encode()) <= LONGEST_NAME_BYTES


@dataclass(frozen=True, slots=True)
class ReadMember:
    """A lake, or a branch of it, that readers attach: its metadata schema, and that of the lake, which has the readers."""

    metadata_schema: str
    repository: str

    def build_names(self) -> dict[str, str]:
        """Return the schemas, and the comment by which the readers' one is known as ours."""
        own = format_schema_name(self.metadata_schema)
        return {
            "lake": self.metadata_schema,
            "repository": self.repository,
            "own": own,
            "mark": f"duckicelake readers of {self.metadata_schema}",
        }


def as_lake(metadata_schema: str) -> ReadMember:
    """Return a lake itself."""
    return ReadMember(metadata_schema, metadata_schema)


def list_statements(member: ReadMember, lake_format: LakeFormat) -> Iterator[sql.Composed]:
    """Return the statements that drop and create the readers' schema."""
    others = (*OTHERS, *(NESTED if lake_format.nests_schemas else ()))
    for text in (
        "DROP SCHEMA IF EXISTS {own} CASCADE",
        "CREATE SCHEMA {own}",
        "COMMENT ON SCHEMA {own} IS {mark}",
        "GRANT USAGE ON SCHEMA {own} TO PUBLIC",
    ):
        yield compose(text, member)
    yield compose(REFUSE, member)
    for name, query in INNER:
        yield compose(CREATE_VIEW, member, name, query)
    yield compose(IDS, member)
    for name in OF_TABLES:
        yield compose(CREATE_FILTERED_VIEW, member, name, condition=OF_TABLE)
    for name, condition in others:
        yield compose(CREATE_FILTERED_VIEW, member, name, condition=condition)
    for name, query in OWN:
        yield compose(CREATE_VIEW, member, name, query)
    for name in (*OF_TABLES, *dict(others), *dict(OWN)):
        yield compose("GRANT SELECT ON {own}.{name} TO PUBLIC", member, name)
    for text in (INLINED, ROWS, SHOW, SHOW_ROWS, SHOW_DELETES, *HIDE, *TRIGGERS, *SHOW_ALL):
        yield compose(text, member)


def compose(
    text: LiteralString, member: ReadMember, name: str = "", query: LiteralString = "", condition: LiteralString = ""
) -> sql.Composed:
    """Return a statement with all its placeholders filled in."""
    names = member.build_names()
    own = names["own"]
    parts: dict[str, sql.Composable] = {
        "lake": sql.Identifier(member.metadata_schema),
        "repository": sql.Identifier(member.repository),
        "own": sql.Identifier(own),
        "lake_text": sql.Literal(member.metadata_schema),
        "own_text": sql.Literal(own),
        "mark": sql.Literal(names["mark"]),
        "name": sql.Identifier(name),
        "covers": sql.SQL(COVERS),
        "names": sql.SQL(SCHEMA_NAME).format(lake=sql.SQL("{}.").format(sql.Identifier(member.metadata_schema))),
    }
    parts |= {"of_table": sql.SQL(OF_TABLE).format(**parts), "shown": sql.SQL(SHOWN).format(**parts)}
    parts["reads"] = sql.SQL(READS).format(**parts)
    parts["condition"] = sql.SQL(condition).format(**parts)
    parts["query"] = sql.SQL(query).format(**parts)
    return sql.SQL(text).format(**parts)


def compute_digest() -> str:
    """Return the digest that identifies this version of the schema."""
    statements = [statement.as_string() for statement in list_statements(as_lake("lake"), V1_1)]
    return hashlib.sha256("".join(statements).encode()).hexdigest()
