"""Commits: one transaction under the lake's lock, rows in, a lake snapshot out.

transaction (the lock, and what nobody knows when COMMIT fails) · apply (rows → statements) · statements (the SQL) ·
lookups (what a commit must know that no load reads).
"""
