"""The cells of the merge table: what the branch did to a table, what the lake did to it, and what a merge makes of both."""

from dataclasses import dataclass

APPEND = "INSERT INTO {t} SELECT i, 'b' FROM range(1000, 1020) r(i)"
THEIR_APPEND = "INSERT INTO {t} SELECT i, 'm' FROM range(2000, 2020) r(i)"
COMPACT = "CALL ducklake_merge_adjacent_files('lake', '{t}')"
REWRITE = "CALL ducklake_rewrite_data_files('lake', '{t}', delete_threshold => 0.01)"
FLUSH = "CALL ducklake_flush_inlined_data('lake', table_name => '{t}')"
FIRST, SECOND = "DELETE FROM {t} WHERE id < 15", "DELETE FROM {t} WHERE id BETWEEN 100 AND 114"
"""Rows of the first and the second file. More than ten rows: DuckLake writes delete files."""
ONE = "DELETE FROM {t} WHERE id = {id}"


@dataclass(frozen=True)
class Cell:
    """One cell. Each table begins with ids 0–19 in one file, 100–119 in another, and the inlined row 900.

    `conflict`: its kind, None if the merge applies both. `rows`: what the table has then, for changes of the schema; else the rows of the
    lake without those that the branch deleted and with those that it added.
    """

    name: str
    branch: tuple[str, ...] = ()
    main: tuple[str, ...] = ()
    conflict: str | None = None
    rows: str | None = None
    now: str | None = None


RENAME, ADD = "ALTER TABLE {t} RENAME TO {t}_b", "ALTER TABLE {t} ADD COLUMN n INTEGER DEFAULT 7"
WITH_N = "SELECT id, v, 7 AS n FROM {before}"

