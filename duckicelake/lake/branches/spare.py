"""The relations of a branch: made for it, or made ahead as a spare that the next branch claims by a new name.

`create` calls `claim_spare` and `create_schema` in the transaction that makes a branch, before that transaction takes the lake's lock.
`catalog.repositories` calls `prepare_spare` and `remove_spare` on worker threads of the server, on connections that are in no transaction,
and `create.remove_repository` and `writing.migrate` call `drop_spare` in theirs. `create` also copies the parent's large tables
with it, before and under the lock, and `refork` in a merge's transaction. `branch gc` removes a spare, too. A lake has one spare at most.
A spare is a schema that no branch has: its views show nothing, the lake's triggers copy nothing for it, and nothing lists it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from duckicelake.lake.branches.layout import PREFIX, Schemas, create_relations, list_copied, read_format
from duckicelake.lake.branches.notes import install_notes
from duckicelake.lake.branches.registry import MAX_SCHEMA_BYTES, compute_maker
from duckicelake.lake.install import format_search_path


@dataclass(frozen=True, slots=True)
class LargeTable:
    """A table whose rows a spare has copies of. `key`: the columns by which changed rows are copied again.

    `columns`: those that are copied, none for all of them, which copy and original have in one order.
    `until`: the column of lake snapshots that a branch has up to its fork point, None if it takes all rows.
    """

    name: str
    key: str
    columns: Sequence[str]
    until: str | None = None

    @property
    def is_history(self) -> bool:
        """True for lake snapshots, whose rows are never changed; a DELETE of them would be noted as an expiry."""
        return self.until == self.key


BOUNDS = "ducklake_table_column_stats"
LARGE = (
    LargeTable(
        "ducklake_snapshot",
        "snapshot_id",
        ("snapshot_id", "snapshot_time", "schema_version", "next_catalog_id", "next_file_id"),
        "snapshot_id",
    ),
    LargeTable(
        "ducklake_snapshot_changes",
        "snapshot_id",
        ("snapshot_id", "changes_made", "author", "commit_message", "commit_extra_info"),
        "snapshot_id",
    ),
    # DuckLake 1.1 has more columns.
    LargeTable(BOUNDS, "table_id", ()),
    LargeTable("iceberg_schema", "table_id", ("table_id", "schema_id", "json", "is_removed")),
    LargeTable("iceberg_spec", "table_id", ("table_id", "spec_id", "json", "is_removed")),
    LargeTable("iceberg_sort_order", "table_id", ("table_id", "order_id", "json")),
    LargeTable("iceberg_shape", "table_id", ("table_id", "lake_snapshot_id", "schema_id", "spec_id", "order_id"), "lake_snapshot_id"),
    LargeTable(
        "iceberg_snapshot",
        "table_id",
        ("table_id", "lake_snapshot_id", "commit_snapshot_id", "client_snapshot_id", "schema_id", "summary"),
        "commit_snapshot_id",
    ),
    LargeTable("iceberg_root", "table_id", ("table_id", "lake_snapshot_id"), "lake_snapshot_id"),
    LargeTable("iceberg_hidden", "table_id", ("table_id", "snapshot_id")),
)
"""The tables that grow with tables, columns and lake snapshots. The copies have the rows of the lake on each branch."""

NO_NUMBER = 0
"""The number of the spare in `iceberg_branch_copy`: no branch has it."""


def _name_spare(lake_schema: str) -> str:
    """Return the schema of a lake's spare. No branch may have this name."""
    return f"{lake_schema}@+"


def create_schema(conn: psycopg.Connection, schemas: Schemas, number: int) -> None:
    """Create the schema of a branch, or of a spare, with all its relations; the views show nothing yet."""
    conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schemas.branch)))
    create_relations(conn, schemas, number)
    _create_copied(conn, schemas)
    install_notes(conn, schemas)


