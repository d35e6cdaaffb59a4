"""Commits to one or several tables: prepared before the lake's lock, planned and written under it."""
