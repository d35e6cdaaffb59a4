"""Pure functions between DuckLake's rows and Iceberg values, in both directions; `catalog`, commands and Spark jobs call them.

types (columns → schema) · schemas, partitions, sort_orders, name_mapping (over time) · values (texts ↔ Iceberg values) ·
locations (paths → URIs) · visibility (rows → changes of each snapshot) · manifests (changes → manifest plans) ·
files, bulk_files, bulk_manifests (rows → data files and manifests) · client_schemas, client_snapshots (notes of
clients) · to_iceberg (→ metadata) · to_ducklake (metadata → rows) · sql, views, view_columns (SQL, parsed only) ·
functions, function_binder (macros → SQL functions) · namespaces (names) · summaries (of snapshots) · unreadable_columns,
reader_limits (what Iceberg, or one reader, cannot read).
"""
