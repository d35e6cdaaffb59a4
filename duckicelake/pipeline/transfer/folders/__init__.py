"""Folders that are tables: Parquet files as Hive leaves them, and Delta tables, whose log says which files count."""