CREATE_GUARD = sql.SQL("""
CREATE TRIGGER iceberg_keep_tagged
    BEFORE DELETE ON {branch}.ducklake_snapshot FOR EACH ROW EXECUTE FUNCTION {repository}.iceberg_keep_tagged({name});
CREATE TRIGGER iceberg_keep_tagged
    BEFORE DELETE ON {branch}.ducklake_snapshot_changes FOR EACH ROW EXECUTE FUNCTION {repository}.iceberg_keep_tagged({name});
CREATE TRIGGER iceberg_keep_for_members
    AFTER INSERT ON {branch}.ducklake_files_scheduled_for_deletion REFERENCING NEW TABLE AS scheduled
    FOR EACH STATEMENT EXECUTE FUNCTION {repository}.iceberg_keep_for_members({name})
""")


def _create_copied(conn: psycopg.Connection, schemas: Schemas) -> None:
    for name, key in list_copied(read_format(conn, schemas.repository)).items():
        table, base = sql.Identifier(schemas.branch, PREFIX + name), sql.Identifier(schemas.repository, PREFIX + name)
        conn.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS)").format(table, base))
        if key is not None:
            conn.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(table, sql.Identifier(key)))
    repository, branch = sql.Identifier(schemas.repository), sql.Identifier(schemas.branch)
    conn.execute(CREATE_GUARD.format(repository=repository, branch=branch, name=sql.Literal(schemas.repository)))


IS_RIGHT = sql.SQL("""s.made_by = %(maker)s AND s.lake_version = m.value AND s.xmin = s.made_in::xid
       -- `age` is right for 2^31 transactions
       AND s.made_at > clock_timestamp() - interval '1 day'""")
# Text of statements that a lake without branches cannot prepare.
SELECT_SPARE = sql.SQL("""
SELECT {is_right} AS is_right FROM iceberg_spare s, ducklake_metadata m WHERE m.key = 'version' AND m.scope IS NULL
""").format(is_right=IS_RIGHT)
INSERT_SPARE = sql.SQL("""
INSERT INTO iceberg_spare (made_by, lake_version)
SELECT %(maker)s, m.value FROM ducklake_metadata m WHERE m.key = 'version' AND m.scope IS NULL
""")
SPARE_TIMEOUT = "SET LOCAL lock_timeout = '500ms'"
SELECT_HAS_SPARES = """
SELECT to_regclass('iceberg_spare') IS NOT NULL
"""


def _has_spares(conn: psycopg.Connection) -> bool:
    """Return True if the lake has the table of spares; one that an older version prepared gets it with its next branch."""
    row = conn.execute(SELECT_HAS_SPARES).fetchone()
    return bool(row and row[0])


def prepare_spare(conn: psycopg.Connection, lake_schema: str) -> bool:
    """Make the lake's spare unless it has one, all or nothing, and return True if it has one now. One of another version is replaced."""
    conn.execute(format_search_path(lake_schema))
    schemas = Schemas(lake_schema, _name_spare(lake_schema))
    if len(schemas.branch.encode()) > MAX_SCHEMA_BYTES or not _has_spares(conn):
        return False
    try:
        with conn.transaction():
            row = conn.execute(SELECT_SPARE, {"maker": compute_maker()}).fetchone()
            if row is not None and row[0]:
                return True
            drop_spare(conn, lake_schema)
            conn.execute(INSERT_SPARE, {"maker": compute_maker()})
            _create_marked(conn, schemas)
            names = {"branch": sql.Identifier(schemas.branch), "source": sql.Identifier(lake_schema)}
            copy_large(conn, names, with_bounds=True)
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateSchema, psycopg.errors.LockNotAvailable):
        # Another session makes or claims one, or uses tables of the lake: the next branch does without.
        return False
    finally:
        conn.execute(format_search_path(lake_schema))
    return True


