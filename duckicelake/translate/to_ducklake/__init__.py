"""From Iceberg to DuckLake: the metadata and files of a client's commit as DuckLake's rows.

columns (schema → columns) · tables, views (steps that create, change, rename, drop) · commits (ids and refusals) · refs (branches
and tags) · files, mapped_files (data files → rows and statistics) · deletes (deleted positions) · texts (values → DuckDB's texts).
"""
