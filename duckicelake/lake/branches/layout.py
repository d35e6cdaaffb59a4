"""The relations of a branch: views over the lake's tables as of the fork point, and the tables and triggers that take what is written.

`create` calls it in the transaction that makes a branch, before that transaction takes the lake's lock. `merge_write`, `rebase`,
`refork` and `revert` use only its lists of tables and columns, `build_moved_path` and the copying of inlined rows, in their transactions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from duckicelake.lake.lake_format import LakeFormat, get_format

PREFIX = "ducklake_"
NO_DATA_FILE = sql.SQL("9223372036854775807")
"""The `data_file_id` of delete files that belong to no data file: they keep files from the orphan scan."""


@dataclass(frozen=True, slots=True)
class Schemas:
    """The metadata schemas of a repository's lake and of one of its branches."""

    repository: str
    branch: str


@dataclass(frozen=True, slots=True)
class ViewedTable:
    """A table of DuckLake that is a view on a branch. `key` identifies its rows.

    `limit` is the column of `branch_fork` that ids in the first column of the key stay below, None if snapshots alone decide.
    `has_path`: paths are relative to the table's folder. `is_observed`: triggers of ours see its rows being deleted.
    """

    name: str
    key: Sequence[str]
    limit: str | None = None
    is_versioned: bool = True
    has_path: bool = False
    is_observed: bool = False

    @property
    def is_copied_on_update(self) -> bool:
        """True if the lake may change rows of it other than by ending them; statistics of files are only ever widened."""
        return self.is_versioned or self.limit != "next_file_id"


VIEWED = (
    ViewedTable("table", ("table_id", "begin_snapshot"), is_observed=True),
    ViewedTable("column", ("table_id", "column_id", "begin_snapshot")),
    ViewedTable("view", ("view_id", "begin_snapshot")),
    ViewedTable("tag", ("object_id", "begin_snapshot", "key")),
    ViewedTable("column_tag", ("table_id", "column_id", "begin_snapshot", "key")),
    ViewedTable("partition_info", ("partition_id", "table_id", "begin_snapshot")),
    ViewedTable("partition_column", ("partition_id", "table_id", "partition_key_index"), "next_catalog_id", is_versioned=False),
    ViewedTable("schema_versions", ("table_id", "begin_snapshot", "schema_version")),
    ViewedTable("data_file", ("data_file_id",), "next_file_id", has_path=True, is_observed=True),
    ViewedTable("delete_file", ("delete_file_id",), "next_file_id", has_path=True),
    ViewedTable("file_column_stats", ("data_file_id", "column_id"), "next_file_id", is_versioned=False),
    ViewedTable("file_partition_value", ("data_file_id", "partition_key_index"), "next_file_id", is_versioned=False),
    ViewedTable("file_variant_stats", ("data_file_id", "column_id", "variant_path"), "next_file_id", is_versioned=False),
)

COPIED: Mapping[str, str | None] = {
    "snapshot": "snapshot_id",
    "snapshot_changes": "snapshot_id",
    "metadata": None,
    "schema": "schema_id",
    "macro": None,
    "macro_impl": None,
    "macro_parameters": None,
    "sort_info": None,
    "sort_expression": None,
    "column_mapping": None,
    "name_mapping": None,
    "table_stats": None,
    "table_column_stats": None,
    "inlined_data_tables": None,
    "files_scheduled_for_deletion": None,
}
"""The tables of DuckLake that a branch has as tables, with their primary keys."""


def list_copied(lake_format: LakeFormat) -> Mapping[str, str | None]:
    """Return the tables of a version of DuckLake that a branch has as tables, with their primary keys."""
    return {**COPIED, "view_column_tag": None} if lake_format.nests_schemas else COPIED


@dataclass(frozen=True, slots=True)
class VersionedKind:
    """A versioned table of DuckLake and the columns that, with `begin_snapshot`, identify a row. The first of them names its object.

    `is_viewed`: it is a view on a branch; else a table that was copied. `is_of_1_1`: DuckLake 1.0 has no such table.
    """

    name: str
    key: tuple[str, ...]
    is_viewed: bool = True
    is_of_1_1: bool = False