# `DROP SCHEMA lake CASCADE` leaves the tables of the spare, and a lake that is made again under this name has no row of it.
SELECT_IS_LEFT_OVER = """
SELECT EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = %(schema)s AND obj_description(n.oid, 'pg_namespace') = %(mark)s
                  AND pg_has_role(current_user, n.nspowner, 'USAGE'))
"""
DROP_SCHEMA = sql.SQL("DROP SCHEMA IF EXISTS {branch} CASCADE")
MARK_SPARE = sql.SQL("COMMENT ON SCHEMA {branch} IS {mark}")


def _create_marked(conn: psycopg.Connection, schemas: Schemas) -> None:
    """Create the relations of the spare in a schema with a comment, by which one that has no row any more is known and replaced."""
    branch, mark = sql.Identifier(schemas.branch), f"duckicelake spare of {schemas.repository}"
    row = conn.execute(SELECT_IS_LEFT_OVER, {"schema": schemas.branch, "mark": mark}).fetchone()
    if row is not None and row[0]:
        conn.execute(DROP_SCHEMA.format(branch=branch))
    create_schema(conn, schemas, NO_NUMBER)
    conn.execute(MARK_SPARE.format(branch=branch, mark=sql.Literal(mark)))


CLAIM_SPARE = sql.SQL("""
WITH found AS (
    SELECT s.only_row FROM {repository}.iceberg_spare s, {repository}.ducklake_metadata m
     WHERE m.key = 'version' AND m.scope IS NULL AND {is_right}
       -- the role may rename the schema
       AND pg_has_role(current_user, (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = {schema}), 'USAGE')
       -- another branch claims it
       FOR UPDATE OF s SKIP LOCKED
)
DELETE FROM {repository}.iceberg_spare s USING found f WHERE s.only_row = f.only_row
RETURNING s.unchanged_before::xid::text
""")
SELECT_TABLES = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s AND c.relkind = 'r'
"""
LOCK_SPARE = sql.SQL("LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE NOWAIT")
# Statements and functions name the schema of their branch.
MOVE_SPARE = sql.SQL("""
ALTER SCHEMA {spare} RENAME TO {branch};
COMMENT ON SCHEMA {branch} IS NULL;
UPDATE {repository}.iceberg_branch_copy SET number = {number}, statement = replace(statement, {old}, {new}) WHERE number = 0
""")
SELECT_FUNCTIONS = """
SELECT coalesce(string_agg(replace(pg_get_functiondef(p.oid), %(old)s, %(new)s), ';'), '')
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = %(branch)s AND starts_with(p.proname, 'branch_write_')
"""


def claim_spare(conn: psycopg.Connection, schemas: Schemas, number: int) -> str | None:
    """Give the lake's spare to a branch, and return the first transaction whose changes of the lake its copies may lack.

    None: there is no spare, another branch claims it, another session uses its tables, or another version or role made it.

    Raises: psycopg.errors.DuplicateSchema: there is a schema of the branch's name
    """
    names = {"repository": sql.Identifier(schemas.repository), "branch": sql.Identifier(schemas.branch)}
    unchanged_before = _take_spare(conn, schemas.repository)
    if unchanged_before is None:
        return None
    spare = sql.Identifier(_name_spare(schemas.repository))
    texts = {"old": spare.as_string(conn), "new": names["branch"].as_string(conn)}
    literals = {name: sql.Literal(text) for name, text in texts.items()}
    conn.execute(MOVE_SPARE.format(**names, **literals, spare=spare, number=sql.Literal(number)))
    # The functions are those that Postgres has checked before.
    conn.execute("SET LOCAL check_function_bodies = off")
    row = conn.execute(SELECT_FUNCTIONS, {**texts, "branch": schemas.branch}).fetchone()
    assert row is not None
    conn.execute(row[0].encode())
    return unchanged_before


def _take_spare(conn: psycopg.Connection, lake_schema: str) -> str | None:
    """Delete the row of a spare that can be claimed, and lock its tables.

    A session that has locked one, as `pg_dump` does, may read it by its name later, and TRUNCATE would wait for that session.
    """
    schema = _name_spare(lake_schema)
    try:
        with conn.transaction():
            claim = CLAIM_SPARE.format(repository=sql.Identifier(lake_schema), schema=sql.Literal(schema), is_right=IS_RIGHT)
            found = conn.execute(claim, {"maker": compute_maker()}).fetchone()
            if found is None:
                return None
            tables = [sql.Identifier(schema, name) for (name,) in conn.execute(SELECT_TABLES, {"schema": schema}).fetchall()]
            conn.execute(LOCK_SPARE.format(tables=sql.SQL(", ").join(tables)))
            return found[0]
    except psycopg.errors.LockNotAvailable:
        return None


COPY_LARGE = sql.SQL("INSERT INTO {copy}{into} SELECT {columns} FROM {original} s WHERE {condition}")
# A row that no transaction since has written is in the copy as it is. `age` counts transactions backwards from the newest one.
COMPARE_LARGE = sql.SQL("""
SELECT {name}, (SELECT count(*) FROM {copy}), count(*),
       coalesce(array_agg(DISTINCT s.{key}) FILTER (WHERE age(s.xmin) <= age({mark}::xid)), '{{}}')
  FROM {original} s WHERE {condition}
