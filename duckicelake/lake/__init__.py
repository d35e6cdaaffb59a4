"""DuckLake's tables and our own `iceberg_*` tables in Postgres: reading, writing, locking and change detection.

rows, note_rows (frozen, one class per table) · bulk_rows (many rows fast) · lake_format (DuckLake 1.0 and 1.1) · connect (pool,
transactions, SQLSTATE → errors) · read, read_table, read_files, read_views (queries) · changes (grammar of `changes_made`) · notes
(assigned versions and ids) · watch (change detection) · server_turns (advisory locks) · install (our tables and triggers) · readers,
reader_views (read-only access for DuckDB) · access_rules · audit_log, events · locations · damaged_rows, null_proofs, inspect (checks of
rows) · branches · writing (commits).
"""
