"""Commits: one transaction under the lake's lock that writes rows and lake snapshots.

rows (the rows that a commit writes, pure) · transaction (the lock, and an unknown state when COMMIT fails) · apply (rows →
statements) · statements, note_statements (the SQL) · single_statement (a simple commit in one round trip) · lookups (queries of
commits) · read_back (the table's state after a commit) · waiting_sessions (waiting for DuckDB's commits) · dropped, registration
(dropped tables) · idempotency (repeated requests) · migrate (to DuckLake 1.1).
"""