""")


SELECT_OLDEST_RUNNING = """
SELECT pg_snapshot_xmin(pg_current_snapshot())::xid::text
"""


def copy_ahead(conn: psycopg.Connection, names: Mapping[str, sql.Composable]) -> str:
    """Copy the newest rows of the parent, before its lock is taken, and return the first transaction whose changes they may lack."""
    row = conn.execute(SELECT_OLDEST_RUNNING).fetchone()
    assert row is not None
    copy_large(conn, names, with_bounds=True)
    return row[0]


def copy_large(conn: psycopg.Connection, names: Mapping[str, sql.Composable], *, with_bounds: bool) -> None:
    """Copy the rows of the parent as of the fork point that a spare has copies of, into empty tables.

    `with_bounds`: the fork point is the newest snapshot. Bounds of the parent's newest rows may be exact for these and not for an older
    snapshot; without bounds DuckDB reads the files'.
    """
    for table in LARGE:
        if with_bounds or table.name != BOUNDS:
            conn.execute(COPY_LARGE.format(**_format_parts(table, names)))


def empty_large(conn: psycopg.Connection, names: Mapping[str, sql.Composable]) -> None:
    """Remove the copies that a claimed spare has. Unlike DELETE this fires no trigger."""
    tables = sql.SQL(", ").join(_format_parts(table, names)["copy"] for table in LARGE)
    conn.execute(sql.SQL("TRUNCATE {}").format(tables))


def catch_up(conn: psycopg.Connection, unchanged_before: str, names: Mapping[str, sql.Composable]) -> None:
    """Let the copies be the parent's rows of its newest snapshot. The caller holds the lock of the parent.

    `unchanged_before`: what `claim_spare` or `copy_ahead` has returned.
    """
    compared = _compare(conn, unchanged_before, names)
    if all(copied == counted and not changed for _, copied, counted, changed in compared):
        return
    for table, _, _, changed in compared:
        if changed:
            _copy_changed(conn, table, names, changed)
    # Each row of the parent has a copy now. If there are more, the parent has deleted the originals.
    for table, copied, counted, _ in _compare(conn, unchanged_before, names):
        if copied != counted:
            parts = _format_parts(table, names)
            conn.execute(sql.SQL("TRUNCATE {copy}").format(**parts))
            conn.execute(COPY_LARGE.format(**parts))


def _compare(
    conn: psycopg.Connection, unchanged_before: str, names: Mapping[str, sql.Composable]
) -> list[tuple[LargeTable, int, int, list[int]]]:
    """Return for each table how many rows the copy and the original have, and the keys of rows that may have changed since."""
    mark = sql.Literal(unchanged_before)
    parts = [
        COMPARE_LARGE.format(**_format_parts(table, names), name=sql.Literal(number), key=sql.Identifier(table.key), mark=mark)
        for number, table in enumerate(LARGE)
    ]
    rows = conn.execute(sql.SQL(" UNION ALL ").join(parts)).fetchall()
    return [(LARGE[number], copied, counted, changed) for number, copied, counted, changed in rows]


def _copy_changed(conn: psycopg.Connection, table: LargeTable, names: Mapping[str, sql.Composable], changed: Sequence[int]) -> None:
    parts = _format_parts(table, names)
    condition = sql.SQL("s.{} = ANY({}::bigint[])").format(sql.Identifier(table.key), sql.Literal(changed))
    if not table.is_history:
        conn.execute(sql.SQL("DELETE FROM {copy} s WHERE {condition}").format(copy=parts["copy"], condition=condition))
    copying = COPY_LARGE.format(**{**parts, "condition": sql.SQL("{} AND {}").format(parts["condition"], condition)})
    conn.execute(copying + sql.SQL(" ON CONFLICT DO NOTHING") if table.is_history else copying)


def _format_parts(table: LargeTable, names: Mapping[str, sql.Composable]) -> dict[str, sql.Composable]:
    """Return the parts of the statements about a table; `s` is the parent's row. Without a fork point all rows are meant."""
    condition = sql.SQL("true")
    if table.until is not None and "fork" in names:
        condition = sql.SQL("s.{} <= {}").format(sql.Identifier(table.until), names["fork"])
    listed = sql.SQL(", ").join(map(sql.Identifier, table.columns))
    return {
        "copy": sql.SQL("{}.{}").format(names["branch"], sql.Identifier(table.name)),
        "original": sql.SQL("{}.{}").format(names["source"], sql.Identifier(table.name)),
        "into": sql.SQL(" ({})").format(listed) if table.columns else sql.SQL(""),
        "columns": listed if table.columns else sql.SQL("s.*"),
        "condition": condition,
    }