KINDS = (
    VersionedKind("schema", ("schema_id",), is_viewed=False),
    VersionedKind("table", ("table_id",)),
    VersionedKind("view", ("view_id",)),
    VersionedKind("macro", ("macro_id",), is_viewed=False),
    VersionedKind("column", ("table_id", "column_id")),
    VersionedKind("partition_info", ("table_id", "partition_id")),
    VersionedKind("sort_info", ("table_id", "sort_id"), is_viewed=False),
    VersionedKind("tag", ("object_id", "key")),
    VersionedKind("column_tag", ("table_id", "column_id", "key")),
    VersionedKind("view_column_tag", ("view_id", "column_name", "key"), is_viewed=False, is_of_1_1=True),
)


def list_kinds(lake_format: LakeFormat) -> list[VersionedKind]:
    """Return the versioned tables of a version of DuckLake."""
    return [kind for kind in KINDS if lake_format.nests_schemas or not kind.is_of_1_1]


OF_TABLES = ("column", "partition_info", "sort_info", "column_tag")

TEXT_KEYS = ("key", "variant_path")
"""Columns of keys that may be too long for an index, which has their MD5 instead."""

CREATE_FORK = sql.SQL("""
-- The lake's snapshot and counters that the views show; and the parent's when the branch was made of it, which are the same for the lake.
CREATE TABLE {branch}.branch_fork (
    fork_snapshot_id bigint NOT NULL,
    next_file_id bigint NOT NULL,
    next_catalog_id bigint NOT NULL,
    parent_snapshot_id bigint NOT NULL,
    parent_file_id bigint NOT NULL,
    lake_data_path text NOT NULL,
    data_path text NOT NULL,
    lake_iceberg_path text NOT NULL,
    iceberg_path text NOT NULL
);
-- The folders that the lake's tables had at the fork point, which relative paths of their files start from.
CREATE TABLE {branch}.branch_root (table_id bigint PRIMARY KEY, root text NOT NULL);
-- The files of the fork point whose rows the branch has deleted: a merge must know them when the lake has deleted its rows too.
-- `is_parents`: the parent had deleted them before the branch was made of it.
CREATE TABLE {branch}.branch_removed (
    data_file_id bigint NOT NULL, table_id bigint NOT NULL, begin_snapshot bigint NOT NULL, end_snapshot bigint,
    is_parents boolean NOT NULL DEFAULT false
)
""")

SELECT_COLUMNS = """
SELECT a.attname FROM pg_attribute a
 WHERE a.attrelid = format('%%I.%%I', %(schema)s::text, %(name)s::text)::regclass AND a.attnum > 0 AND NOT a.attisdropped
   -- a view of a branch has one of this name for DuckDB's reader
   AND a.attname <> 'ctid'
 ORDER BY a.attnum
"""

CREATE_TABLES = sql.SQL("""
CREATE TABLE {own} (LIKE {base} INCLUDING DEFAULTS);
CREATE INDEX ON {own} ({first_key});
CREATE TABLE {gone} AS SELECT {keys} FROM {base} WHERE false;
-- If transactions of the lake and of the branch take over the same row, the second waits for the first, and then sees its row or fails.
CREATE UNIQUE INDEX ON {gone} ({indexed_keys})
""")

# DuckDB reads a Postgres table by ctid, so the view needs a column of that name, unique over both parts.
CREATE_VIEW = sql.SQL("""
CREATE VIEW {view} AS
SELECT {shown}, f.ctid AS ctid FROM {base} f{joins} WHERE {condition}
UNION ALL
SELECT {owned}, ('(' || ((o.ctid::text::point)[0]::bigint + 1073741824) || ',' || ((o.ctid::text::point)[1])::int || ')')::tid
  FROM {own} o
""")

