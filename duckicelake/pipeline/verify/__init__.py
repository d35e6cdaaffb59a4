"""The job `verify`: a table as Iceberg and as DuckLake, row by row; and its files against manifests and DuckLake's rows."""
