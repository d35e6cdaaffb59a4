"""Branches and tags of tables, and the snapshots that they keep: notes of ours beside DuckLake's rows."""
