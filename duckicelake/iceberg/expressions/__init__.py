"""Filters of scans: read from JSON, bound to a schema, and held against partitions and metrics of files."""