CREATE_WRITER = sql.SQL("""
CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $write$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO {own} VALUES ({new});
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        UPDATE {own} o SET {changed} WHERE {is_old};
        IF NOT FOUND THEN
            INSERT INTO {gone} VALUES ({old_key}) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                INSERT INTO {own} VALUES ({new});
                RETURN NEW;
            END IF;
            -- The lake has copied the row meanwhile. A transaction that cannot see that has failed by now.
            UPDATE {own} o SET {changed} WHERE {is_old};
            IF NOT FOUND THEN
                RAISE EXCEPTION 'could not serialize access due to concurrent update: a row of % was deleted meanwhile', TG_TABLE_NAME
                    USING ERRCODE = 'serialization_failure';
            END IF;
        END IF;
        RETURN NEW;
    END IF;
    {before_delete}
    DELETE FROM {own} o WHERE {is_old};
    {after_delete}
    RETURN OLD;
END
$write$;
CREATE TRIGGER branch_write INSTEAD OF INSERT OR UPDATE OR DELETE ON {view} FOR EACH ROW EXECUTE FUNCTION {function}()
""")

# Triggers that observe deleted rows stand on the table of own rows, so the lake's row passes through it.
PASS_THROUGH = sql.SQL("""IF NOT EXISTS (SELECT FROM {own} o WHERE {is_old}) THEN
        INSERT INTO {gone} VALUES ({old_key}) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            INSERT INTO {own} VALUES ({old});
        END IF;
    END IF;""")
NOTE_REMOVED = sql.SQL("""INSERT INTO {removed} (data_file_id, table_id, begin_snapshot, end_snapshot)
    SELECT OLD.data_file_id, OLD.table_id, OLD.begin_snapshot, OLD.end_snapshot FROM {fork} k
     WHERE OLD.data_file_id < k.parent_file_id AND OLD.begin_snapshot <= k.parent_snapshot_id
       AND (OLD.end_snapshot IS NULL OR OLD.end_snapshot > k.fork_snapshot_id);""")
HIDE_MISSED = sql.SQL("""IF NOT FOUND THEN
        INSERT INTO {gone} VALUES ({old_key}) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            DELETE FROM {own} o WHERE {is_old};
        END IF;
    END IF;""")

# Both hide the lake's row before they copy it: the branch may have taken it over in a transaction that is not visible here. In READ
# COMMITTED such a row is not copied; in REPEATABLE READ, which DuckDB has, the transaction fails with a serialization error.
COPY_DELETED = sql.SQL("""
WITH hidden AS (
    INSERT INTO {gone} ({keys}) SELECT {keys_of_row} FROM gone f WHERE {condition} ON CONFLICT DO NOTHING RETURNING {keys}
)
INSERT INTO {own} ({columns}) SELECT {shown} FROM gone f{joins} JOIN hidden h ON {is_hidden}
""")
COPY_UPDATED = sql.SQL("""
WITH hidden AS (
    INSERT INTO {gone} ({keys}) SELECT {keys_of_row} FROM gone f
     WHERE {condition} AND NOT EXISTS (SELECT FROM arrived a WHERE {is_same}) ON CONFLICT DO NOTHING RETURNING {keys}
)
INSERT INTO {own} ({columns}) SELECT {shown} FROM gone f{joins} JOIN hidden h ON {is_hidden}
""")
INSERT_COPYING = sql.SQL("""
INSERT INTO {repository}.iceberg_branch_copy (number, table_name, operation, statement)
VALUES ({number}, {table}, {operation}, {text})
""")


def read_columns(conn: psycopg.Connection, schema: str, name: str) -> list[str]:
    """Return the columns of a table, in its order."""
    return [row[0] for row in conn.execute(SELECT_COLUMNS, {"schema": schema, "name": name})]


SELECT_VERSION_OF = sql.SQL("SELECT value FROM {}.ducklake_metadata WHERE key = 'version' AND scope IS NULL")


