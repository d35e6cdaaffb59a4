"""From Iceberg to DuckLake: the metadata and files of a client's commit as DuckLake's rows.

columns (schema → columns) · tables (steps that create, change, rename, drop tables and views) · commits (ids, refusals, branches
and tags) · files (data files → rows and statistics) · deletes (deleted positions).
"""
