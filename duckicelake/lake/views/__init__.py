"""Views: DuckLake's rows, and what Iceberg says of them.

Every view has its row in `ducklake_view`, also one that DuckDB cannot read; the note beside it is found by the row's id.
"""
