"""Views between the two worlds. Their SQL is data: parsed, never executed.

parser (DuckDB's own, in a connection that can reach nothing) · names (whose tables a query means) · spark (the part of
Spark's SQL that means the same in DuckDB) · held (what DuckLake keeps of an Iceberg view) · columns (what a DuckDB view's
text says of its columns) · found (a DuckLake view as Iceberg metadata).
"""