def read_format(conn: psycopg.Connection, schema: str) -> LakeFormat:
    """Return the format of a lake or branch. Raises: Unsupported: this catalog does not serve its version"""
    row = conn.execute(SELECT_VERSION_OF.format(sql.Identifier(schema))).fetchone()
    return get_format(None if row is None else row[0])


def name_inlined(lake_format: LakeFormat) -> dict[str, sql.Composable]:
    """Return the first columns of tables of inlined rows, for statements that name them `row_id`, `begin` and `end`."""
    return dict(zip(("row_id", "begin", "end"), map(sql.Identifier, lake_format.inlined_columns), strict=True))


FOLDER = sql.SQL("""
CASE WHEN NOT coalesce(t.path_is_relative, true) THEN ''
     WHEN NOT coalesce(s.path_is_relative, true) THEN coalesce(s.path, '')
     ELSE (SELECT value FROM {source}.ducklake_metadata WHERE key = 'data_path' AND scope IS NULL) || coalesce(s.path, '')
END || coalesce(t.path, '')""")
"""The folder of a table `t` in a schema `s`, which relative paths of its files start from."""

OF_DELETES: Mapping[str, sql.Composable] = {"begin": sql.Identifier("begin_snapshot")}
"""The column of tables of inlined deletes, which are the same in both versions of DuckLake."""

SELECT_INLINED = """
SELECT c.relname, substring(c.relname FROM '^ducklake_inlined_delete_[0-9]+$') IS NOT NULL AS has_deletes
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND c.relname ~ '^ducklake_inlined_(data_[0-9]+_[0-9]+|delete_[0-9]+)$'
"""


HAS_INLINED = sql.SQL("SELECT EXISTS (SELECT FROM {original} WHERE {begin} <= {fork})")


def has_inlined(conn: psycopg.Connection, original: sql.Composable, names: Mapping[str, sql.Composable], *, has_deletes: bool) -> bool:
    """Return True if a table of inlined rows, or of inlined deletes, has any of the fork point."""
    row = conn.execute(HAS_INLINED.format(**{**names, **(OF_DELETES if has_deletes else {})}, original=original)).fetchone()
    return bool(row and row[0])


def format_copying(
    columns: Sequence[str],
    copy: sql.Composable,
    original: sql.Composable,
    names: Mapping[str, sql.Composable],
    *,
    has_deletes: bool,
) -> sql.Composed:
    """Return the statement that copies the inlined rows, or deletes, of the fork point."""
    begin = (OF_DELETES if has_deletes else names)["begin"]
    end = sql.SQL("CASE WHEN {end} > {fork} THEN NULL ELSE {end} END").format(**names)
    # The third column of inlined rows ends them; inlined deletes do not end.
    shown = [end if place == 2 and not has_deletes else sql.Identifier(column) for place, column in enumerate(columns)]
    query = sql.SQL("INSERT INTO {} SELECT {} FROM {} WHERE {} <= {}")
    return query.format(copy, sql.SQL(", ").join(shown), original, begin, names["fork"])


def create_relations(conn: psycopg.Connection, schemas: Schemas, number: int) -> None:
    """Create the views of a branch with what they need, and note how the lake's triggers copy rows for it. The views show nothing yet."""
    conn.execute(CREATE_FORK.format(branch=sql.Identifier(schemas.branch)))
    for table in VIEWED:
        parts = _Parts(schemas, table, read_columns(conn, schemas.repository, PREFIX + table.name))
        conn.execute(CREATE_TABLES.format(**parts.names, **parts.keys))
        conn.execute(
            CREATE_VIEW.format(**parts.names, shown=parts.shown, owned=parts.prefixed("o"), joins=parts.joins, condition=parts.condition)
        )
        conn.execute(parts.format_writer())
        _note_copying(conn, parts, number)