DELETE_SPARE = sql.SQL("""
DELETE FROM {repository}.iceberg_spare WHERE {condition}
""")
IDLE = sql.SQL("made_at <= clock_timestamp() - make_interval(secs => {seconds})")


def drop_spare(conn: psycopg.Connection, lake_schema: str, idle_s: float = 0.0) -> None:
    """Drop the lake's spare, if it has been unclaimed for so long, in the caller's transaction.

    The search path is the lake's. Raises: psycopg.errors.LockNotAvailable: a branch claims it
    """
    if not _has_spares(conn):
        return
    conn.execute(SPARE_TIMEOUT)
    condition, repository = IDLE.format(seconds=sql.Literal(idle_s)), sql.Identifier(lake_schema)
    if conn.execute(DELETE_SPARE.format(repository=repository, condition=condition)).rowcount == 0:
        return
    conn.execute("SET LOCAL client_min_messages = error")
    conn.execute(DROP_SCHEMA.format(branch=sql.Identifier(_name_spare(lake_schema))))
    conn.execute(sql.SQL("DELETE FROM {}.iceberg_branch_copy WHERE number = 0").format(repository))


SELECT_HAS_SPARE = sql.SQL("SELECT EXISTS (SELECT FROM iceberg_spare)")


def remove_spare(conn: psycopg.Connection, lake_schema: str, idle_s: float = 0.0) -> bool:
    """Drop the lake's spare if it has been unclaimed for so long. Return True if the lake has none now."""
    conn.execute(format_search_path(lake_schema))
    if not _has_spares(conn):
        return True
    try:
        with conn.transaction():
            drop_spare(conn, lake_schema, idle_s)
            row = conn.execute(SELECT_HAS_SPARE).fetchone()
            return row is not None and not row[0]
    except psycopg.errors.LockNotAvailable:
        return False
