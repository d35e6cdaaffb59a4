"""Commits: one transaction under the lake's lock, rows in, a lake snapshot out.

rows (what a commit writes, pure) · transaction (the lock, and what nobody knows when COMMIT fails) · apply (rows → statements) ·
statements (the SQL) · lookups (what a commit must know that no load reads) · client_notes (what clients said, for loads).
"""
