"""Read-only access to a lake for DuckDB: views of the rows that each principal may read, and a Postgres role for each."""
