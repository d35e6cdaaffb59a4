"""Maintenance: what a lake's files and snapshots need is planned from DuckLake's catalog and done so that everybody else goes on."""
