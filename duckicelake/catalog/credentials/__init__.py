"""Access to the files of tables: vended credentials, signed requests and read-only DuckLake for DuckDB."""
