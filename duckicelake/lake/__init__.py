"""DuckLake's tables and our own `iceberg_*` tables in Postgres: reading, writing, locking and change detection.

rows, note_rows (frozen, one class per table) · connect (pool, transactions, SQLSTATE → errors) · read, read_table, read_files,
read_views (queries) · changes (grammar of `changes_made`) · notes (assigned versions and ids) · watch (change detection) ·
install (our tables and triggers) · readers (read-only access for DuckDB) · writing (commits).
"""