CELLS = (
    Cell("append_untouched", (APPEND,)),
    Cell("append_append", (APPEND,), (THEIR_APPEND,)),
    Cell("append_inlined_append", ("INSERT INTO {t} VALUES (901, 'b')",), ("INSERT INTO {t} VALUES (902, 'm')",)),
    Cell("append_delete", (APPEND,), (FIRST,)),
    Cell("append_compaction", (APPEND,), (COMPACT,)),
    Cell("append_flush", ("INSERT INTO {t} VALUES (901, 'b')",), (FLUSH,)),
    Cell("append_schema", (APPEND,), (ADD,), rows="SELECT id, v, 7 FROM {before} UNION ALL SELECT i, 'b', 7 FROM range(1000, 1020) r(i)"),
    Cell("inlined_append_schema", ("INSERT INTO {t} VALUES (901, 'b')",), (ADD,), rows=f"{WITH_N} UNION ALL SELECT 901, 'b', 7"),
    Cell("append_renamed_column", (APPEND,), ("ALTER TABLE {t} RENAME COLUMN v TO w",)),
    Cell(
        "append_promoted_column",
        (APPEND,),
        ("ALTER TABLE {t} ALTER id TYPE HUGEINT",),
        rows="FROM {before} UNION ALL SELECT i, 'b' FROM range(1000, 1020) r(i)",
    ),
    Cell(
        "inlined_append_promoted_column",
        ("INSERT INTO {t} VALUES (901, 'b')",),
        ("ALTER TABLE {t} ALTER id TYPE HUGEINT",),
        rows="FROM {before} UNION ALL SELECT 901, 'b'",
    ),
    Cell("append_rename", (APPEND,), ("ALTER TABLE {t} RENAME TO {t}_m",), now="{t}_m"),
    Cell("append_drop", (APPEND,), ("DROP TABLE {t}",), "change/drop"),
    Cell("append_partitioning", (APPEND,), ("ALTER TABLE {t} SET PARTITIONED BY (v)", THEIR_APPEND)),
    Cell("append_buckets", (APPEND,), ("ALTER TABLE {t} SET PARTITIONED BY (bucket(4, id))",), "partitioning/append"),
    Cell("delete_untouched", (FIRST, "DELETE FROM {t} WHERE id = 900")),
    Cell("delete_append", (FIRST,), (THEIR_APPEND,)),
    Cell("delete_other_file", (FIRST,), (SECOND,)),
    Cell("delete_same_file", (FIRST,), ("DELETE FROM {t} WHERE id BETWEEN 4 AND 18",), "delete/delete"),
    Cell("inlined_delete_other_file", (ONE.format(t="{t}", id=3),), (ONE.format(t="{t}", id=103),)),
    Cell("inlined_delete_same_file", (ONE.format(t="{t}", id=3),), (ONE.format(t="{t}", id=4),), "delete/delete"),
    Cell("delete_inlined_delete", (FIRST,), (ONE.format(t="{t}", id=18),), "delete/delete"),
    Cell("inlined_delete_delete", (ONE.format(t="{t}", id=18),), (FIRST,), "delete/delete"),
    Cell("delete_file_gone", (FIRST,), ("DELETE FROM {t} WHERE id < 50",), "delete/delete"),
    Cell("delete_truncate", (FIRST,), ("TRUNCATE {t}",), "delete/delete"),
    Cell("delete_compaction", (FIRST,), (COMPACT,), "delete/compaction"),
    Cell("inlined_delete_compaction", (ONE.format(t="{t}", id=3),), (COMPACT,), "delete/compaction"),
    Cell("delete_rewrite", (SECOND,), (FIRST, REWRITE)),
    Cell("delete_rewritten_file", (ONE.format(t="{t}", id=18),), (FIRST, REWRITE), "delete/compaction"),
    Cell("delete_schema", (FIRST,), (ADD,), rows="SELECT id, v, 7 FROM {before} WHERE id >= 15"),
    Cell("delete_rename", (FIRST,), ("ALTER TABLE {t} RENAME TO {t}_m",), now="{t}_m"),
    Cell("delete_drop", (FIRST,), ("DROP TABLE {t}",), "change/drop"),
    Cell("delete_row_flushed", ("DELETE FROM {t} WHERE id = 900",), (FLUSH,), "delete/compaction"),
    Cell("delete_row_deleted", ("DELETE FROM {t} WHERE id = 900",), ("DELETE FROM {t} WHERE id = 900",), "delete/delete"),
    Cell("update_untouched", ("UPDATE {t} SET v = 'b' WHERE id < 20 OR id = 900",)),
    Cell("update_append", ("UPDATE {t} SET v = 'b' WHERE id < 20",), (THEIR_APPEND,)),
    Cell("update_other_rows", ("UPDATE {t} SET v = 'b' WHERE id < 20",), ("UPDATE {t} SET v = 'm' WHERE id >= 100 AND id < 200",)),
    Cell("update_same_rows", ("UPDATE {t} SET v = 'b' WHERE id = 900",), ("UPDATE {t} SET v = 'm' WHERE id = 900",), "delete/delete"),
    Cell("overwrite_untouched", ("BEGIN", "TRUNCATE {t}", APPEND, "COMMIT")),
    Cell("overwrite_append", ("BEGIN", "DELETE FROM {t} WHERE id < 500", APPEND, "COMMIT"), (THEIR_APPEND,)),
    Cell("overwrite_delete", ("DELETE FROM {t} WHERE id < 500",), (FIRST,), "overwrite/delete"),
    Cell("overwrite_compaction", ("DELETE FROM {t} WHERE id < 500",), (COMPACT,), "overwrite/compaction"),
    Cell(
        "overwrite_schema",
        ("BEGIN", "TRUNCATE {t}", APPEND, "COMMIT"),
        (ADD,),
        rows="SELECT i, 'b', 7 FROM range(1000, 1020) r(i)",
    ),
    Cell("overwrite_rename", ("BEGIN", "TRUNCATE {t}", APPEND, "COMMIT"), ("ALTER TABLE {t} RENAME TO {t}_m",), now="{t}_m"),
    Cell("overwrite_drop", ("BEGIN", "TRUNCATE {t}", APPEND, "COMMIT"), ("DROP TABLE {t}",), "change/drop"),
    Cell("compaction_untouched", (COMPACT,)),
    Cell("compaction_schema", (COMPACT,), (ADD,), rows="FROM {before}"),
    Cell("compaction_dropped_column", (COMPACT,), ("ALTER TABLE {t} DROP COLUMN v",), rows="FROM {before}"),
    Cell("compaction_append", (COMPACT, APPEND), (THEIR_APPEND,)),
    Cell("compaction_over_own", (APPEND, COMPACT, "DELETE FROM {t} WHERE id = 1003"), (THEIR_APPEND,)),
    Cell("compaction_delete", (COMPACT,), (FIRST,), "overwrite/delete"),
    Cell("compaction_inlined_delete", (COMPACT,), (ONE.format(t="{t}", id=3),), "overwrite/delete"),
    Cell("compaction_compaction", (COMPACT,), (COMPACT,), "compaction/compaction"),
    Cell("compaction_rename", (COMPACT,), ("ALTER TABLE {t} RENAME TO {t}_m",), now="{t}_m"),
    Cell("compaction_drop", (COMPACT,), ("DROP TABLE {t}",), "change/drop"),
    Cell("flush_untouched", (FLUSH,)),
    Cell("flush_append", ("INSERT INTO {t} VALUES (901, 'b')", FLUSH), ("INSERT INTO {t} VALUES (902, 'm')",)),
    Cell("flush_delete", (FLUSH,), ("DELETE FROM {t} WHERE id = 900",), "delete/delete"),
    Cell("flush_flush", (FLUSH,), (FLUSH,), "compaction/compaction"),
    Cell("rewrite_append", (FIRST, REWRITE), (THEIR_APPEND,)),
    Cell("schema_untouched", (ADD, "INSERT INTO {t} VALUES (901, 'b', 1)"), rows=f"{WITH_N} UNION ALL SELECT 901, 'b', 1"),
    Cell("schema_append", (ADD,), (THEIR_APPEND,), rows=WITH_N),
    Cell("schema_inlined_append", (ADD,), ("INSERT INTO {t} VALUES (902, 'm')",), rows=WITH_N),
    Cell("schema_delete", (ADD,), (FIRST,), rows=WITH_N),
    Cell("schema_compaction", (ADD,), (COMPACT,), rows=WITH_N),
    Cell(
        "schema_equal",
        (ADD, "INSERT INTO {t} SELECT i, 'b', 1 FROM range(1000, 1020) r(i)"),
        (ADD,),
        rows="SELECT * FROM {before} UNION ALL SELECT i, 'b', 1 FROM range(1000, 1020) r(i)",
    ),
    Cell("schema_other", (ADD,), ("ALTER TABLE {t} ADD COLUMN z INTEGER",), "schema/schema"),
    Cell("schema_dropped_column", ("ALTER TABLE {t} DROP COLUMN v",), ("ALTER TABLE {t} RENAME COLUMN v TO w",), "schema/schema"),
    Cell("schema_rename", (ADD,), ("ALTER TABLE {t} RENAME TO {t}_m",), rows=WITH_N, now="{t}_m"),
    Cell("schema_drop", (ADD,), ("DROP TABLE {t}",), "change/drop"),
    Cell("schema_old_shape", (ADD, "INSERT INTO {t} VALUES (901, 'b', 1)", "ALTER TABLE {t} ADD COLUMN z INTEGER"), (), "append/any"),
    Cell("renamed_column", ("ALTER TABLE {t} RENAME COLUMN v TO w", "INSERT INTO {t} VALUES (901, 'b')"), (THEIR_APPEND,)),
    Cell("promoted_column", ("ALTER TABLE {t} ALTER id TYPE HUGEINT",), (THEIR_APPEND,), rows="SELECT id, v FROM {before}"),
    Cell("partitioning_append", ("ALTER TABLE {t} SET PARTITIONED BY (v)", APPEND), (THEIR_APPEND,)),
    Cell(
        "partitioning_both",
        ("ALTER TABLE {t} SET PARTITIONED BY (v)",),
        ("ALTER TABLE {t} SET PARTITIONED BY (id)",),
        "partitioning/partitioning",
    ),
    Cell(
        "partitioning_dropped_column",
        ("ALTER TABLE {t} SET PARTITIONED BY (v)",),
        ("ALTER TABLE {t} DROP COLUMN v",),
        "partitioning/schema",
    ),
    Cell("partitioning_renamed_column", ("ALTER TABLE {t} SET PARTITIONED BY (v)",), ("ALTER TABLE {t} RENAME COLUMN v TO w",)),
    Cell(
        "promoted_partitioning",
        ("ALTER TABLE {t} ALTER id TYPE HUGEINT",),
        ("ALTER TABLE {t} SET PARTITIONED BY (id)",),
        "schema/partitioning",
    ),
    Cell("sorting_renamed_column", ("ALTER TABLE {t} SET SORTED BY (v)",), ("ALTER TABLE {t} RENAME COLUMN v TO w",), "sorting/schema"),
    Cell("sorting_other_column", ("ALTER TABLE {t} SET SORTED BY (id)",), ("ALTER TABLE {t} RENAME COLUMN v TO w",)),
    Cell("rename_untouched", (RENAME,), now="{t}_b"),
    Cell("rename_append", (RENAME,), (THEIR_APPEND,), now="{t}_b"),
    Cell("rename_delete", (RENAME,), (FIRST,), now="{t}_b"),
    Cell("rename_compaction", (RENAME,), (COMPACT,), now="{t}_b"),
    Cell("rename_schema", (RENAME,), (ADD,), now="{t}_b"),
    Cell("rename_equal", (RENAME,), (RENAME,), now="{t}_b"),
    Cell("rename_other", (RENAME,), ("ALTER TABLE {t} RENAME TO {t}_m",), "rename/rename"),
    Cell("rename_drop", (RENAME,), ("DROP TABLE {t}",), "change/drop"),
    Cell("drop_untouched", ("DROP TABLE {t}",), now=""),
    Cell("drop_append", ("DROP TABLE {t}",), (THEIR_APPEND,), "drop/change"),
    Cell("drop_delete", ("DROP TABLE {t}",), (FIRST,), "drop/change"),
    Cell("drop_compaction", ("DROP TABLE {t}",), (COMPACT,), now=""),
    Cell("drop_schema", ("DROP TABLE {t}",), (ADD,), "drop/change"),
    Cell("drop_rename", ("DROP TABLE {t}",), ("ALTER TABLE {t} RENAME TO {t}_m",), "drop/change"),
    Cell("drop_drop", ("DROP TABLE {t}",), ("DROP TABLE {t}",), now=""),
    Cell("properties_untouched", ("COMMENT ON TABLE {t} IS 'b'",)),
    Cell("properties_append", ("COMMENT ON TABLE {t} IS 'b'",), (THEIR_APPEND,)),
    Cell("properties_equal", ("COMMENT ON TABLE {t} IS 'c'",), ("COMMENT ON TABLE {t} IS 'c'",)),
    Cell("properties_other", ("COMMENT ON TABLE {t} IS 'b'",), ("COMMENT ON TABLE {t} IS 'm'",), "property/property"),
    Cell("properties_two", ("COMMENT ON TABLE {t} IS 'b'",), ("COMMENT ON COLUMN {t}.v IS 'm'",)),
    Cell("create_create", ("CREATE TABLE {t}_x AS SELECT 1 AS i",), ("CREATE TABLE {t}_X AS SELECT 2 AS j",), "create/create"),
    Cell("replaced_table", ("CREATE OR REPLACE TABLE {t} AS SELECT range AS q FROM range(30)",), (), rows="SELECT range FROM range(30)"),
    Cell("replaced_append", ("CREATE OR REPLACE TABLE {t} AS SELECT range AS q FROM range(30)",), (THEIR_APPEND,), "drop/change"),
    Cell("untouched_append", (), (THEIR_APPEND,)),
)
