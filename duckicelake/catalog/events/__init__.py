"""Events: the changes of each lake snapshot, of DuckDB and of Iceberg clients, as CloudEvents."""