def _note_copying(conn: psycopg.Connection, parts: "_Parts", number: int) -> None:
    statements = {"DELETE": COPY_DELETED} | ({"UPDATE": COPY_UPDATED} if parts.table.is_copied_on_update else {})
    for operation, statement in statements.items():
        text = statement.format(
            **parts.names,
            keys=parts.keys["keys"],
            keys_of_row=parts.prefixed("f", parts.table.key),
            columns=parts.list(parts.columns),
            shown=parts.shown,
            joins=parts.joins,
            condition=parts.condition,
            is_same=parts.is_same,
            is_hidden=parts.is_hidden,
        )
        conn.execute(
            INSERT_COPYING.format(
                repository=sql.Identifier(parts.schemas.repository),
                number=sql.Literal(number),
                table=sql.Literal(PREFIX + parts.table.name),
                operation=sql.Literal(operation),
                text=sql.Literal(text.as_string(conn)),
            )
        )


class _Parts:
    """The parts of the statements about one viewed table; `f` is the lake's row."""

    def __init__(self, schemas: Schemas, table: ViewedTable, columns: Sequence[str]) -> None:
        self.schemas = schemas
        self.table = table
        self.columns = columns
        branch, name = schemas.branch, table.name
        self.names: dict[str, sql.Composable] = {
            "base": sql.Identifier(schemas.repository, PREFIX + name),
            "view": sql.Identifier(branch, PREFIX + name),
            "own": sql.Identifier(branch, "own_" + name),
            "gone": sql.Identifier(branch, "gone_" + name),
        }
        indexed = [sql.SQL("md5({})" if key in TEXT_KEYS else "{}").format(sql.Identifier(key)) for key in table.key]
        self.keys: dict[str, sql.Composable] = {
            "keys": self.list(table.key),
            "first_key": sql.Identifier(table.key[0]),
            "indexed_keys": sql.SQL(", ").join(indexed),
        }

    @staticmethod
    def list(names: Sequence[str]) -> sql.Composed:
        """Return names with commas between them."""
        return sql.SQL(", ").join(sql.Identifier(name) for name in names)

    def prefixed(self, row: str, names: Sequence[str] | None = None) -> sql.Composed:
        """Return columns of a row with commas between them."""
        return sql.SQL(", ").join(sql.Identifier(row, name) for name in names or self.columns)

    def of_record(self, record: str, names: Sequence[str]) -> sql.Composed:
        """Return columns of a trigger's record with commas between them."""
        return sql.SQL(", ").join(sql.SQL(record + ".{}").format(sql.Identifier(name)) for name in names)  # pyright: ignore[reportArgumentType]

    def fork(self, column: str) -> sql.Composed:
        """Return a value of the fork point."""
        return sql.SQL("(SELECT k.{} FROM {} k)").format(sql.Identifier(column), sql.Identifier(self.schemas.branch, "branch_fork"))

    @property
    def shown(self) -> sql.Composed:
        """The columns of the lake's row as the branch shows them."""
        return sql.SQL(", ").join(self._show(column) for column in self.columns)

    def _show(self, column: str) -> sql.Composable:
        value = sql.Identifier("f", column)
        if column == "end_snapshot":
            return sql.SQL("CASE WHEN {0} > {1} THEN NULL ELSE {0} END AS end_snapshot").format(value, self.fork("fork_snapshot_id"))
        if self.table.has_path and column == "path":
            return sql.SQL("CASE WHEN coalesce(f.path_is_relative, true) THEN r.root || f.path ELSE f.path END AS path")
        if self.table.has_path and column == "path_is_relative":
            return sql.SQL("false AS path_is_relative")
        if self.table.name == "table" and column == "path":
            return build_moved_path(sql.SQL("f"), self.schemas.branch)
        return value

    @property
    def joins(self) -> sql.Composable:
        """The join that resolves relative paths."""
        if not self.table.has_path:
            return sql.SQL("")
        return sql.SQL(" JOIN {} r ON r.table_id = f.table_id").format(sql.Identifier(self.schemas.branch, "branch_root"))

    @property
    def condition(self) -> sql.Composed:
        """The condition on the lake's rows that the branch shows."""
        conditions: list[sql.Composable] = []
        if self.table.is_versioned:
            conditions.append(sql.SQL("f.begin_snapshot <= {}").format(self.fork("fork_snapshot_id")))
        if self.table.limit is not None:
            # Compaction inserts rows into the past; their ids show that they are newer than the branch.
            conditions.append(sql.SQL("{} < {}").format(sql.Identifier("f", self.table.key[0]), self.fork(self.table.limit)))
        if self.table.name == "delete_file":
            conditions.append(sql.SQL("f.data_file_id <> ") + NO_DATA_FILE)
        conditions.append(sql.SQL("NOT EXISTS (SELECT FROM {} g WHERE {})").format(self.names["gone"], self._equal_keys("g", "f")))
        return sql.SQL(" AND ").join(conditions)

    @property
    def is_same(self) -> sql.Composed:
        """The condition that a changed row `a` of the lake still shows the same on the branch."""
        same: list[sql.Composable] = [self._equal_keys("a", "f")]
        for column in self.columns:
            if column == "end_snapshot":
                fork = self.fork("fork_snapshot_id")
                ended = sql.SQL("(coalesce({0}, {2} + 1) > {2} AND coalesce({1}, {2} + 1) > {2} OR {0} = {1})")
                same.append(ended.format(sql.Identifier("a", column), sql.Identifier("f", column), fork))
            else:
                same.append(sql.SQL("{} IS NOT DISTINCT FROM {}").format(sql.Identifier("a", column), sql.Identifier("f", column)))
        return sql.SQL(" AND ").join(same)

    @property
    def is_hidden(self) -> sql.Composed:
        """The condition that the lake's row is one of those that were hidden."""
        return self._equal_keys("h", "f")

    def _equal_keys(self, left: str, right: str) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier(left, key), sql.Identifier(right, key)) for key in self.table.key
        )

    def format_writer(self) -> sql.Composed:
        """Return the statements that create the trigger for writing to the view."""
        is_old = sql.SQL(" AND ").join(sql.SQL("o.{0} = OLD.{0}").format(sql.Identifier(key)) for key in self.table.key)
        parts = {**self.names, "is_old": is_old, "old_key": self.of_record("OLD", self.table.key)}
        nothing = sql.SQL("")
        return CREATE_WRITER.format(
            **parts,
            function=sql.Identifier(self.schemas.branch, "branch_write_" + self.table.name),
            new=self.of_record("NEW", self.columns),
            changed=sql.SQL(", ").join(sql.SQL("{0} = NEW.{0}").format(sql.Identifier(column)) for column in self.columns),
            before_delete=self._format_before_delete(parts) if self.table.is_observed else nothing,
            after_delete=nothing if self.table.is_observed else HIDE_MISSED.format(**parts),
        )

    def _format_before_delete(self, parts: Mapping[str, sql.Composable]) -> sql.Composed:
        noting = sql.Composed([])
        if self.table.name == "data_file":
            branch = self.schemas.branch
            noting = NOTE_REMOVED.format(removed=sql.Identifier(branch, "branch_removed"), fork=sql.Identifier(branch, "branch_fork"))
        return noting + PASS_THROUGH.format(**parts, old=self.of_record("OLD", self.columns))


def build_moved_path(row: sql.Composable, branch: str) -> sql.Composed:
    """Return the path of a row of a table or schema: a full path below a folder of the lake is moved to the branch's folder."""
    return sql.SQL("""(
        SELECT CASE WHEN coalesce({row}.path_is_relative, true) THEN {row}.path
                    WHEN starts_with({row}.path, k.lake_iceberg_path)
                        THEN k.iceberg_path || substr({row}.path, length(k.lake_iceberg_path) + 1)
                    WHEN starts_with({row}.path, k.lake_data_path) THEN k.data_path || substr({row}.path, length(k.lake_data_path) + 1)
                    ELSE {row}.path END
          FROM {fork} k) AS path""").format(row=row, fork=sql.Identifier(branch, "branch_fork"))
