"""Views between DuckLake and Iceberg. Their SQL is data: it is parsed, never executed.

parser (DuckDB's own, without external access) · names (table names in queries) · spark (the subset of SQL that means the same in
Spark and DuckDB) · columns (the columns of a DuckDB view) · conversion (between view metadata and DuckLake's rows).
"""
