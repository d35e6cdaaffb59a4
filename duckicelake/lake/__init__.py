"""THE STATE: DuckLake's tables and our notes in Postgres.

rows (frozen, one per table) · connect (pool, transactions, SQLSTATE → errors) · read · changes (grammar of
changes_made) · notes (numbers once given out) · views (their rows and notes) · watch (has anything changed?) · install (our
tables and triggers).
"""
