"""From Iceberg to DuckLake: what a client asks for, as the rows that say it.

names (folders, and what DuckDB cannot tell apart) · namespaces · columns (schema → columns) · tables (made, renamed, dropped) ·
changes (two states of a table's metadata → rows) · files (data files → rows and statistics) · texts (values → DuckDB's texts).
"""
